use std::{
    collections::{BTreeSet, HashMap},
    fs,
    io::{self, Write as _},
    mem,
    net::{IpAddr, SocketAddr},
    path::{Path, PathBuf},
};

use super::{
    Endpoint, Error, Mode,
    facts::FAMILIES,
    nft::{Element, Nft},
};
use nodefence_core::{
    cluster::Protocol,
    proxy::{endpoint_of, is_affinity},
};

/// kube-proxy's table (`kubeProxyTable`, pkg/proxy/nftables/proxier.go).
const TABLE: &str = "kube-proxy";
const LIST: &str = "list of xt_recent entries";

/// Names of what kube-proxy keeps for endpoints whose Services are known.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Affinity<'a> {
    sets: HashMap<String, Endpoint<'a>>,
    lists: HashMap<String, Endpoint<'a>>,
}

impl<'a> Affinity<'a> {
    /// Adds an endpoint.
    pub fn add(&mut self, endpoint: &Endpoint<'a>) {
        self.sets.insert(endpoint.set(), endpoint.clone());
        self.lists.insert(endpoint.list(), endpoint.clone());
    }

    /// The endpoint whose clients a set has, where it is one of `ours`, or one that was added.
    fn wanted<'s>(
        &'s self,
        set: &'s str,
        ours: &impl Fn(Protocol, SocketAddr) -> bool,
    ) -> Result<Option<Endpoint<'s>>, Unknown> {
        match endpoint_of(set) {
            Some(one) => Ok(Some(one).filter(|one| ours(one.protocol, one.socket))),
            None => self.sets.get(set).cloned().map(Some).ok_or(Unknown),
        }
    }
}

/// A set's name was too long to tell the endpoint, and its Service is not known.
struct Unknown;

/// What was deleted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Flushed {
    /// Sets and lists from which all clients were taken.
    pub emptied: usize,
    /// Sets whose name does not tell the endpoint, since it was too long, and whose Service is not known.
    pub unknown: usize,
}

/// Deletes the affinity of clients to endpoints: in nftables mode elements of kube-proxy's sets, in iptables mode those of xt_recent's
/// lists. Sets, lists and chains themselves stay. A set's name tells its endpoint; a list's is a hash, so that only those of `known` are
/// found. In the calling thread's network namespace. Blocking.
///
/// # Errors
/// [`Error`]; what is gone is none.
pub fn flush(
    mode: Mode,
    ours: &impl Fn(Protocol, SocketAddr) -> bool,
    known: &Affinity<'_>,
) -> Result<Flushed, Error> {
    match mode {
        Mode::Nftables => flush_sets(ours, known),
        Mode::Iptables => flush_lists(known.lists.keys()),
        // IPVS keeps templates of its own.
        Mode::Ipvs => Ok(Flushed::default()),
    }
}

