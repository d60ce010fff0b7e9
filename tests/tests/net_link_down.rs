//! The flagged node's link is down: its neighbour entry fails, and packets would die before they reach egress. They must not: clients
//! are still told.

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

/// How much later than each second an entry may be renewed, hurried as here: the entry is good for a quarter of a second at least, doubted for one, and
/// probed for three tenths.
const SPARE: Duration = Duration::from_millis(500);

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

/// Whether node B's entry has failed, for each IP version.
fn failed(cluster: &Cluster) -> [bool; 2] {
    // A fresh packet each time: without one the kernel does not ask for the neighbour.
    for family in [Family::V4, Family::V6] {
        let _ =
            UdpConn::connect(&cluster.a.ns, (cluster.b.address(family), 9).into(), Duration::from_secs(1))
                .map(|flow| flow.socket.send(b"anyone there?"));
    }
    // The packet makes an entry that failed incomplete again until it fails once more.
    let shown = ["failed", "incomplete"]
        .map(|state| cluster.a.ns.exec(&format!("ip neigh show nud {state}")).unwrap_or_default())
        .concat();
    [Family::V4, Family::V6].map(|family| shown.contains(&format!("{} ", cluster.b.address(family))))
}

fn wait_failed(cluster: &Cluster) -> Result<()> {
    wait_until("neighbour fails", Duration::from_secs(30), || failed(cluster) == [true; 2]).map(drop)
}

/// Looks for so long that no entry fails.
fn stay_valid(clusters: &[&Cluster], length: Duration) -> Result<()> {
    let (began, mut looks) = (Instant::now(), 0);
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
    /// Connections from everywhere; the agent challenges their clients at the flag.
    challenged: Vec<Conn>,
    /// Clients that are not challenged: the cut resets them, at their next packet.
    unlisted: Vec<Conn>,
}

impl Clients {
    fn new(cluster: &Cluster) -> Result<Self> {
        let (mut challenged, mut unlisted) = (Vec::new(), Vec::new());
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
    fn are_told(&mut self, cluster: &Cluster) -> Result<()> {
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

/// The effect of the hold: without it the client waits, or is told of an unreachable host at best.
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

fn told(overlay: Overlay, flag_first: bool) -> Result<()> {
    let cluster = Cluster::new(Options { overlay, ..Options::default() })?;
    hurry(&cluster)?;
    let agent = cluster.agent()?;
    let told = clients_are_told(&cluster, &agent, flag_first);
    told.with_context(|| format!("agent's log:\n{}", agent.log()))
}

fn clients_are_told(cluster: &Cluster, agent: &Agent, flag_first: bool) -> Result<()> {
    let mut clients = Clients::new(cluster)?;
    if flag_first {
        agent.flag("node-b")?;
        wait_held(agent)?;
        link_down(cluster)?;
        // An entry that is not held fails within 3 s, hurried as here.
        stay_valid(&[cluster], Duration::from_secs(5))?;
    } else {
        link_down(cluster)?;
        wait_failed(cluster)?;
        agent.flag("node-b")?;
        wait_held(agent)?;
    }
    clients.are_told(cluster)
}

/// An agent looks each second at what a link that goes down would take from it.
fn wait_held(agent: &Agent) -> Result<()> {
    wait_until("the entries are held", SOON, || held(agent).is_ok_and(|held| held == 2)).map(drop)
}

/// How many entries the agent holds, as `status` says.
fn held(agent: &Agent) -> Result<usize> {
    let status = agent.status()?;
    let rows = status["neighbours"].as_array().context("no neighbours in the status")?;
    let is_held = |row: &&Value| row["state"] == "held";
    Ok(rows.iter().filter(is_held).count())
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
        let clients = Clients::new(&cluster)?;
        agent.flag("node-b")?;
        wait_held(&agent)?;
        link_down(&cluster)?;
        runs.push((cluster, agent, clients));
    }
    // Without haste an entry that is not held fails within 53 s, in haste within 3 s.
    let clusters: Vec<&Cluster> = runs.iter().map(|(cluster, ..)| cluster).collect();
    stay_valid(&clusters, Duration::from_secs(if long() { 60 } else { 10 }))?;
    for (cluster, agent, clients) in &mut runs {
        clients.are_told(cluster).with_context(|| format!("agent's log:\n{}", agent.log()))?;
    }
    Ok(())
}
