//! If a flagged node's link is down, its neighbour entry fails, and packets are lost before TC egress can cut them. The agent holds the entry against that.
#![expect(clippy::unwrap_used, reason = "in a test a panic is the message")]

use std::{
    net::{IpAddr, UdpSocket},
    time::{Duration, Instant},
};

use anyhow::Result;
use nodefence::dataplane::hold::{Hold, Holding};
use nodefence_common::Reason;
use nodefence_tests::{
    Cluster, Conn, Family, Options, Outcome, Overlay, Place, client::wait_until, cut::Cut, emulated, long,
    topology::Service, ways::flagged,
};

/// A generous limit. With the kernel's own times an entry that is not renewed is valid for up to 45 s, is used for 5 s more and is probed for 3 s. With the
/// short times of [`age_fast`] that takes three seconds.
fn limit() -> Duration {
    Duration::from_secs(if long() || emulated() { 90 } else { 20 })
}

struct Case {
    options: Options,
    family: Family,
    /// Node A's device and next hop towards node B's pod.
    device: &'static str,
    hop: &'static str,
    /// The command that makes the entry an ageing one, if the topology's entry is permanent.
    prepare: &'static str,
}

fn host_gateway(family: Family) -> Case {
    let hop = if family == Family::V4 { "10.2.0.12" } else { "fd00:2::12" };
    Case { options: Options::default(), family, device: "eth0", hop, prepare: "" }
}

/// Lets entries age in about a second instead of half a minute, and fail after one unanswered probe.
fn age_fast(cluster: &Cluster, device: &str) -> Result<()> {
    if long() {
        return Ok(());
    }
    for family in ["ipv4", "ipv6"] {
        for (key, value) in [
            ("base_reachable_time_ms", "1000"),
            ("delay_first_probe_time", "1"),
            ("retrans_time_ms", "100"),
            ("ucast_solicit", "1"),
            ("mcast_solicit", "1"),
        ] {
            cluster.a.ns.sysctl(&format!("{family}/neigh/{device}/{key}"), value)?;
        }
    }
    Ok(())
}

/// The entry's state: `REACHABLE`, `FAILED`, ... Empty if there is no entry.
fn state(cluster: &Cluster, case: &Case) -> Result<String> {
    let line = cluster.a.ns.exec(&format!("ip neigh show {} dev {}", case.hop, case.device))?;
    Ok(line.split_whitespace().last().unwrap_or_default().to_owned())
}

/// Sends to the next hop itself (no backend's port, so it is not cut) until the entry has failed.
fn until_failed(cluster: &Cluster, case: &Case) -> Result<Duration> {
    let hop: IpAddr = case.hop.parse()?;
    wait_until("the neighbour entry fails", limit(), || {
        cluster.a.ns.run(move || {
            let any: IpAddr = if hop.is_ipv4() { [0; 4].into() } else { [0_u16; 8].into() };
            let _ = UdpSocket::bind((any, 0)).and_then(|socket| socket.send_to(b"x", (hop, 9)));
        });
        matches!(state(cluster, case).as_deref(), Ok("FAILED" | "INCOMPLETE" | ""))
    })
}

fn resets(cut: &Cut) -> u64 {
    let counters = cut.dataplane.counters.read().unwrap();
    counters.iter().find(|(reason, _)| *reason == Reason::Reset).map_or(0, |(_, counter)| counter.packets)
}

/// Renews the entry every 200 ms until `done`. The agent renews it each second.
fn hold_until(
    cluster: &Cluster,
    mut hold: Hold,
    case: &Case,
    mut done: impl FnMut() -> bool,
) -> Result<Hold> {
    let own = Cut::own(cluster);
    let node = cluster.a.ns.run(move || flagged(own))?;
    let hop: IpAddr = case.hop.parse()?;
    let start = Instant::now();
    loop {
        let flagged = [node.clone()];
        let report;
        (hold, report) = cluster.a.ns.run(move || {
            let report = hold.tick(&flagged);
            (hold, report)
        });
        let report = report?;
        let held = report.iter().find(|(at, _)| at.address == hop).map(|(_, holding)| *holding);
        assert_eq!(held, Some(Holding::Held), "{report:?}");
        if done() {
            return Ok(hold);
        }
        assert!(start.elapsed() < limit(), "not within {:?}", limit());
        std::thread::sleep(Duration::from_millis(200));
    }
}