/// Tells of each client that kube-proxy keeps for an endpoint, as [`flush`] finds it. In the calling thread's network namespace. Blocking.
///
/// # Errors
/// [`Error`]; some may have been told by then.
pub fn clients(
    mode: Mode,
    ours: &impl Fn(Protocol, SocketAddr) -> bool,
    known: &Affinity<'_>,
    mut tell: impl FnMut(&Endpoint<'_>, IpAddr),
) -> Result<(), Error> {
    match mode {
        Mode::Nftables => {
            let mut nft = Nft::open()?;
            for family in FAMILIES {
                for set in nft.sets(family, TABLE, is_affinity)? {
                    let Ok(Some(endpoint)) = known.wanted(&set, ours) else { continue };
                    nft.addresses(family, TABLE, &set)?
                        .into_iter()
                        .for_each(|client| tell(&endpoint, client));
                }
            }
        }
        Mode::Iptables => {
            for (list, endpoint) in &known.lists {
                let text = read(&file(list)).map_err(|source| Error::Io { request: LIST, source })?;
                addresses(&text.unwrap_or_default()).for_each(|client| tell(endpoint, client));
            }
        }
        // IPVS keeps templates of its own.
        Mode::Ipvs => {}
    }
    Ok(())
}

/// Has kube-proxy forget some clients, each at one endpoint, and no others. It keeps its netlink socket, since packets wait for it.
#[derive(Default)]
pub struct Forget {
    nft: Option<Nft>,
    elements: BTreeSet<Element>,
    entries: BTreeSet<(String, IpAddr)>,
}

impl Forget {
    /// Adds a client that kube-proxy keeps at an endpoint. What keeps it there is found by its name, without a look at what is kept for others.
    pub fn add(&mut self, mode: Mode, endpoint: &Endpoint<'_>, client: IpAddr) {
        match mode {
            Mode::Nftables => {
                let family = FAMILIES[usize::from(client.is_ipv6())];
                self.elements.insert((family, endpoint.set(), client));
            }
            Mode::Iptables => drop(self.entries.insert((endpoint.list(), client))),
            // IPVS keeps templates of its own.
            Mode::Ipvs => {}
        }
    }

    /// Has kube-proxy forget the clients that were added since the last time. Returns whether that took a transaction of nftables. In the
    /// network namespace of the thread that called it first. Blocking.
    ///
    /// # Errors
    /// [`Error`]; what is gone is none. What was added is not tried again.
    pub fn all(&mut self) -> Result<bool, Error> {
        let elements = mem::take(&mut self.elements);
        for (list, client) in mem::take(&mut self.entries) {
            write_list(&file(&list), &format!("-{client}"), "removal of an xt_recent entry")?;
        }
        if elements.is_empty() {
            return Ok(false);
        }
        let mut nft = match self.nft.take() {
            Some(nft) => nft,
            None => Nft::open()?,
        };
        let removed = nft.remove(TABLE, &elements)?;
        // A socket that failed is not used again: an answer may be on its way to it.
        self.nft = Some(nft);
        Ok(removed)
    }
}

fn flush_sets(ours: &impl Fn(Protocol, SocketAddr) -> bool, known: &Affinity<'_>) -> Result<Flushed, Error> {
    let mut nft = Nft::open()?;
    let mut flushed = Flushed::default();
    for family in FAMILIES {
        for set in nft.sets(family, TABLE, is_affinity)? {
            let wanted = known.wanted(&set, ours);
            flushed.unknown += usize::from(wanted.is_err());
            if matches!(wanted, Ok(Some(_))) && nft.flush(family, TABLE, &set)? {
                flushed.emptied += 1;
            }
        }
    }
    Ok(flushed)
}

/// A `/` empties a list, and a `-` takes one address out (`recent_mt_proc_write`, xt_recent.c).
fn flush_lists<'l>(lists: impl IntoIterator<Item = &'l String>) -> Result<Flushed, Error> {
    let mut flushed = Flushed::default();
    for list in lists {
        let list = file(list);
        let text = read(&list).map_err(|source| Error::Io { request: LIST, source })?;
        if text.is_some() && write_list(&list, "/", "removal of xt_recent entries")? {
            flushed.emptied += 1;
        }
    }
    Ok(flushed)
}

/// Tells xt_recent what to do with a list. False where there is no such.
fn write_list(list: &Path, what: &str, request: &'static str) -> Result<bool, Error> {
    // Opened to write only: never made.
    let written =
        fs::OpenOptions::new().write(true).open(list).and_then(|mut file| file.write_all(what.as_bytes()));
    match written {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(source) => Err(Error::Io { request, source }),
    }
}

/// A list of xt_recent; it is there while a rule of that name is.
fn file(list: &str) -> PathBuf {
    Path::new("/proc/thread-self/net/xt_recent").join(list)
}

/// What is in a list; `None` where there is no such, or nothing in it.
fn read(list: &Path) -> io::Result<Option<String>> {
    match fs::read_to_string(list) {
        Ok(text) => Ok(Some(text).filter(|text| !text.is_empty())),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

/// The addresses in a list: `src=192.0.2.1 ttl: ..`, a line for each (`recent_seq_show`, xt_recent.c).
fn addresses(list: &str) -> impl Iterator<Item = IpAddr> {
    let first = list.lines().filter_map(|line| line.split_whitespace().next());
    first.filter_map(|word| word.strip_prefix("src=")?.parse().ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As 6.12 writes them.
    #[test]
    fn a_list_has_an_address_in_each_line() {
        let list = "src=192.0.2.1 ttl: 63 last_seen: 4297421561 oldest_pkt: 1 4297421561\n\
                    src=2001:0db8:0000:0000:0000:0000:0000:0001 ttl: 0 last_seen: 4297 oldest_pkt: 2 4296, 4297\n";
        let expected: [IpAddr; 2] = ["192.0.2.1".parse().unwrap(), "2001:db8::1".parse().unwrap()];
        assert_eq!(addresses(list).collect::<Vec<_>>(), expected);
        assert_eq!(addresses("").count() + addresses("src=\nttl: 63\nsrc=x y\n").count(), 0);
    }
}
