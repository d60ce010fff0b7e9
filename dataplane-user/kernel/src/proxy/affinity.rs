use std::{
    collections::HashSet,
    fs,
    io::{self, Write as _},
    net::SocketAddr,
    path::Path,
};

use super::{Endpoint, Error, Mode, facts::FAMILIES, nft::Nft};
use nodefence_core::{
    cluster::Protocol,
    proxy::{endpoint_of, is_affinity},
};

/// kube-proxy's table (`kubeProxyTable`, pkg/proxy/nftables/proxier.go).
const TABLE: &str = "kube-proxy";

/// Names of what kube-proxy keeps for endpoints whose Services are known.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Affinity {
    sets: HashSet<String>,
    lists: Vec<String>,
}

impl Affinity {
    /// Adds an endpoint.
    pub fn add(&mut self, endpoint: &Endpoint<'_>) {
        self.sets.insert(endpoint.set());
        self.lists.push(endpoint.list());
    }
}

/// What was let go.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Flushed {
    /// Sets and lists from which all clients were taken.
    pub emptied: usize,
    /// Sets whose name does not tell the endpoint, since it was too long, and whose Service is not known.
    pub unknown: usize,
}

/// Takes the clients out of what kube-proxy keeps for endpoints: in nftables mode elements of its sets, in iptables mode those of xt_recent's lists. Sets,
/// lists and chains themselves stay. A set's name tells its endpoint; a list's is a hash, so that only those of `known` are found. In the
/// calling thread's network namespace. Blocking.
///
/// # Errors
/// [`Error`]; what is gone is none.
pub fn flush(
    mode: Mode,
    ours: &impl Fn(Protocol, SocketAddr) -> bool,
    known: &Affinity,
) -> Result<Flushed, Error> {
    match mode {
        Mode::Nftables => flush_sets(ours, known),
        Mode::Iptables => flush_lists(&known.lists),
        // IPVS keeps templates of its own.
        Mode::Ipvs => Ok(Flushed::default()),
    }
}

/// Has kube-proxy forget the clients of one endpoint at a time. Keeps its netlink socket: for where a packet waits for it.
#[derive(Default)]
pub struct Forget {
    nft: Option<Nft>,
}

impl Forget {
    /// Takes the clients out of what kube-proxy keeps for this endpoint, found by its name, without a look at what it keeps for others. Whether
    /// there were any. In the network namespace of the thread that called it first. Blocking.
    ///
    /// # Errors
    /// [`Error`]; what is gone is none.
    pub fn clients_of(&mut self, mode: Mode, endpoint: &Endpoint<'_>) -> Result<bool, Error> {
        match mode {
            Mode::Nftables => {
                let mut nft = match self.nft.take() {
                    Some(nft) => nft,
                    None => Nft::open()?,
                };
                let family = FAMILIES[usize::from(endpoint.socket.is_ipv6())];
                let flushed = nft.flush(family, TABLE, &endpoint.set())?;
                // One that failed is not used again: an answer may be on its way to it.
                self.nft = Some(nft);
                Ok(flushed)
            }
            Mode::Iptables => flush_lists(&[endpoint.list()]).map(|flushed| flushed.emptied != 0),
            // IPVS keeps templates of its own.
            Mode::Ipvs => Ok(false),
        }
    }
}

fn flush_sets(ours: &impl Fn(Protocol, SocketAddr) -> bool, known: &Affinity) -> Result<Flushed, Error> {
    let mut nft = Nft::open()?;
    let mut flushed = Flushed::default();
    for family in FAMILIES {
        for set in nft.sets(family, TABLE, is_affinity)? {
            let wanted = match endpoint_of(&set) {
                Some((protocol, socket)) => ours(protocol, socket),
                None if known.sets.contains(&set) => true,
                None => {
                    flushed.unknown += 1;
                    false
                }
            };
            if wanted && nft.flush(family, TABLE, &set)? {
                flushed.emptied += 1;
            }
        }
    }
    Ok(flushed)
}

/// A `/` empties a list (`recent_mt_proc_write`, xt_recent.c); a file is there while a rule of that name is.
fn flush_lists(lists: &[String]) -> Result<Flushed, Error> {
    let folder = Path::new("/proc/thread-self/net/xt_recent");
    let mut flushed = Flushed::default();
    for list in lists {
        match empty(&folder.join(list)) {
            Ok(had) => flushed.emptied += usize::from(had),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(source) => return Err(Error::Io { request: "removal of xt_recent entries", source }),
        }
    }
    Ok(flushed)
}

/// Whether there was anything in it.
fn empty(list: &Path) -> io::Result<bool> {
    if fs::read(list)?.is_empty() {
        return Ok(false);
    }
    // Opened to write only: never made.
    fs::OpenOptions::new().write(true).open(list)?.write_all(b"/")?;
    Ok(true)
}