/// One flow, first without a held entry: its packets are lost, nothing is cut, and the client gets no answer. Then with a held entry: the client is reset.
fn without_and_with(case: &Case) -> Result<()> {
    let cluster = Cluster::new(case.options)?;
    age_fast(&cluster, case.device)?;
    cluster.a.ns.ip(case.prepare)?;
    let at = cluster.service(Service::Web, Place::Outside, case.family);
    let mut conn = Conn::connect_to(&cluster.client, at, "node-b", limit())?;
    let mut other = Conn::connect_to(&cluster.client, at, "node-c", limit())?;
    // No node is flagged yet. `Hold` sees the entry while it is valid.
    let hold = cluster.a.ns.run(|| {
        let mut hold = Hold::open().unwrap();
        assert!(hold.tick(&[]).unwrap().is_empty());
        hold
    });
    cluster.fabric.ip("link set p2 down")?;
    if long() {
        std::thread::sleep(Duration::from_secs(60));
    }
    until_failed(&cluster, case)?;
    let cut = Cut::node_b(&cluster);
    conn.long_poll()?;
    assert_eq!(
        conn.wait_end(Duration::from_millis(2_500)),
        Outcome::TimedOut,
        "without a held entry the client must get no answer"
    );
    assert_eq!(resets(&cut), 0);

    // The connection's own retransmission meets the cut.
    let hold = {
        let mut reset = None;
        let hold = hold_until(&cluster, hold, case, || {
            let outcome = conn.wait_end(Duration::from_millis(300));
            if outcome != Outcome::TimedOut {
                reset = Some(outcome);
            }
            reset.is_some()
        })?;
        assert_eq!(reset, Some(Outcome::Reset));
        hold
    };
    assert!(resets(&cut) > 0);
    other.echo(b"node C is another entry")?;

    // The entry that a dead agent leaves ages like any other.
    let mut hold = hold_until(&cluster, hold, case, || true)?;
    assert_eq!(state(&cluster, case)?, "REACHABLE");
    until_failed(&cluster, case)?;

    // At an unflag the entry is set to STALE: the next packet makes the kernel probe it.
    let node = cluster.a.ns.run({
        let own = Cut::own(&cluster);
        move || flagged(own).unwrap()
    });
    cluster.a.ns.run(move || {
        hold.tick(&[node]).unwrap();
        assert!(hold.tick(&[]).unwrap().is_empty());
    });
    assert_eq!(state(&cluster, case)?, "STALE");
    // Once the node is back the kernel makes the entry valid again by itself.
    cluster.fabric.ip("link set p2 up")?;
    let hop: IpAddr = case.hop.parse()?;
    wait_until("the entry is valid again", limit(), || {
        let _ = cluster.a.ns.exec(&format!("ping -c 1 -W 1 {hop}"));
        matches!(state(&cluster, case).as_deref(), Ok("REACHABLE" | "STALE" | "DELAY" | "PROBE"))
    })?;
    Ok(())
}

#[test]
fn host_gateway_routes() -> Result<()> {
    without_and_with(&host_gateway(Family::V4))
}

#[test]
fn host_gateway_routes_of_ipv6() -> Result<()> {
    without_and_with(&host_gateway(Family::V6))
}

/// A tunnel with learned inner entries. Only the tunnel's forwarding table shows that the next hop is node B.
#[test]
fn vxlan_with_ageing_inner_entries() -> Result<()> {
    without_and_with(&Case {
        options: Options { overlay: Overlay::Vxlan, ..Options::default() },
        family: Family::V4,
        device: "vxlan0",
        hop: "10.42.0.2",
        prepare: "neigh replace 10.42.0.2 lladdr 0e:00:00:00:00:02 dev vxlan0 nud reachable",
    })
}

/// flannel's inner entries are permanent. So a packet reaches the tunnel's egress, where it is cut, also if the outer entry has failed.
#[test]
fn vxlan_with_permanent_inner_entries_needs_no_hold() -> Result<()> {
    let case = Case {
        options: Options { overlay: Overlay::Vxlan, ..Options::default() },
        ..host_gateway(Family::V4)
    };
    let cluster = Cluster::new(case.options)?;
    age_fast(&cluster, case.device)?;
    let at = cluster.service(Service::Web, Place::Outside, case.family);
    let mut conn = Conn::connect_to(&cluster.client, at, "node-b", limit())?;
    cluster.fabric.ip("link set p2 down")?;
    until_failed(&cluster, &case)?;
    let cut = Cut::node_b(&cluster);
    conn.long_poll()?;
    assert_eq!(conn.wait_end(limit()), Outcome::Reset);
    assert!(resets(&cut) > 0);
    let own = Cut::own(&cluster);
    let report = cluster.a.ns.run(move || {
        let node = flagged(own).unwrap();
        Hold::open().unwrap().tick(&[node]).unwrap()
    });
    let inner: IpAddr = "10.42.0.2".parse()?;
    let found = report.iter().find(|(hop, _)| hop.address == inner).map(|(_, holding)| *holding);
    assert_eq!(found, Some(Holding::Fixed));
    Ok(())
}

/// The pods are behind a router. The router's entry also serves other nodes, so the agent does not hold it.
#[test]
fn a_router_is_not_held() -> Result<()> {
    let cluster = Cluster::new(Options::default())?;
    // 10.2.0.13 (node C) plays the router.
    cluster.a.ns.ip("route replace 10.244.2.0/24 via 10.2.0.13 dev eth0")?;
    cluster.a.ns.exec("ping -c 1 -W 5 10.2.0.13")?;
    let own = Cut::own(&cluster);
    let report = cluster.a.ns.run(move || {
        let node = flagged(own).unwrap();
        let mut hold = Hold::open().unwrap();
        hold.tick(std::slice::from_ref(&node)).unwrap();
        hold.tick(&[node]).unwrap()
    });
    let router: IpAddr = "10.2.0.13".parse()?;
    let found = report.iter().find(|(hop, _)| hop.address == router).map(|(_, holding)| *holding);
    assert_eq!(found, Some(Holding::NotTheNode), "{report:?}");
    Ok(())
}
