//! A cluster behind IPVS, and the content of its tables.

use std::{
    net::{IpAddr, Ipv6Addr},
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, bail, ensure};
use nix::unistd::Pid;
use nodefence_tests::{
    Agent, Cluster, Family, Netns, Outcome,
    client::{UdpConn, wait_until},
    ipvs,
    promises::{FOLLOWED, RESTORED},
    topology::Service,
    watch::wait_within,
};
use serde_json::Value;

/// The limit of waits that have no promised time.
pub(super) const LIMIT: Duration = Duration::from_secs(60);

/// The file with IPVS's connections in the calling thread's network namespace.
pub(super) const CONNECTIONS: &str = "/proc/thread-self/net/ip_vs_conn";

/// Services of all kinds beside the cluster's own ones, on both nodes' pods: with thresholds, tunnels, persistence and a mark.
const MORE: &str = "\
-A -t 10.96.0.30:80 -s wrr -p 10800
-a -t 10.96.0.30:80 -r 10.244.2.2:8080 -m -w 7 -x 100 -y 50
-a -t 10.96.0.30:80 -r 10.244.3.2:8080 -m -w 3
-A --sctp-service 10.96.0.31:3868 -s rr
-a --sctp-service 10.96.0.31:3868 -r 10.244.2.2:3868 -m -w 1
-a --sctp-service 10.96.0.31:3868 -r 10.244.3.2:3868 -m -w 1
-A -t 10.96.0.32:80 -s sh
-a -t 10.96.0.32:80 -r 10.244.2.2:8080 -m -w 1
-a -t 10.96.0.32:80 -r 10.244.3.2:8080 -m -w 1
-A -t 10.96.0.33:80 -s wlc
-a -t 10.96.0.33:80 -r 10.244.2.2:8080 -i -w 5 --tun-type gue --tun-port 6080
-a -t 10.96.0.33:80 -r 10.244.3.2:8080 -g -w 2
-A -f 77 -s rr
-a -f 77 -r 10.244.2.2:0 -m -w 4
-a -f 77 -r 10.244.3.2:0 -m -w 4
-A -t 10.96.0.34:80 -s rr
-a -t 10.96.0.34:80 -r 10.244.2.2:8080 -m -w 0
-a -t 10.96.0.34:80 -r 10.244.3.2:8080 -m -w 1
-A -t 10.96.0.35:80 -s rr
-a -t 10.96.0.35:80 -r 10.244.2.2:8080 -m -w 1
";

/// The service of [`MORE`] that has destinations on node B only.
pub(super) const ONLY_B: &str = "TCP 10.96.0.35:80";

pub(super) fn cluster() -> Result<Cluster> {
    let cluster = ipvs::cluster()?;
    cluster.a.ns.ip("addr add 10.96.0.30/32 dev kube-ipvs0\naddr add 10.96.0.32/32 dev kube-ipvs0")?;
    cluster.a.ns.feed("ipvsadm -R", MORE)?;
    Ok(cluster)
}

/// The agent on node A. No kube-proxy runs here, so an option tells the agent that IPVS forwards.
pub(super) fn agent_with(cluster: &Cluster, extra: &[&str]) -> Result<Agent> {
    cluster.agent_with(&[&["--proxy", "ipvs"], extra].concat())
}

pub(super) fn agent(cluster: &Cluster) -> Result<Agent> {
    agent_with(cluster, &[])
}

/// Checks that node C answers all clients. One datagram in all may be lost, and is sent again. A refused datagram is an error.
pub(super) fn answered_by_c(clients: &[UdpConn]) -> Result<()> {
    let mut lost = 0;
    for client in clients {
        let who = client.who().or_else(|error| {
            if Outcome::of(&error) != Outcome::TimedOut {
                return Err(error);
            }
            lost += 1;
            client.who()
        });
        ensure!(who.as_ref().is_ok_and(|who| who == "node-c"), "a datagram: {who:?}");
    }
    ensure!(lost <= 1, "{lost} of {} datagrams lost", clients.len());
    Ok(())
}

/// The sorted lines of `ipvsadm -Sn`, and the thresholds.
///
/// Before Linux 7.1 namespaces share one table, and a list may lack or repeat services while others are added and deleted. So two readings must
/// agree.
pub(super) fn saved(ns: &Netns) -> Result<Vec<String>> {
    let mut last = saved_once(ns)?;
    for _ in 0..10 {
        let again = saved_once(ns)?;
        if again == last {
            return Ok(again);
        }
        last = again;
    }
    bail!("the table changes at each reading")
}

fn saved_once(ns: &Netns) -> Result<Vec<String>> {
    let mut lines = ipvs::saved(ns)?;
    let thresholds = ns.exec("ipvsadm -Ln --thresholds")?;
    let limits = thresholds.lines().filter(|line| line.trim_start().starts_with("->"));
    // Of each line the destination and both thresholds are compared, and the counters are not.
    lines.extend(limits.map(|line| line.split_whitespace().take(4).collect::<Vec<_>>().join(" ")));
    lines.sort();
    Ok(lines)
}

/// The destinations on node B with weight, without the service that has no other node.
pub(super) fn weighted_on_b(ns: &Netns) -> Result<Vec<String>> {
    let lines = ns.exec("ipvsadm -Sn")?;
    let on_b = |line: &&str| {
        ["-r 10.244.2.2:", "-r 10.2.0.12:", "-r [fd00:244:2::2]:", "-r [fd00:2::12]:"]
            .iter()
            .any(|real| line.contains(real))
    };
    let live =
        lines.lines().filter(on_b).filter(|line| !line.contains("-w 0") && !line.contains("10.96.0.35:80"));
    Ok(live.map(str::to_owned).collect())
}

