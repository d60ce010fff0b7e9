//! Deletes the conntrack entries of backends on this kernel, by dump and by filter. Exactly these entries must go.
#![expect(clippy::unwrap_used, reason = "in a test a panic is the message")]

mod meanwhile;
mod zones;

use std::{
    collections::BTreeSet,
    net::{IpAddr, SocketAddr, TcpListener, TcpStream, UdpSocket},
    sync::Arc,
    time::Instant,
};

use anyhow::Result;
use nodefence::conntrack::{
    Backends, ByFilter, Conntrack, Deleted, Family, Flow, List as _, Protocols, Zone, by_filter, of_backends,
};
use nodefence_common::PortKey;
use nodefence_tests::{Netns, kernel};

/// Pods of the flagged node and of another one, and the flagged node's own address; all on loopback.
const V4: [&str; 3] = ["127.0.1.7", "127.0.1.8", "127.0.2.1"];
const V6: [&str; 3] = ["fd00::7", "fd00::8", "fd00:2::1"];

const TCP: u8 = 6;
const UDP: u8 = 17;
const SCTP: u8 = 132;

/// A zone other than the default one.
const ZONE: u16 = 42;

/// Deletion by a dump and a request for each entry.
const BY_DUMP: ByFilter = ByFilter { v4: false, v6: false };

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

/// A namespace where conntrack tracks flows over loopback, some of them in zones.
fn tracked(label: &str) -> Result<Netns> {
    let ns = Netns::new(label)?;
    for table in ["ip", "ip6"] {
        ns.nft(&format!(
            "table {table} t {{
                chain raw {{
                    type filter hook output priority raw;
                    udp dport 7000-7099 ct zone set 42
                    udp dport 7100-7199 ct original zone set 43
                    udp dport 7200-7299 ct reply zone set 44
                }}
                chain c {{ type filter hook output priority 0; ct state invalid drop; }}
            }}"
        ))?;
    }
    let addresses = V6.iter().chain(&["fd00::1"]).map(|addr| format!("addr add {addr}/128 dev lo nodad"));
    ns.ip(&addresses.collect::<Vec<_>>().join("\n"))?;
    // With the default timeout the first entries lapse on an emulated processor before the last one is made.
    ns.sysctl("netfilter/nf_conntrack_udp_timeout", "600")?;
    Ok(ns)
}

/// Deletes entries by filter where that is possible, and the rest by a listing, as the agent does. Called in the namespace.
fn delete(
    backends: &Backends<()>,
    which: Protocols,
    by_filter: ByFilter,
    may: impl FnMut(&mut Vec<Flow>) -> bool,
) -> Deleted {
    delete_in(0, backends, which, by_filter, may)
}

/// As [`delete`], in this zone.
fn delete_in(
    zone: u16,
    backends: &Backends<()>,
    which: Protocols,
    by_filter: ByFilter,
    mut may: impl FnMut(&mut Vec<Flow>) -> bool,
) -> Deleted {
    let mut conntrack = Conntrack::open(zone).unwrap();
    let by_filter = conntrack.delete_by_filter(backends, which, by_filter, || may(&mut Vec::new()));
    let (mut done, rest) = by_filter.unwrap();
    if done.stopped {
        return done;
    }
    for dump in conntrack.list(of_backends(&Arc::new(rest), Some(which))).unwrap() {
        done.add(conntrack.delete_listed(&dump, &mut may).unwrap());
        if done.stopped {
            break;
        }
    }
    done
}

/// The entries of both halves of the table. Called in the namespace.
fn entries() -> Vec<Flow> {
    let mut conntrack = Conntrack::open_all_zones().unwrap();
    [Family::V4, Family::V6]
        .iter()
        .flat_map(|family| {
            let dump = conntrack.dump(*family, |_| true).unwrap();
            assert!(!dump.incomplete && dump.malformed == 0);
            dump.flows
        })
        .collect()
}

