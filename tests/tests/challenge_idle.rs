//! Challenges to real clients: a client that waits for an answer of a flagged node is reset, although the client sends nothing by itself.
#![expect(clippy::unwrap_used, reason = "in a test a panic is the message")]

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result};
use nodefence::{
    conntrack::{Conntrack, List as _, of_backends},
    dataplane::{
        Injector, Interface, LinkLayer,
        challenge::{Entry, Manner, Report, Surroundings, challenge, inject},
        interfaces,
        probe::Findings,
    },
};
use nodefence_common::Addr;
use nodefence_tests::{
    Cluster, Conn, Family, Options, Outcome, Overlay, Place,
    client::UdpConn,
    cut::Cut,
    promises::FREED,
    topology::{NODE_PORT_OF_ITS_OWN, Service},
    watch,
    ways::next_hop,
};

const LIMIT: Duration = Duration::from_secs(10);

/// Sends challenges through the attached devices.
struct Challenger {
    injector: Injector,
    devices: Vec<Interface>,
}

impl Surroundings for Challenger {
    fn entry(&mut self, backend: Addr) -> Option<Entry> {
        let hop = next_hop(backend.into()).unwrap()?;
        let device = self.devices.iter().find(|device| device.ifindex == hop.ifindex)?;
        let mac = device.mac.filter(|_| device.link_layer() == Ok(LinkLayer::L2));
        Some(Entry { ifindex: hop.ifindex, mac })
    }

    fn inject(&mut self, frames: &[(u32, Vec<u8>)]) -> Vec<bool> {
        inject(&self.injector, frames).0
    }

    fn go_on(&self, _node: usize) -> bool {
        true
    }
}

/// Challenges the idle clients of node B, as the agent does on a flag.
fn challenge_node_b(cluster: &Cluster, cut: &Cut, manner: Manner) -> Report {
    let backends = cut.backends.clone();
    let attached = cut.attached.clone();
    let injector = cut.dataplane.devices.injector().unwrap();
    cluster.a.ns.run(move || {
        let mut devices = interfaces::list().unwrap();
        devices.retain(|device| attached.contains(&device.ifindex));
        let mut challenger = Challenger { injector, devices };
        let mut conntrack = Conntrack::open_all_zones().unwrap();
        let backends = Arc::new(backends);
        let start = Instant::now();
        let listed = conntrack.list(of_backends(&backends, None)).unwrap();
        challenge(&mut conntrack, listed, start, &backends, 1, &manner, &mut challenger).unwrap().remove(0)
    })
}

/// Checks that idle clients of node B at each place are reset, and that clients of node C go on.
fn idle_clients_are_freed(options: Options, families: &[Family], manner: Manner) -> Result<()> {
    let cluster = Cluster::new(options)?;
    // The entries of datagrams must outlast the load of the programs, which is slow in an emulator.
    for key in ["nf_conntrack_udp_timeout", "nf_conntrack_udp_timeout_stream"] {
        cluster.a.ns.sysctl(&format!("netfilter/{key}"), "600")?;
    }
    let mut idle = Vec::new();
    let mut others = Vec::new();
    let mut datagrams = Vec::new();
    for &family in families {
        for place in Place::ALL {
            for service in [Service::Web, Service::Host] {
                let what = format!("{options:?} {family:?} {place:?} {service:?}");
                let ns = cluster.at(place);
                let at = cluster.service(service, place, family);
                let mut conn = Conn::connect_to(ns, at, "node-b", LIMIT).context(what.clone())?;
                // The transfers bring both sequence numbers far from the initial ones.
                conn.download(3_000_000)?;
                conn.echo(&[7; 200_000])?;
                conn.long_poll()?;
                idle.push((what.clone(), conn));
                others.push((what, Conn::connect_to(ns, at, "node-c", LIMIT)?));
            }
            let at = cluster.service(Service::Dns, place, family);
            datagrams.push(UdpConn::connect_to(cluster.at(place), at, "node-b", LIMIT)?);
        }
    }
    cluster.b.freeze()?;
    // The programs are loaded before the clients begin to wait with a limit, since the load is slow in an emulator.
    let cut = Cut::node_b(&cluster);
    let expected = idle.len();
    let waiting: Vec<_> = idle
        .into_iter()
        .map(|(what, mut conn)| {
            conn.limit(None).unwrap();
            std::thread::spawn(move || (what, conn.wait_end(LIMIT), Instant::now()))
        })
        .collect();
    // By then all clients are in recv.
    std::thread::sleep(Duration::from_millis(100));
    let began = Instant::now();
    let report = challenge_node_b(&cluster, &cut, manner);
    println!("{options:?}: {report:?}");
    let mut last = began;
    for client in waiting {
        let (what, outcome, ended) = client.join().unwrap();
        assert_eq!(outcome, Outcome::Reset, "{what}: {report:?}");
        last = last.max(ended);
    }
    watch::held("challenge to the last idle client", FREED, began, last - began)?;
    assert!(report.challenged >= expected && report.closed == report.challenged, "{report:?}");
    assert!(report.skipped.not_tcp >= datagrams.len(), "{report:?}");
    assert!(!report.incomplete && !report.stopped && report.skipped.no_device == 0, "{report:?}");
    for (what, conn) in &mut others {
        conn.echo(b"untouched").with_context(|| what.clone())?;
    }

    // All entries are in state CLOSE or gone by now, so no client is challenged again.
    let again = challenge_node_b(&cluster, &cut, manner);
    assert_eq!((again.challenged, again.segments), (0, 0), "{again:?}");
    assert!(again.skipped.closed >= expected, "{again:?}");
    for (what, conn) in &mut others {
        conn.echo(b"untouched").with_context(|| what.clone())?;
    }
    Ok(())
}