/// The IPVS connections and templates to these addresses, without those in state CLOSE.
pub(super) fn connections(ns: &Netns, to: &[IpAddr]) -> Result<Vec<String>> {
    let text = ns.run(|| std::fs::read_to_string(CONNECTIONS)).context("read the connections")?;
    open(&text, to)
}

/// As [`connections`], from the text of [`CONNECTIONS`].
pub(super) fn open(text: &str, to: &[IpAddr]) -> Result<Vec<String>> {
    let mut found = Vec::new();
    for line in text.lines().skip(1) {
        let words: Vec<&str> = line.split_whitespace().collect();
        let [_, _, _, _, _, destination, _, state, ..] = words[..] else { continue };
        if to.contains(&address(destination)?) && state != "CLOSE" {
            found.push(line.to_owned());
        }
    }
    Ok(found)
}

/// Parses an address: IPv4 is eight hexadecimal digits, and IPv6 is in brackets.
fn address(text: &str) -> Result<IpAddr> {
    let plain = text.trim_matches(['[', ']']);
    if plain.contains(':') {
        return Ok(plain.parse::<Ipv6Addr>()?.into());
    }
    Ok(IpAddr::V4(u32::from_str_radix(plain, 16).with_context(|| text.to_owned())?.into()))
}

pub(super) fn addresses(node: &nodefence_tests::Node) -> Vec<IpAddr> {
    let both = |family| [node.address(family), node.pod_address(family)];
    [Family::V4, Family::V6].into_iter().flat_map(both).collect()
}

/// The part of `status` about IPVS.
pub(super) fn status(agent: &Agent) -> Result<Value> {
    Ok(agent.status()?["ipvs"].clone())
}

/// Whether all of node B's destinations are drained, and no connection is left for which the agent waits.
pub(super) fn is_out(cluster: &Cluster, agent: &Agent) -> bool {
    weighted_on_b(&cluster.a.ns).is_ok_and(|left| left.is_empty())
        && status(agent).is_ok_and(|status| {
            let row = &status["nodes"]["node-b"];
            row["waiting"] == 0 && row["drained"].as_u64() > Some(0)
        })
}

/// Waits until node B is drained.
pub(super) fn wait_drained(cluster: &Cluster, agent: &Agent) -> Result<Duration> {
    wait_until("node B is drained", LIMIT, || is_out(cluster, agent)).with_context(|| {
        format!("{:?}\n{:?}\n{}", status(agent), cluster.a.ns.exec("ipvsadm -Ln"), agent.log())
    })
}

/// Waits until the table is as it was, which is promised within [`RESTORED`] after `began`.
pub(super) fn wait_same(cluster: &Cluster, before: &[String], began: Instant, log: &str) -> Result<Duration> {
    let same = || saved(&cluster.a.ns).is_ok_and(|now| now == before);
    let took = wait_within("restored in IPVS", RESTORED, began, same);
    let now = saved(&cluster.a.ns)?;
    let lost: Vec<_> = before.iter().filter(|line| !now.contains(line)).collect();
    let new: Vec<_> = now.iter().filter(|line| !before.contains(line)).collect();
    took.with_context(|| format!("lost {lost:#?}, new {new:#?}\n{log}"))
}

pub(super) fn untouched(agent: &Agent) -> Result<()> {
    let row = status(agent)?;
    ensure!(row["problems"] == serde_json::json!([]), "{row}");
    Ok(())
}

/// An agent that reads this cluster file.
pub(super) fn agent_of(cluster: &Cluster, file: &str) -> Result<Agent> {
    Agent::start_with(&cluster.a.ns, "node-a", &cluster.interfaces(), file, &["--proxy", "ipvs"])
}

/// The cluster file with Services. The endpoints in node B's pod have the state that `of_b` adds.
pub(super) fn with_services(cluster: &Cluster, of_b: &str) -> String {
    cluster.services_file_with(|service, node| {
        Some(if service != Service::Host && node.name == "node-b" { of_b } else { "" })
    })
}

/// Gives the agent another cluster file, and waits until the agent has taken it.
pub(super) fn rewrite(agent: &Agent, text: &str) -> Result<()> {
    let view = || agent.status()?["cluster"]["view"].as_u64().context("no number of the view");
    let before = view()?;
    let renamed = Instant::now();
    agent.rewrite_cluster_file(text)?;
    wait_within("the file is taken", FOLLOWED, renamed, || view().is_ok_and(|now| now > before)).map(drop)
}

/// The text of the agent's ledger.
pub(super) fn ledger(agent: &Agent) -> Result<String> {
    Ok(std::fs::read_to_string(agent.socket().with_file_name("ledger.log"))?)
}

/// The process of the agent's guard.
pub(super) fn guard(agent: &Agent) -> Result<Pid> {
    let parent = agent.proc()?.pid().to_string();
    for entry in std::fs::read_dir("/proc")? {
        let path = entry?.path();
        // A process may have ended meanwhile.
        let (Ok(command), Ok(stat)) =
            (std::fs::read_to_string(path.join("cmdline")), std::fs::read_to_string(path.join("stat")))
        else {
            continue;
        };
        // The state and the parent stand behind the name, which is in parentheses.
        let of_agent =
            stat.rsplit(')').next().and_then(|rest| rest.split_whitespace().nth(1)) == Some(&parent);
        if of_agent && command.split('\0').any(|word| word == "guard") {
            let pid = path.file_name().and_then(|name| name.to_str()).context("no name")?;
            return Ok(Pid::from_raw(pid.parse()?));
        }
    }
    bail!("no guard\n{}", agent.log())
}
