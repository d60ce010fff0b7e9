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

/// Names of the sets and lists in which kube-proxy keeps the affinity to endpoints whose Services are known.
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

    /// The endpoint whose clients a set has, where `ours` accepts the endpoint or it was added here.
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

/// A set's name was too long to tell the endpoint, and the set's Service is not known.
struct Unknown;

/// The outcome of [`flush`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Flushed {
    /// Number of sets and lists from which all clients were deleted.
    pub emptied: usize,
    /// Number of sets whose name was too long to tell the endpoint, and whose Service is not known.
    pub unknown: usize,
}

/// Deletes the affinity of clients to endpoints: in nftables mode elements of kube-proxy's sets, in iptables mode entries of
/// xt_recent's lists. Sets, lists and chains themselves stay. A set's name tells its endpoint. A list's name is a hash, so only the
/// lists of `known` are found. Works in the calling thread's network namespace. Blocking.
///
/// # Errors
/// [`Error`]; a set or list that is gone is no error.
pub fn flush(
    mode: Mode,
    ours: &impl Fn(Protocol, SocketAddr) -> bool,
    known: &Affinity<'_>,
) -> Result<Flushed, Error> {
    match mode {
        Mode::Nftables => flush_sets(ours, known),
        Mode::Iptables => flush_lists(known.lists.keys()),
        // IPVS keeps affinity in templates of its own.
        Mode::Ipvs => Ok(Flushed::default()),
    }
}

/// Calls `tell` for each client whose affinity to an endpoint [`flush`] would delete. Works in the calling thread's network
/// namespace. Blocking.
///
/// # Errors
/// [`Error`]; `tell` may have been called for some clients before.
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
        // IPVS keeps affinity in templates of its own.
        Mode::Ipvs => {}
    }
    Ok(())
}

/// Deletes the affinity of some clients, each to one endpoint, and no other affinity. The netlink socket stays open, since packets
/// wait for the deletion.
#[derive(Default)]
pub struct Forget {
    nft: Option<Nft>,
    elements: BTreeSet<Element>,
    entries: BTreeSet<(String, IpAddr)>,
}

impl Forget {
    /// Adds a client with affinity to an endpoint. The affinity is found by its name, without a listing of other clients'.
    pub fn add(&mut self, mode: Mode, endpoint: &Endpoint<'_>, client: IpAddr) {
        match mode {
            Mode::Nftables => {
                let family = FAMILIES[usize::from(client.is_ipv6())];
                self.elements.insert((family, endpoint.set(), client));
            }
            Mode::Iptables => drop(self.entries.insert((endpoint.list(), client))),
            // IPVS keeps affinity in templates of its own.
            Mode::Ipvs => {}
        }
    }

    /// Deletes the affinity of the clients that were added since the last call. Returns whether that took a transaction of
    /// nftables. Works in the network namespace of the thread that made the first call. Blocking.
    ///
    /// # Errors
    /// [`Error`]; affinity that is gone is no error. After an error the added clients are not tried again.
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

/// Empties lists. A `/` that is written to a list's file empties the list, and a `-` before an address deletes that address
/// (`recent_mt_proc_write`, xt_recent.c).
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

/// Writes a command to the file of an xt_recent list. False where there is no such list.
fn write_list(list: &Path, what: &str, request: &'static str) -> Result<bool, Error> {
    // The file is opened to write only, and never created.
    let written =
        fs::OpenOptions::new().write(true).open(list).and_then(|mut file| file.write_all(what.as_bytes()));
    match written {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(source) => Err(Error::Io { request, source }),
    }
}

/// The file of an xt_recent list. The file exists while a rule names the list.
fn file(list: &str) -> PathBuf {
    Path::new("/proc/thread-self/net/xt_recent").join(list)
}

/// The content of a list; `None` where the list does not exist or is empty.
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

    /// Lists as Linux 6.12 writes them.
    #[test]
    fn a_list_has_an_address_in_each_line() {
        let list = "src=192.0.2.1 ttl: 63 last_seen: 4297421561 oldest_pkt: 1 4297421561\n\
                    src=2001:0db8:0000:0000:0000:0000:0000:0001 ttl: 0 last_seen: 4297 oldest_pkt: 2 4296, 4297\n";
        let expected: [IpAddr; 2] = ["192.0.2.1".parse().unwrap(), "2001:db8::1".parse().unwrap()];
        assert_eq!(addresses(list).collect::<Vec<_>>(), expected);
        assert_eq!(addresses("").count() + addresses("src=\nttl: 63\nsrc=x y\n").count(), 0);
    }
}