/// The manner of challenges that the probe finds on a current kernel.
fn current() -> Manner {
    Manner { far_is_invalid: false, ..Manner::default() }
}

#[test]
fn behind_masquerade() -> Result<()> {
    idle_clients_are_freed(Options::default(), &[Family::V4, Family::V6], current())
}

#[test]
fn with_their_own_address() -> Result<()> {
    let options = Options { masquerade: false, ..Options::default() };
    idle_clients_are_freed(options, &[Family::V4, Family::V6], current())
}

/// Without SYN|ACK each client gets four bare ACKs, of which conntrack translates one. On kernels where far numbers are INVALID conntrack translates none.
#[test]
fn by_four_acks() -> Result<()> {
    let manner = Manner { syn_ack: false, ..current() };
    if !Findings::gather().manner().far_is_invalid {
        return idle_clients_are_freed(Options::default(), &[Family::V4, Family::V6], manner);
    }
    let cluster = Cluster::new(Options::default())?;
    let at = cluster.service(Service::Web, Place::Outside, Family::V4);
    let mut conn = Conn::connect_to(&cluster.client, at, "node-b", LIMIT)?;
    let report = challenge_node_b(&cluster, &Cut::node_b(&cluster), manner);
    assert_eq!((report.challenged, report.closed), (1, 0), "{report:?}");
    assert_eq!(conn.wait_end(Duration::from_millis(100)), Outcome::TimedOut);
    Ok(())
}

/// The manner for kernels where far numbers are INVALID: flows are made liberal, and each client gets one bare ACK.
#[test]
fn by_one_ack_to_liberal_flows() -> Result<()> {
    let manner = Manner { syn_ack: false, far_is_invalid: true, ..Manner::default() };
    idle_clients_are_freed(Options::default(), &[Family::V4, Family::V6], manner)
}

/// Kernels before 6.0 limit challenge ACKs per host, and a firewall may drop a SYN|ACK out of order. The second round resets such a client by a bare ACK.
#[test]
fn a_client_that_does_not_answer_is_challenged_again() -> Result<()> {
    let found = Findings::gather().manner().far_is_invalid;
    for far_is_invalid in [found, true] {
        let cluster = Cluster::new(Options::default())?;
        let at = cluster.service(Service::Web, Place::Outside, Family::V4);
        let mut conn = Conn::connect_to(&cluster.client, at, "node-b", LIMIT)?;
        conn.long_poll()?;
        cluster.client.nft(
            "table ip t {
                chain c { type filter hook input priority 0; tcp flags & (syn | ack) == syn | ack drop; }
            }",
        )?;
        let cut = Cut::node_b(&cluster);
        let waiting = std::thread::spawn(move || (conn.wait_end(LIMIT), Instant::now()));
        let began = Instant::now();
        let report = challenge_node_b(&cluster, &cut, Manner { far_is_invalid, ..Manner::default() });
        let (outcome, ended) = waiting.join().unwrap();
        assert_eq!(outcome, Outcome::Reset, "{report:?}");
        watch::held("challenge to a client that is challenged twice", FREED, began, ended - began)?;
        assert_eq!((report.challenged_again, report.closed), (1, report.challenged), "{report:?}");
        assert_eq!(report.liberal, usize::from(far_is_invalid), "{report:?}");
        assert_eq!(report.segments, if far_is_invalid { 2 } else { 5 }, "{report:?}");
    }
    Ok(())
}

/// A host-network backend is a single port, so clients of other ports at the node's own address are not challenged.
#[test]
fn the_node_s_own_services_are_not_challenged() -> Result<()> {
    let cluster = Cluster::new(Options::default())?;
    let b = (cluster.b.address(Family::V4), NODE_PORT_OF_ITS_OWN).into();
    let mut own = Conn::connect(&cluster.client, b, LIMIT)?;
    own.echo(b"before")?;
    let report = challenge_node_b(&cluster, &Cut::node_b(&cluster), current());
    assert_eq!((report.listed, report.challenged), (0, 0), "{report:?}");
    own.echo(b"after")?;
    Ok(())
}

#[test]
fn through_vxlan() -> Result<()> {
    let options = Options { overlay: Overlay::Vxlan, ..Options::default() };
    idle_clients_are_freed(options, &[Family::V4, Family::V6], current())
}
