//! The conntrack module against this kernel's own table.
#![expect(clippy::unwrap_used, reason = "in a test a panic is the message")]

use std::{
    net::{IpAddr, Ipv4Addr, SocketAddr, UdpSocket},
    path::Path,
    time::{Duration, Instant},
};

use anyhow::Result;
use nodefence::conntrack::{
    Answered, Backends, Blind, Conntrack, Family as Half, Flow, TcpState, Zone, blind, status,
};
use nodefence_common::{Addr, PortKey};
use nodefence_tests::{
    Cluster, Conn, Family, Netns, Options, Place,
    client::UdpConn,
    emulated,
    load::{Running, datagrams::to_ports},
    proc::thread_time,
    topology::Service,
    watch::figure,
};

const LIMIT: Duration = Duration::from_secs(5);

fn dump(ns: &Netns, half: Half, backends: Backends<()>) -> nodefence::conntrack::Dump {
    ns.run(move || {
        Conntrack::open_all_zones().unwrap().dump(half, |flow| backends.of_flow(flow).is_some()).unwrap()
    })
}

fn addresses(addresses: impl IntoIterator<Item = IpAddr>) -> Backends<()> {
    let mut backends = Backends::new();
    addresses.into_iter().for_each(|address| backends.add_address(address.into(), ()));
    backends
}

#[test]
fn translated_flows_are_listed_as_they_are() -> Result<()> {
    for masquerade in [true, false] {
        let cluster = Cluster::new(Options { masquerade, ..Options::default() })?;
        for (family, half) in [(Family::V4, Half::V4), (Family::V6, Half::V6)] {
            let service = cluster.service(Service::Web, Place::Outside, family);
            let conn = Conn::connect_to(&cluster.client, service, "node-b", LIMIT)?;
            let mut other = Conn::connect_to(&cluster.client, service, "node-c", LIMIT)?;
            let client = conn.stream.local_addr()?;

            let pod = cluster.b.pod_address(family);
            let found = dump(&cluster.a.ns, half, addresses([pod]));
            assert!(!found.incomplete && found.malformed == 0);
            assert!(found.flows.iter().all(|flow| flow.zone.is_none()), "{:?}", found.flows);
            assert!(found.seen > found.flows.len(), "flows of node C are in the table too");
            let flow = found.flows.iter().find(|flow| flow.orig.src_port == client.port()).unwrap();
            assert_eq!(flow.backend(), (pod, 8080).into());
            assert_eq!(IpAddr::from(flow.orig.src), client.ip());
            assert_eq!((IpAddr::from(flow.orig.dst), flow.orig.dst_port), (service.ip(), service.port()));
            let behind = if masquerade { cluster.a.address(family) } else { client.ip() };
            assert_eq!(IpAddr::from(flow.reply.dst), behind);
            assert_eq!(flow.tcp, Some(TcpState::Established));
            assert_eq!(flow.status & status::SRC_NAT != 0, masquerade);
            assert!(flow.status & status::DST_NAT != 0 && flow.status & status::ASSURED != 0);
            assert!(found.flows.iter().all(|flow| flow.reply.src == pod.into()));

            // Each entry is found by its reply direction and by its original direction. With the two exchanged none is found.
            let entries = found.flows.clone();
            cluster.a.ns.run(move || {
                let mut table = Conntrack::open_all_zones().unwrap();
                for flow in entries {
                    let one = table.by_reply(&flow.reply).unwrap().unwrap();
                    assert_eq!((one.orig, one.reply, one.id), (flow.orig, flow.reply, flow.id));
                    let same = table.by_original(&flow.orig).unwrap().unwrap();
                    assert_eq!((same.orig, same.reply, same.id), (flow.orig, flow.reply, flow.id));
                    assert_eq!(table.by_reply(&flow.orig).unwrap(), None);
                    assert_eq!(table.by_original(&flow.reply).unwrap(), None);
                    let nobody = nodefence::conntrack::Tuple { src_port: 1, ..flow.reply };
                    assert_eq!(table.by_reply(&nobody).unwrap(), None);
                }
            });

            // The other family's half of the table has none of these entries.
            let wrong = if half == Half::V4 { Half::V6 } else { Half::V4 };
            assert!(dump(&cluster.a.ns, wrong, addresses([pod])).flows.is_empty());

            // A host-network backend matches only flows of its port and protocol.
            let host = cluster.b.address(family);
            let at = cluster.service(Service::Host, Place::Outside, family);
            let _conn = Conn::connect_to(&cluster.client, at, "node-b", LIMIT)?;
            let listed = |port, protocol| {
                let mut backends = Backends::new();
                backends.add_port(PortKey::endpoint(host.into(), port, protocol), ());
                dump(&cluster.a.ns, half, backends).flows.len()
            };
            assert!(listed(9100, 6) > 0);
            assert_eq!((listed(9101, 6), listed(9100, 17)), (0, 0));
            other.echo(b"untouched")?;
        }
    }
    Ok(())
}