/// The identities of entries. An entry's identity stays the same while the entry exists.
fn names<'a>(flows: impl IntoIterator<Item = &'a Flow>) -> BTreeSet<String> {
    flows.into_iter().map(|flow| format!("{flow} {:?} {:#x}", flow.zone, flow.id)).collect()
}

/// Sends datagrams to each port of a range, without a listener.
fn udp(to: IpAddr, ports: std::ops::Range<u16>) {
    let local: IpAddr = if to.is_ipv4() { ip("127.0.0.1") } else { ip("fd00::1") };
    // The socket is not connected, so it does not get the error that a datagram causes.
    let socket = UdpSocket::bind((local, 0)).unwrap();
    for port in ports {
        socket.send_to(b"x", (to, port)).unwrap();
    }
}

/// Connections to one port, and their accepted ends.
fn tcp(to: IpAddr, port: u16, count: usize) -> (TcpListener, Vec<TcpStream>) {
    let listener = TcpListener::bind((to, port)).unwrap();
    let streams = (0..count).map(|_| TcpStream::connect((to, port)).unwrap()).collect();
    (listener, streams)
}

/// Makes an SCTP entry as the kernel would, by the tool `conntrack`, since not every kernel here has SCTP.
fn sctp(ns: &Netns, to: &str, port: u16) -> Result<()> {
    sctp_in(ns, to, port, "")
}

/// As [`sctp`], with options that name a zone.
fn sctp_in(ns: &Netns, to: &str, port: u16, zone: &str) -> Result<()> {
    let from = if ip(to).is_ipv4() { "127.0.0.1" } else { "fd00::1" };
    ns.exec(&format!(
        "conntrack -I -p sctp -s {from} -d {to} --sport 4000 --dport {port} --state ESTABLISHED \
         --orig-vtag 1 --reply-vtag 2 --timeout 600 {zone}"
    ))?;
    Ok(())
}

/// Fills the table with every kind of flow to every address. The connections stay open until the returned sockets are dropped.
fn fill(ns: &Netns, addresses: [&str; 3]) -> Result<Vec<(TcpListener, Vec<TcpStream>)>> {
    let [pod, other, host] = addresses;
    for (to, port) in [(pod, 53), (other, 53), (host, 53), (host, 54)] {
        sctp(ns, to, port)?;
    }
    let [pod, other, host] = addresses.map(ip);
    Ok(ns.run(move || {
        for to in [pod, other] {
            // The flows to ports 7000 to 7299 are in zones.
            udp(to, 5_500..7_500);
        }
        // DNS, the outer packets of tunnels, and another server of the node.
        for port in [53, 54, 4789, 8472, 51820] {
            udp(host, port..port + 1);
        }
        let mut open = vec![tcp(pod, 8080, 40), tcp(other, 8080, 40)];
        // Port 9100 is a host-network backend. Ports 22 and 10250 are ssh and the kubelet.
        open.extend([9100, 22, 10_250].map(|port| tcp(host, port, 20)));
        open
    }))
}

/// The backends of the flagged node, of one family or of both: a pod, and host-network backends of each protocol.
fn flagged(families: &[[&str; 3]]) -> Backends<()> {
    let mut backends = Backends::new();
    for addresses in families {
        backends.add_address(ip(addresses[0]).into(), ());
        for (port, protocol) in [(9100, TCP), (53, UDP), (53, SCTP)] {
            backends.add_port(PortKey::endpoint(ip(addresses[2]).into(), port, protocol), ());
        }
    }
    backends
}

/// Whether a flow must be deleted. The rule is written anew here, apart from the code under test.
fn doomed(flow: &Flow, addresses: [&str; 3], which: Protocols) -> bool {
    flow.zone.is_none() && is_of(flow, addresses, which)
}

/// As [`doomed`], in any zone.
fn is_of(flow: &Flow, addresses: [&str; 3], which: Protocols) -> bool {
    let from = SocketAddr::from((IpAddr::from(flow.reply.src), flow.reply.src_port));
    let protocol = flow.reply.protocol;
    let ours = from.ip() == ip(addresses[0])
        || (from.ip() == ip(addresses[2])
            && [(9100, TCP), (53, UDP), (53, SCTP)].contains(&(from.port(), protocol)));
    let meant = match which {
        Protocols::All => true,
        Protocols::Tcp => protocol == TCP,
        Protocols::Datagrams => protocol == UDP || protocol == SCTP,
    };
    ours && meant
}

