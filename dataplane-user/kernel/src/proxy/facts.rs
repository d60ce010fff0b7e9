use std::{fs, io, net::SocketAddr, path::Path};

use nodefence_core::{
    Family,
    proxy::{Mode, Replacement},
};

use super::{
    http::{METRICS, body, get},
    legacy,
    nft::Nft,
};

/// Bytes of the longest answer that may name a mode.
const LONGEST: usize = 4096;
/// Families of nftables' tables (`NFPROTO_IPV4`, `NFPROTO_IPV6`).
pub(super) const FAMILIES: [u8; 2] = [libc::AF_INET as u8, libc::AF_INET6 as u8];

/// The reply of kube-proxy about its mode.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum ModeReply {
    /// The named mode.
    Said(String),
    /// No mode, for this reason.
    Silent(String),
}

/// The facts by which kube-proxy's mode is judged.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Facts {
    /// The reply at kube-proxy's port.
    pub answer: ModeReply,
    /// The device that holds the virtual addresses in IPVS mode exists.
    pub kube_ipvs0: bool,
    /// nftables has a table `kube-proxy`.
    pub table: bool,
    /// The nat table has a chain `KUBE-SERVICES`, by iptables-nft or by iptables-legacy. It is looked for only where the judgement
    /// depends on it.
    pub chains: bool,
    /// The replacement that forwards Services in kube-proxy's place.
    pub replacement: Option<Replacement>,
}

/// The replacement that forwards Services in kube-proxy's place, by the devices of the calling thread's network namespace. Takes
/// some microseconds.
pub fn replacement() -> Option<Replacement> {
    Replacement::by_devices(has_device)
}

fn has_device(name: &str) -> bool {
    nix::net::if_::if_nametoindex(name).is_ok()
}

impl Facts {
    /// Gathers the facts in the calling thread's network namespace. Blocking, a third of a second at most. What cannot be read
    /// counts as missing. Where the port names another mode than iptables and the trace of that mode is there, iptables chains are
    /// not looked for: chains of iptables-legacy are read with their whole table.
    pub fn gather() -> Self {
        Self::gather_from(METRICS)
    }

    /// As [`Self::gather`], from a kube-proxy that answers at this address.
    pub fn gather_from(metrics: SocketAddr) -> Self {
        let answer = ask(metrics).map_or_else(|error| ModeReply::Silent(error.to_string()), ModeReply::Said);
        let kube_ipvs0 = has_device("kube-ipvs0");
        let mut nft = Nft::open().ok();
        let mut any = |look: fn(&mut Nft, u8) -> bool| {
            nft.as_mut().is_some_and(|nft| FAMILIES.iter().any(|family| look(nft, *family)))
        };
        let table = any(|nft, family| nft.has_table(family, "kube-proxy"));
        let mut facts = Self { answer, kube_ipvs0, table, chains: false, replacement: replacement() };
        if !facts.told().is_some_and(|mode| facts.has_trace(mode)) {
            facts.chains = any(|nft, family| nft.has_chain(family, "nat", "KUBE-SERVICES")) || legacy_chain();
        }
        facts
    }

    /// The mode that kube-proxy's port names; `None` where it names none, or one that nodefence does not know.
    pub(super) fn told(&self) -> Option<Mode> {
        let ModeReply::Said(word) = &self.answer else { return None };
        [Mode::Ipvs, Mode::Iptables, Mode::Nftables].into_iter().find(|mode| mode.to_string() == *word)
    }

    /// Whether the trace is there that kube-proxy leaves in this mode alone. (In IPVS mode kube-proxy has the chains too.)
    pub(super) fn has_trace(&self, mode: Mode) -> bool {
        match mode {
            Mode::Ipvs => self.kube_ipvs0,
            Mode::Iptables => self.chains,
            Mode::Nftables => self.table,
        }
    }
}

/// Whether iptables-legacy has the chain. The kernel is asked only where it has the table: else it would load the table's module.
fn legacy_chain() -> bool {
    let has_nat = |file: &str| {
        let path = Path::new("/proc/thread-self/net").join(file);
        fs::read_to_string(path).is_ok_and(|names| names.lines().any(|name| name == "nat"))
    };
    let files = [("ip_tables_names", Family::V4), ("ip6_tables_names", Family::V6)];
    files.into_iter().any(|(file, family)| {
        has_nat(file) && legacy::has_chain(family, "nat", "KUBE-SERVICES").unwrap_or(false)
    })
}

fn ask(metrics: SocketAddr) -> io::Result<String> {
    let answer = get(metrics, "/proxyMode", LONGEST)?;
    mode(&answer).ok_or_else(|| io::Error::other(format!("no mode at http://{metrics}/proxyMode")))
}

/// The mode that an HTTP answer names.
fn mode(answer: &[u8]) -> Option<String> {
    let mode = body(answer)?.trim();
    let word = !mode.is_empty() && mode.len() <= 32 && mode.bytes().all(|byte| byte.is_ascii_alphanumeric());
    word.then(|| mode.to_ascii_lowercase())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_good_answer_tells_a_mode() {
        let of = |text: &str| mode(text.as_bytes());
        assert_eq!(
            of("HTTP/1.0 200 OK\r\nContent-Type: text/plain\r\n\r\nnftables"),
            Some("nftables".into())
        );
        assert_eq!(of("HTTP/1.1 200 OK\r\nX: y\r\n\r\nipvs\n"), Some("ipvs".into()));
        for bad in [
            "",
            "HTTP/1.0 404 Not Found\r\n\r\nnftables",
            "HTTP/1.0 200 OK\r\n\r\n",
            "HTTP/1.0 200 OK\r\n\r\n<html>nftables</html>",
            "HTTP/1.0 200 OK\r\nContent-Length: 4",
            "nftables",
        ] {
            assert_eq!(of(bad), None, "{bad:?}");
        }
        assert_eq!(mode(&[0xff, 0xfe]), None);
    }
}