#[test]
fn one_flow_is_made_liberal_and_nothing_else_changes() -> Result<()> {
    let cluster = Cluster::new(Options::default())?;
    for (family, half) in [(Family::V4, Half::V4), (Family::V6, Half::V6)] {
        let service = cluster.service(Service::Web, Place::Outside, family);
        let mut conns = Vec::new();
        for _ in 0..3 {
            conns.push(Conn::connect_to(&cluster.client, service, "node-b", LIMIT)?);
        }
        let port = conns[0].stream.local_addr()?.port();
        let b = addresses([cluster.b.pod_address(family)]);
        let before = dump(&cluster.a.ns, half, b.clone());
        let flow = *before.flows.iter().find(|flow| flow.orig.src_port == port).unwrap();
        assert!(before.flows.iter().all(|flow| !flow.liberal));
        let made =
            cluster.a.ns.run(move || Conntrack::open_all_zones().unwrap().make_all_liberal(&[flow]).unwrap());
        assert_eq!(made, Answered { changed: 1, ..Answered::default() });

        let after = dump(&cluster.a.ns, half, b);
        assert_eq!(after.seen, before.seen, "no entry came or went");
        for flow in &after.flows {
            assert_eq!(flow.liberal, flow.orig.src_port == port, "{flow}");
        }
        let same = |flow: &Flow| Flow { liberal: false, timeout: 0, ..*flow };
        let sorted = |flows: &[Flow]| {
            let mut flows: Vec<_> = flows.iter().map(same).collect();
            flows.sort_by_key(|flow| flow.id);
            flows
        };
        assert_eq!(sorted(&after.flows), sorted(&before.flows));
        for conn in &mut conns {
            conn.echo(b"still there")?;
        }

        // An entry that is gone is no error, and no entry is made in its place.
        let gone = Flow { orig: nodefence::conntrack::Tuple { src_port: 1, ..flow.orig }, ..flow };
        let seen = dump(&cluster.a.ns, half, Backends::new()).seen;
        let made =
            cluster.a.ns.run(move || Conntrack::open_all_zones().unwrap().make_all_liberal(&[gone]).unwrap());
        assert_eq!(made, Answered { gone: 1, ..Answered::default() });
        assert_eq!(dump(&cluster.a.ns, half, Backends::new()).seen, seen);
    }
    // A UDP entry has no window, so it cannot be made liberal.
    let dns = cluster.service(Service::Dns, Place::Outside, Family::V4);
    let _udp = UdpConn::connect_to(&cluster.client, dns, "node-b", LIMIT)?;
    let b = addresses([cluster.b.pod_address(Family::V4)]);
    let flows = dump(&cluster.a.ns, Half::V4, b).flows;
    let udp = *flows.iter().find(|flow| flow.orig.protocol == 17).unwrap();
    assert_eq!(udp.tcp, None);
    let made =
        cluster.a.ns.run(move || Conntrack::open_all_zones().unwrap().make_all_liberal(&[udp]).unwrap());
    assert_eq!(made, Answered::default());
    Ok(())
}

/// Makes `count` entries: datagrams over loopback to addresses of 127.0.0.0/8, `spread` ports each.
fn fill(ns: &Netns, count: u32, spread: u16) {
    // With the default timeout the first entries lapse on an emulated processor before the last one is made.
    ns.sysctl("netfilter/nf_conntrack_udp_timeout", "600").unwrap();
    ns.run(move || {
        let socket = UdpSocket::bind(("127.0.0.1", 40_000)).unwrap();
        for at in 0..count {
            let [_, a, b, c] = (at / u32::from(spread) + 256).to_be_bytes();
            let port = 10_000 + (at % u32::from(spread)) as u16;
            // The port has no listener: the second datagram may report that.
            let _ = socket.send_to(b"x", (Ipv4Addr::new(127, a, b, c), port));
        }
    });
}

#[test]
fn a_large_table_streams_by() -> Result<()> {
    let ns = Netns::new("large-table")?;
    ns.nft("table ip t { chain c { type filter hook output priority 0; ct state invalid drop; }; }")?;
    fill(&ns, 110_000, 1_000);
    // Processor time is measured, since other programs may have the processors meanwhile.
    let (found, took) = ns.run(|| {
        let wanted = addresses([IpAddr::from([127, 0, 1, 7])]);
        let start = thread_time().unwrap();
        let found = Conntrack::open_all_zones()
            .unwrap()
            .dump(Half::V4, |flow| wanted.of_flow(flow).is_some())
            .unwrap();
        (found, thread_time().unwrap() - start)
    });
    println!("{} entries, {} kept, {took:?} of processor time", found.seen, found.flows.len());
    assert!(found.seen >= 110_000, "{}", found.seen);
    assert_eq!(found.flows.len(), 1_000);
    assert!(found.flows.capacity() < 10_000, "unwanted entries are held in memory");
    figure("processor time to list a large table", took.as_secs_f64() * 1e3, "ms");
    // Emulated processors are some ten times as slow.
    let limit = Duration::from_secs(if emulated() { 30 } else { 1 });
    assert!(took < limit, "{took:?}");
    Ok(())
}