/// What this kernel deletes by filter, tried in a namespace of its own.
fn found_out() -> Result<ByFilter> {
    let found = Netns::new("by-filter")?.run(by_filter).unwrap();
    println!("conntrack entries are deleted {found}");
    Ok(found)
}

/// Deletes datagrams' entries first and then TCP's, as the agent does for a flagged node. After each step exactly the entries of that step are gone.
fn exactly(label: &str, by_filter: ByFilter) -> Result<()> {
    let ns = tracked(label)?;
    let open = [fill(&ns, V4)?, fill(&ns, V6)?];
    let mut before = ns.run(entries);
    // For each of two families there are 2,000 datagrams to each of two pods, and some more flows.
    assert!(before.len() > 8_200, "{}", before.len());
    for zone in [Zone::Both(42), Zone::Original(43), Zone::Reply(44)] {
        let count = before.iter().filter(|flow| flow.zone == Some(zone)).count();
        assert_eq!(count, 400, "{zone:?}");
    }
    for which in [Protocols::Datagrams, Protocols::Tcp] {
        let backends = flagged(&[V4, V6]);
        let start = Instant::now();
        let done = ns.run(move || delete(&backends, which, by_filter, |_| true));
        let took = start.elapsed();
        let after = ns.run(entries);
        let gone = |flow: &&Flow| doomed(flow, V4, which) || doomed(flow, V6, which);
        let (dead, left): (Vec<Flow>, Vec<Flow>) = before.iter().partition(gone);
        println!("{which:?}: {} of {} entries in {took:?}: {done:?}", dead.len(), before.len());
        assert_eq!(names(&after), names(&left), "{which:?}: left after the deletion, and expected");
        assert_eq!((done.refused, done.incomplete), (0, false));
        let by_dump = |flow: &&Flow| {
            !if flow.orig.src.as_v4().is_some() { by_filter.v4 } else { by_filter.v6 }
                || (flow.reply.protocol == SCTP && [V4[2], V6[2]].map(ip).contains(&flow.reply.src.into()))
        };
        assert_eq!(done.deleted, dead.iter().filter(by_dump).count(), "{done:?}");
        match which {
            // 300 of a pod's 2,000 are in zones.
            Protocols::Datagrams => assert_eq!(dead.len(), 2 * (1_700 + 1 + 2)),
            Protocols::Tcp => assert_eq!(dead.len(), 2 * (40 + 20)),
            Protocols::All => unreachable!(),
        }
        before = left;
    }
    drop(open);
    Ok(())
}

#[test]
fn by_dump_exactly_the_backends_entries_go() -> Result<()> {
    exactly("delete-dump", BY_DUMP)
}

#[test]
fn by_filter_exactly_the_backends_entries_go_or_none() -> Result<()> {
    let found = found_out()?;
    // Commit 1ef7f50ccc6e came with kernel 6.12, and no stable branch has it.
    assert_eq!(found.v4, kernel::version()? >= (6, 12));
    if found == BY_DUMP {
        return refused_and_nothing_deleted();
    }
    exactly("delete-filter", found)
}

/// A kernel that has no deletion by filter refuses the request and deletes nothing.
fn refused_and_nothing_deleted() -> Result<()> {
    let ns = tracked("delete-refused")?;
    let open = [fill(&ns, V4)?, fill(&ns, V6)?];
    let before = ns.run(entries);
    let (done, after) = ns.run(|| {
        let backends = flagged(&[V4, V6]);
        let both = ByFilter { v4: true, v6: true };
        let done = delete(&backends, Protocols::Tcp, both, |_| true);
        (done, entries())
    });
    assert_eq!(done, Deleted { refused: 4, ..Deleted::default() });
    assert_eq!(names(&after), names(&before));
    drop(open);
    Ok(())
}
