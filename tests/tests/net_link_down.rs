//! The flagged node's link is down: its neighbour entry fails, and packets would die before they reach egress. They must not: clients
//! are still told.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use nodefence_tests::{
    Agent, Cluster, Family, Options, Outcome, Overlay, Place,
    checks::{Case, reset_at_next_packet},
    client::{UdpConn, wait_until},
    long,
    topology::Service,
};

/// Entries are doubted after half a second and fail about a second later, in place of half a minute.
fn hurry(cluster: &Cluster) -> Result<()> {
    for family in ["ipv4", "ipv6"] {
        for (key, value) in
            [("base_reachable_time_ms", "500"), ("retrans_time_ms", "100"), ("delay_first_probe_time", "1")]
        {
            cluster.a.ns.sysctl(&format!("{family}/neigh/eth0/{key}"), value)?;
        }
    }
    Ok(())
}

fn failed(cluster: &Cluster) -> bool {
    // A fresh packet each time, else nobody asks for the neighbour.
    for family in [Family::V4, Family::V6] {
        let _ =
            UdpConn::connect(&cluster.a.ns, (cluster.b.address(family), 9).into(), Duration::from_secs(1))
                .map(|flow| flow.socket.send(b"anyone there?"));
    }
    // The packet makes an entry that failed incomplete again until it fails once more.
    let shown = ["failed", "incomplete"]
        .map(|state| cluster.a.ns.exec(&format!("ip neigh show nud {state}")).unwrap_or_default())
        .concat();
    [Family::V4, Family::V6].iter().all(|&family| shown.contains(&format!("{} ", cluster.b.address(family))))
}

fn link_down(cluster: &Cluster) -> Result<()> {
    cluster.fabric.ip("link set p2 down")
}

/// What the hold is for: without it the client waits, or is told of an unreachable host at best.
#[test]
fn without_nodefence_packets_die_before_egress() -> Result<()> {
    let cluster = Cluster::new(Options::default())?;
    hurry(&cluster)?;
    let mut kept = Case { cluster: &cluster, place: Place::Pod, family: Family::V4 }.to_b(Service::Web)?;
    link_down(&cluster)?;
    wait_until("neighbour fails", Duration::from_secs(30), || failed(&cluster))?;
    kept.limit(Some(Duration::from_millis(1_500)))?;
    let outcome = kept.request();
    ensure!(matches!(outcome, Outcome::TimedOut | Outcome::Other), "{outcome:?}");
    Ok(())
}

fn told(overlay: Overlay, flag_first: bool) -> Result<()> {
    let cluster = Cluster::new(Options { overlay, ..Options::default() })?;
    hurry(&cluster)?;
    let agent = cluster.agent()?;
    let told = clients_are_told(&cluster, &agent, flag_first);
    told.with_context(|| format!("agent's log:\n{}", agent.log()))
}

fn clients_are_told(cluster: &Cluster, agent: &Agent, flag_first: bool) -> Result<()> {
    let mut kept = Vec::new();
    for family in [Family::V4, Family::V6] {
        for place in Place::ALL {
            kept.push(Case { cluster, place, family }.to_b(Service::Web)?);
        }
    }
    if flag_first {
        agent.flag("node-b")?;
        link_down(cluster)?;
        // An entry that nobody holds fails within 3 s, hurried as here.
        std::thread::sleep(Duration::from_secs(5));
    } else {
        link_down(cluster)?;
        wait_until("neighbour fails", Duration::from_secs(30), || failed(cluster))?;
        agent.flag("node-b")?;
        // The hold is renewed each second.
        std::thread::sleep(Duration::from_secs(2));
    }
    for conn in &mut kept {
        reset_at_next_packet(conn)?;
    }
    for family in [Family::V4, Family::V6] {
        Case { cluster, place: Place::Outside, family }.new_connections(Service::Web)?;
    }
    Ok(())
}

#[test]
fn host_gateway_flagged_then_down() -> Result<()> {
    told(Overlay::HostGateway, true)
}

#[test]
fn host_gateway_down_then_flagged() -> Result<()> {
    told(Overlay::HostGateway, false)
}

#[test]
fn vxlan_flagged_then_down() -> Result<()> {
    told(Overlay::Vxlan, true)
}

#[test]
fn vxlan_down_then_flagged() -> Result<()> {
    told(Overlay::Vxlan, false)
}

/// The link is down for long after the flag, and clients that come then are still told. In [`long`] runs at the kernel's own pace.
#[test]
fn down_for_long() -> Result<()> {
    let mut runs = Vec::new();
    for overlay in [Overlay::HostGateway, Overlay::Vxlan] {
        let cluster = Cluster::new(Options { overlay, ..Options::default() })?;
        if !long() {
            hurry(&cluster)?;
        }
        let agent = cluster.agent()?;
        let mut kept = Vec::new();
        for family in [Family::V4, Family::V6] {
            for place in Place::ALL {
                kept.push(Case { cluster: &cluster, place, family }.to_b(Service::Web)?);
            }
        }
        agent.flag("node-b")?;
        link_down(&cluster)?;
        runs.push((cluster, agent, kept));
    }
    // Without haste an entry that nobody holds fails within 53 s, in haste within 3 s.
    std::thread::sleep(Duration::from_secs(if long() { 60 } else { 10 }));
    for (cluster, agent, kept) in &mut runs {
        let told = kept.iter_mut().try_for_each(|conn| reset_at_next_packet(conn).map(drop));
        told.with_context(|| format!("agent's log:\n{}", agent.log()))?;
        for family in [Family::V4, Family::V6] {
            Case { cluster, place: Place::Outside, family }.new_connections(Service::Web)?;
        }
    }
    Ok(())
}