#[test]
fn one_listing_serves_all_who_wait_for_it() -> Result<()> {
    let ns = Netns::new("shared-listing")?;
    ns.nft("table ip t { chain c { type filter hook output priority 0; ct state invalid drop; }; }")?;
    fill(&ns, 20_000, 1_000);
    ns.run(|| {
        let of = |last| {
            let wanted = addresses([IpAddr::from([127, 0, 1, last])]);
            move |flow: &Flow| wanted.of_flow(flow).is_some()
        };
        let mut table = Conntrack::open_all_zones().unwrap();
        let found = table.dump_past(Half::V4, &mut [of(3), of(200), of(5)]).unwrap();
        let kept: Vec<usize> = found.iter().map(|dump| dump.flows.len()).collect();
        assert_eq!(kept, [1_000, 0, 1_000]);
        for (dump, last) in found.iter().zip([3, 200, 5]) {
            assert!(
                dump.flows.iter().all(|flow| IpAddr::from(flow.reply.src) == Ipv4Addr::new(127, 0, 1, last))
            );
            assert!(dump.seen >= 20_000 && !dump.incomplete && dump.attempts >= 1, "{}", dump.seen);
        }
    });
    Ok(())
}

#[test]
fn a_table_that_changes_is_listed_all_the_same() -> Result<()> {
    let ns = Netns::new("busy-table")?;
    ns.nft("table ip t { chain c { type filter hook output priority 0; ct state invalid drop; }; }")?;
    fill(&ns, 20_000, 1_000);
    ns.run(|| {
        let mut churn = Running::default();
        let socket = SocketAddr::from(([127, 0, 0, 1], 40_001));
        churn.start(move |stop| to_ports(stop, socket, Ipv4Addr::new(127, 9, 9, 9), 20_000..22_000));
        let steady = addresses([IpAddr::from([127, 0, 1, 7])]);
        let mut conntrack = Conntrack::open_all_zones().unwrap();
        let begun = Instant::now();
        while begun.elapsed() < Duration::from_secs(1) {
            let found = conntrack.dump(Half::V4, |flow| steady.of_flow(flow).is_some()).unwrap();
            assert!(!found.incomplete && found.malformed == 0);
            assert_eq!(found.flows.len(), 1_000, "not each entry is listed once");
        }
        assert!(churn.finish().unwrap()[0] > 0, "no other entry came or went");
    });
    Ok(())
}

#[test]
fn zones_are_told() -> Result<()> {
    let ns = Netns::new("zones")?;
    ns.nft(
        "table ip t {
            chain raw { type filter hook output priority raw; ip daddr 127.0.1.7 ct zone set 42; }
            chain c { type filter hook output priority 0; ct state invalid drop; }
        }",
    )?;
    fill(&ns, 2_000, 1_000);
    let found = dump(&ns, Half::V4, addresses([IpAddr::from([127, 0, 1, 7]), IpAddr::from([127, 0, 1, 1])]));
    assert!(!found.flows.is_empty() && found.flows.iter().all(|flow| flow.zone.is_none()));
    ns.run(|| {
        let socket = UdpSocket::bind(("127.0.0.1", 40_002)).unwrap();
        for port in 1..=5 {
            let _ = socket.send_to(b"x", (Ipv4Addr::new(127, 0, 1, 7), port));
        }
    });
    let found = dump(&ns, Half::V4, addresses([IpAddr::from([127, 0, 1, 7])]));
    assert_eq!(found.flows.len(), 5);
    assert!(found.flows.iter().all(|flow| flow.zone == Some(Zone::Both(42))));
    assert_eq!(found.flows[0].reply.src, Addr::v4([127, 0, 1, 7]));
    Ok(())
}

#[test]
fn an_unused_table_is_empty() -> Result<()> {
    let found = dump(&Netns::new("empty")?, Half::V6, addresses([IpAddr::from([127, 0, 0, 1])]));
    assert_eq!((found.seen, found.flows.len(), found.incomplete), (0, 0, false));
    Ok(())
}

#[test]
fn what_hides_flows_is_told() -> Result<()> {
    let ns = Netns::new("blind")?;
    // If IPVS is loaded, each new namespace begins with `vs/conntrack` off.
    if ns.run(|| Path::new("/proc/sys/net/ipv4/vs/conntrack").exists()) {
        assert!(ns.run(blind).contains(&Blind::IpvsWithout));
        ns.sysctl("ipv4/vs/conntrack", "1")?;
    }
    assert_eq!(ns.run(blind), [Blind::Empty]);
    ns.nft("table ip t { chain c { type filter hook output priority 0; ct state invalid drop; }; }")?;
    fill(&ns, 1, 1);
    assert_eq!(ns.run(blind), []);
    ns.nft(
        "table inet exempt {
            chain other { type filter hook output priority 0; ip daddr 192.0.2.1 counter drop; }
            chain raw { type filter hook prerouting priority raw; udp dport 53 notrack; tcp dport 80 notrack; }
        }",
    )?;
    assert_eq!(ns.run(blind), [Blind::NoTrack("exempt raw".to_owned())]);
    Ok(())
}
