//! The flagged node's link is down, so its neighbour entry fails, and packets would be lost before TC egress. The agent holds the entry, so that clients are still
//! reset.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use nodefence_tests::{
    Agent, Cluster, Conn, Family, Options, Outcome, Overlay, Place,
    checks::{Case, SOON, reset_at_next_packet, reset_by_now},
    client::{UdpConn, wait_until},
    long,
    topology::Service,
    unlisted,
    watch::missed,
};
use serde_json::Value;

/// How late a renewal, which is due each second, may come with the times of [`hurry`]: an entry is reachable for at least a quarter of a second, is used for
/// one second more, and is probed for three tenths.
const SPARE: Duration = Duration::from_millis(500);

/// Lets entries become stale after half a second instead of half a minute, and fail about a second later.
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

/// Whether node B's entry has failed, for each IP version.
fn failed(cluster: &Cluster) -> [bool; 2] {
    // The kernel only probes a neighbour if there is a packet for it.
    for family in [Family::V4, Family::V6] {
        let _ =
            UdpConn::connect(&cluster.a.ns, (cluster.b.address(family), 9).into(), Duration::from_secs(1))
                .map(|flow| flow.socket.send(b"anyone there?"));
    }
    // The packet makes a failed entry incomplete until it fails again.
    let shown = ["failed", "incomplete"]
        .map(|state| cluster.a.ns.exec(&format!("ip neigh show nud {state}")).unwrap_or_default())
        .concat();
    [Family::V4, Family::V6].map(|family| shown.contains(&format!("{} ", cluster.b.address(family))))
}

fn wait_failed(cluster: &Cluster) -> Result<()> {
    wait_until("the neighbour entries fail", Duration::from_secs(30), || failed(cluster) == [true; 2])
        .map(drop)
}

/// Checks for this long that no entry fails.
fn stay_valid(clusters: &[&Cluster], length: Duration) -> Result<()> {
    let began = Instant::now();
    let mut looks = 0;
    while began.elapsed() < length {
        for cluster in clusters {
            if failed(cluster) != [false; 2] {
                let text = format!(
                    "an entry failed after {:?}: {}",
                    began.elapsed(),
                    cluster.a.ns.exec("ip neigh")?
                );
                return Err(missed(SPARE, text));
            }
        }
        looks += 1;
        std::thread::sleep(Duration::from_millis(50));
    }
    println!("{looks} looks in {length:?}");
    Ok(())
}

/// Connections to node B from before the flag.
struct Clients {
    /// Connections from each place, whose clients the agent challenges at the flag.
    challenged: Vec<Conn>,
    /// Connections whose clients are not challenged. The cut resets them at their next packet.
    unlisted: Vec<Conn>,
}

impl Clients {
    fn new(cluster: &Cluster) -> Result<Self> {
        let mut challenged = Vec::new();
        let mut unlisted = Vec::new();
        for family in [Family::V4, Family::V6] {
            for place in Place::ALL {
                challenged.push(Case { cluster, place, family }.to_b(Service::Web)?);
            }
            unlisted.push(unlisted::to_b(cluster, family)?);
        }
        // These attempts make a neighbour entry for each address.
        let _sent = failed(cluster);
        Ok(Self { challenged, unlisted })
    }

    /// Checks that these clients are reset, and that a new client is answered at once.
    fn are_reset(&mut self, cluster: &Cluster) -> Result<()> {
        for conn in &mut self.unlisted {
            reset_at_next_packet(conn)?;
        }
        self.challenged.iter_mut().try_for_each(reset_by_now)?;
        for family in [Family::V4, Family::V6] {
            Case { cluster, place: Place::Outside, family }.new_connections(Service::Web)?;
        }
        Ok(())
    }
}

fn link_down(cluster: &Cluster) -> Result<()> {
    cluster.fabric.ip("link set p2 down")
}

/// Without nodefence no entry is held: the client waits, or gets an error about an unreachable host at best.
#[test]
fn without_nodefence_packets_die_before_egress() -> Result<()> {
    let cluster = Cluster::new(Options::default())?;
    hurry(&cluster)?;
    let mut conn = Case { cluster: &cluster, place: Place::Pod, family: Family::V4 }.to_b(Service::Web)?;
    link_down(&cluster)?;
    wait_failed(&cluster)?;
    conn.limit(Some(Duration::from_millis(1_500)))?;
    let outcome = conn.request();
    ensure!(matches!(outcome, Outcome::TimedOut | Outcome::Other), "{outcome:?}");
    Ok(())
}

fn reset(overlay: Overlay, flag_first: bool) -> Result<()> {
    let cluster = Cluster::new(Options { overlay, ..Options::default() })?;
    hurry(&cluster)?;
    let agent = cluster.agent()?;
    let done = clients_are_reset(&cluster, &agent, flag_first);
    done.with_context(|| format!("agent's log:\n{}", agent.log()))
}

fn clients_are_reset(cluster: &Cluster, agent: &Agent, flag_first: bool) -> Result<()> {
    let mut clients = Clients::new(cluster)?;
    if flag_first {
        agent.flag("node-b")?;
        wait_held(agent)?;
        link_down(cluster)?;
        // With these times an entry that is not held fails within 3 s.
        stay_valid(&[cluster], Duration::from_secs(5))?;
    } else {
        link_down(cluster)?;
        wait_failed(cluster)?;
        agent.flag("node-b")?;
        wait_held(agent)?;
    }
    clients.are_reset(cluster)
}

/// Waits until the agent holds both entries. It looks at them each second.
fn wait_held(agent: &Agent) -> Result<()> {
    wait_until("the entries are held", SOON, || held(agent).is_ok_and(|held| held == 2)).map(drop)
}

/// The number of entries that the agent holds, by its status.
fn held(agent: &Agent) -> Result<usize> {
    let status = agent.status()?;
    let rows = status["neighbours"].as_array().context("no neighbours in the status")?;
    let is_held = |row: &&Value| row["state"] == "held";
    Ok(rows.iter().filter(is_held).count())
}

#[test]
fn host_gateway_flagged_then_down() -> Result<()> {
    reset(Overlay::HostGateway, true)
}

#[test]
fn host_gateway_down_then_flagged() -> Result<()> {
    reset(Overlay::HostGateway, false)
}

#[test]
fn vxlan_flagged_then_down() -> Result<()> {
    reset(Overlay::Vxlan, true)
}

#[test]
fn vxlan_down_then_flagged() -> Result<()> {
    reset(Overlay::Vxlan, false)
}

/// The link is down for a long time after the flag, and clients are still reset. [`long`] runs use the kernel's own times.
#[test]
fn down_for_long() -> Result<()> {
    let mut runs = Vec::new();
    for overlay in [Overlay::HostGateway, Overlay::Vxlan] {
        let cluster = Cluster::new(Options { overlay, ..Options::default() })?;
        if !long() {
            hurry(&cluster)?;
        }
        let agent = cluster.agent()?;
        let clients = Clients::new(&cluster)?;
        agent.flag("node-b")?;
        wait_held(&agent)?;
        link_down(&cluster)?;
        runs.push((cluster, agent, clients));
    }
    // An entry that is not held fails within 53 s by the kernel's own times, and within 3 s by those of `hurry`.
    let clusters: Vec<&Cluster> = runs.iter().map(|(cluster, ..)| cluster).collect();
    stay_valid(&clusters, Duration::from_secs(if long() { 60 } else { 10 }))?;
    for (cluster, agent, clients) in &mut runs {
        clients.are_reset(cluster).with_context(|| format!("agent's log:\n{}", agent.log()))?;
    }
    Ok(())
}
