//! kube-proxy's names for the sets and lists that it has for an endpoint of a Service port.
use std::{
    fmt::Write as _,
    net::{IpAddr, Ipv6Addr, SocketAddr},
};

use data_encoding::BASE32;
use sha2::{Digest as _, Sha256};

use crate::cluster::Protocol;

const SET_PREFIX: &str = "affinity-";
const LIST_PREFIX: &str = "KUBE-SEP-";
/// `chainNameBaseLengthMax`: nftables' 256 less kube-proxy's longest prefix, 16.
const LONGEST: usize = 240;
/// Characters of the hash before a name, and in a list's name.
const HASH_LEN: usize = 8;
const LIST_HASH_LEN: usize = 16;

/// One endpoint of one port of a Service.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Endpoint<'a> {
    /// As in `default/web`.
    pub service: &'a str,
    /// The Service port's name; may be empty.
    pub port: &'a str,
    /// Its protocol.
    pub protocol: Protocol,
    /// Where the endpoint takes the traffic.
    pub socket: SocketAddr,
}

impl Endpoint<'_> {
    /// The nftables set of the endpoint's clients (`servicePortEndpointChainNameBase`, pkg/proxy/nftables/proxier.go, v1.36).
    pub fn set(&self) -> String {
        let Self { service, port, protocol, socket } = self;
        let ip = socket.ip().to_string().replace(':', ".");
        let name = format!("{service}/{protocol}/{port}__{ip}/{}", socket.port());
        let mut base = format!("{}-{name}", hash(&name, HASH_LEN));
        if base.len() > LONGEST {
            // Names of Services and ports are ASCII.
            base = base.chars().take(LONGEST - 3).collect();
            base.push_str("...");
        }
        format!("{SET_PREFIX}{base}")
    }

    /// The xt_recent list of the endpoint's clients (`servicePortEndpointChainName`, pkg/proxy/iptables/proxier.go, v1.36).
    pub fn list(&self) -> String {
        let Self { service, port, protocol, socket } = self;
        let mut name = (*service).to_owned();
        if !port.is_empty() {
            let _infallible = write!(name, ":{port}");
        }
        let _infallible = write!(name, "{protocol}{socket}");
        format!("{LIST_PREFIX}{}", hash(&name, LIST_HASH_LEN))
    }
}

fn hash(name: &str, len: usize) -> String {
    let mut encoded = BASE32.encode(&Sha256::digest(name));
    encoded.truncate(len);
    encoded
}

/// Whether a set is one of those that hold affinity.
pub fn is_affinity(set: &str) -> bool {
    set.starts_with(SET_PREFIX)
}

/// The endpoint of a set. `None` for a name that kube-proxy would not give, and for one that it had to cut off.
pub fn endpoint_of(set: &str) -> Option<Endpoint<'_>> {
    let (mark, name) = set.strip_prefix(SET_PREFIX)?.split_once('-')?;
    if hash(name, HASH_LEN) != mark {
        return None;
    }
    let (port_of_service, endpoint) = name.rsplit_once("__")?;
    let (rest, port) = port_of_service.rsplit_once('/')?;
    let (service, protocol) = rest.rsplit_once('/')?;
    let protocol = protocol.parse().ok()?;
    // A Service's name is a namespace and a name, and nothing else.
    if service.split('/').count() != 2 {
        return None;
    }
    let (ip, number) = endpoint.split_once('/')?;
    let v6 = || ip.replace('.', ":").parse::<Ipv6Addr>().map(IpAddr::from);
    let ip = ip.parse::<IpAddr>().or_else(|_| v6()).ok()?;
    let socket = SocketAddr::new(ip, number.parse().ok()?);
    Some(Endpoint { service, port, protocol, socket })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn endpoint<'a>(service: &'a str, port: &'a str, protocol: Protocol, socket: &str) -> Endpoint<'a> {
        Endpoint { service, port, protocol, socket: socket.parse().unwrap() }
    }

    /// Names that kube-proxy's own tests expect: pkg/proxy/nftables/proxier_test.go and pkg/proxy/iptables/proxier_test.go, v1.36.
    #[test]
    fn names_are_kube_proxy_s() {
        let web = endpoint("ns1/svc1", "p80", Protocol::Tcp, "10.180.0.1:80");
        assert_eq!(web.set(), "affinity-5OJB2KTY-ns1/svc1/tcp/p80__10.180.0.1/80");
        assert_eq!(web.list(), "KUBE-SEP-SXIVWICOYRO3J4NJ");
        assert_eq!(endpoint_of(&web.set()), Some(web));
    }

    #[test]
    fn a_name_leads_back_to_its_endpoint() {
        for socket in ["10.244.2.7:53", "[fd00:244::7]:53", "[::1]:1", "[fd00:1:2:3:4:5:6:7]:65535"] {
            for (port, protocol) in [("", Protocol::Udp), ("dns", Protocol::Sctp), ("a-b", Protocol::Tcp)] {
                let one = endpoint("kube-system/kube-dns", port, protocol, socket);
                let set = one.set();
                assert_eq!(endpoint_of(&set), Some(one), "{set}");
            }
        }
        let good = endpoint("ns1/svc1", "p80", Protocol::Tcp, "10.180.0.1:80").set();
        for bad in [
            &good[1..],
            &good[..good.len() - 1],
            &good.replace("5OJB2KTY", "5OJB2KTX"),
            &good.replace("affinity-", "endpoint-"),
            &good.replace("10.180.0.1", "10.180.0.2"),
            "affinity-",
            "",
        ] {
            assert_eq!(endpoint_of(bad), None, "{bad}");
        }
    }

    #[test]
    fn a_name_that_is_too_long_is_cut_off() {
        let (long, port) = ("n".repeat(63) + "/" + &"s".repeat(63), "p".repeat(63));
        let one = endpoint(&long, &port, Protocol::Sctp, "[2001:db8:1111:2222:3333:4444:5555:6666]:65535");
        let set = one.set();
        assert_eq!((set.len(), &set[set.len() - 3..]), (SET_PREFIX.len() + LONGEST, "..."));
        assert!(is_affinity(&set) && endpoint_of(&set).is_none());
        let fits = endpoint(&long, &port, Protocol::Sctp, "10.1.2.3:65535");
        assert_eq!(endpoint_of(&fits.set()), Some(fits));
    }

    proptest! {
        #[test]
        fn any_name_is_read_without_a_panic(set in "affinity-\\PC{0,80}") {
            let _ = endpoint_of(&set);
        }
    }
}
