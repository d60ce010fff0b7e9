//! Pods of a flagged node that end. The agent does not undo kube-proxy's changes for such pods. The tests make these changes with `ipvsadm`.

use std::time::Instant;

use anyhow::{Context as _, Result, ensure};
use nodefence_tests::{
    Agent, Conn, Family, Outcome, Place, checks::reset_by_now, client::wait_until, promises::RESTORED,
    topology::Service, watch::wait_within,
};

use super::common::{
    LIMIT, agent_of, cluster, connections, ledger, rewrite, saved, status, untouched, wait_drained,
    wait_same, weighted_on_b, with_services,
};

const ENDING: &str = ", ready: false, serving: true, terminating: true";
/// The destination of node B's pod at the cluster IP.
const PAIR: &str = "-t 10.96.0.10:80 -r 10.244.2.2:8080";

/// The protocol, service and destination of each pair of node B's pod in the Services of the cluster file, in the words of `ipvsadm`.
fn of_the_pod(saved: &[String]) -> Vec<String> {
    let pod = |line: &&String| line.contains(" -r 10.244.2.2:") || line.contains(" -r [fd00:244:2::2]:");
    let known = |line: &&String| !line.contains(" 10.96.0.3") && !line.contains(" -f ");
    let pair = |line: &String| line.split(' ').skip(1).take(4).collect::<Vec<_>>().join(" ");
    saved.iter().filter(|line| line.starts_with("-a ")).filter(pod).filter(known).map(pair).collect()
}

/// The pod's graceful termination began before the flag. Its weight of 0 is kube-proxy's, and its connections hang all the same.
#[test]
fn one_that_ends_before_the_flag() -> Result<()> {
    let cluster = cluster()?;
    let ns = &cluster.a.ns;
    let web = cluster.service(Service::Web, Place::Pod, Family::V4);
    let mut idle = Conn::connect_to(cluster.at(Place::Pod), web, "node-b", LIMIT)?;
    idle.long_poll()?;
    for pair in of_the_pod(&saved(ns)?) {
        ns.exec(&format!("ipvsadm -e {pair} -m -w 0"))?;
    }
    let before = saved(ns)?;
    let agent = agent_of(&cluster, &with_services(&cluster, ENDING))?;
    agent.flag("node-b")?;
    let to_b = [cluster.b.pod_address(Family::V4)];
    wait_until("the ending pod's connections are gone", LIMIT, || {
        connections(ns, &to_b).is_ok_and(|left| left.is_empty())
    })
    .with_context(|| agent.log())?;
    wait_drained(&cluster, &agent)?;
    let outcome = idle.wait_end(LIMIT);
    ensure!(outcome == Outcome::Reset, "the idle client: {outcome:?}");
    let began = Instant::now();
    agent.unflag("node-b")?;
    wait_same(&cluster, &before, began, &agent.log())?;
    untouched(&agent)
}

/// The pod ends while the agent has set its weight to 0 and it still has connections. kube-proxy drains the destination with that weight, so the agent must not
/// raise the weight.
#[test]
fn one_that_ends_with_connections() -> Result<()> {
    let cluster = cluster()?;
    let ns = &cluster.a.ns;
    // With this sysctl the agent deletes no destination, and connections stay.
    ns.sysctl("ipv4/vs/expire_nodest_conn", "0")?;
    let before = saved(ns)?;
    let agent = agent_of(&cluster, &with_services(&cluster, ""))?;
    let web = cluster.service(Service::Web, Place::Pod, Family::V4);
    let _open = Conn::connect_to(cluster.at(Place::Pod), web, "node-b", LIMIT)?;
    agent.flag("node-b")?;
    wait_until("node B's weights are 0", LIMIT, || weighted_on_b(ns).is_ok_and(|left| left.is_empty()))?;
    rewrite(&agent, &with_services(&cluster, ENDING))?;
    let unflagged = Instant::now();
    agent.unflag("node-b")?;
    // All destinations of the pod are kube-proxy's now. That of node B's own port is still the agent's to restore.
    let ours = |line: &&String| !line.contains(PAIR);
    let others: Vec<String> = before.iter().filter(ours).cloned().collect();
    let lowered = || -> Result<bool> {
        let now = saved(ns)?;
        let at_0 = now.iter().any(|line| line.contains(PAIR) && line.ends_with("-w 0"));
        let rest = now.iter().filter(ours).filter(|line| line.contains("10.2.0.12"));
        let host = others.iter().filter(|line| line.contains("10.2.0.12"));
        Ok(at_0 && rest.eq(host))
    };
    wait_within("all else is restored", RESTORED, unflagged, || lowered().unwrap_or(false))
        .with_context(|| format!("{:?}\n{}", saved(ns), agent.log()))?;
    let row = status(&agent)?;
    let told = row["nodes"]["node-b"]["problems"].to_string();
    ensure!(told.contains("its endpoint is not to be used any more"), "{row}");
    // kube-proxy removes a destination once it has no connections left. The agent forgets it then.
    for pair in of_the_pod(&before) {
        ns.exec(&format!("ipvsadm -d {pair}"))?;
    }
    wait_until("the agent has no row of node B any more", LIMIT, || {
        status(&agent).is_ok_and(|row| row["nodes"]["node-b"].is_null())
    })
    .with_context(|| format!("{:?}", status(&agent)))?;
    ensure!(ledger(&agent)?.lines().count() <= 1, "{}", ledger(&agent)?);
    ensure!(!saved(ns)?.iter().any(|line| line.contains(PAIR)), "the agent added the ended pod again");
    Ok(())
}

/// kube-proxy removes the tombstone (the destination of weight 0 that the agent added again), which has no connections. The agent must not restore it.
#[test]
fn one_that_ends_during_the_tombstone() -> Result<()> {
    let cluster = cluster()?;
    let ns = &cluster.a.ns;
    let before = saved(ns)?;
    let agent = agent_of(&cluster, &with_services(&cluster, ""))?;
    let web = cluster.service(Service::Web, Place::Pod, Family::V4);
    let _open = Conn::connect_to(cluster.at(Place::Pod), web, "node-b", LIMIT)?;
    agent.flag("node-b")?;
    wait_drained(&cluster, &agent)?;
    rewrite(&agent, &with_services(&cluster, ENDING))?;
    ns.exec(&format!("ipvsadm -d {PAIR}"))?;
    // kube-proxy has removed only one destination. By a file that is older than kube-proxy's tables the agent restores all others.
    rewrite(&agent, &with_services(&cluster, ""))?;
    let unflagged = Instant::now();
    agent.unflag("node-b")?;
    let without: Vec<String> = before.iter().filter(|line| !line.contains(PAIR)).cloned().collect();
    let same = || -> Result<bool> {
        // Lines of thresholds are left out, since several destinations of the pod have the same line.
        let now: Vec<String> =
            saved(ns)?.into_iter().filter(|line| line.starts_with('-') && !line.starts_with("->")).collect();
        let then: Vec<&String> =
            without.iter().filter(|line| line.starts_with('-') && !line.starts_with("->")).collect();
        Ok(now.iter().eq(then))
    };
    wait_within("the rest is as it was", RESTORED, unflagged, || same().unwrap_or(false))
        .with_context(|| format!("{:?}\n{}", saved(ns), agent.log()))?;
    wait_until("the agent has no row of node B any more", LIMIT, || {
        status(&agent).is_ok_and(|row| row["nodes"]["node-b"].is_null())
    })?;
    ensure!(!saved(ns)?.iter().any(|line| line.contains(PAIR)), "the agent added the ended pod again");
    untouched(&agent)
}

/// All endpoints of every Service are on hung nodes. They are exempt in the datapath and in IPVS's tables, and `status` says why.
#[test]
fn the_last_of_all_are_let_through() -> Result<()> {
    let cluster = cluster()?;
    let before = saved(&cluster.a.ns)?;
    let agent: Agent = agent_of(&cluster, &with_services(&cluster, ""))?;
    let web = cluster.service(Service::Web, Place::Pod, Family::V4);
    let mut open = Conn::connect_to(cluster.at(Place::Pod), web, "node-b", LIMIT)?;
    agent.expect(&["flag", "node-b", "--force"])?;
    wait_drained(&cluster, &agent)?;
    let mut late = Conn::connect_to(cluster.at(Place::Pod), web, "node-c", LIMIT)?;
    let began = Instant::now();
    agent.expect(&["flag", "node-c", "--force"])?;
    wait_same(&cluster, &before, began, &agent.log())?;
    for name in ["node-b", "node-c"] {
        let mut conn = Conn::connect_to(cluster.at(Place::Pod), web, name, LIMIT)
            .with_context(|| format!("{name}\n{}", agent.log()))?;
        ensure!(conn.request() == Outcome::Answered, "{name}");
    }
    ensure!(late.request() == Outcome::Answered, "a flow to the node that was flagged last was cut");
    // The flow to node B was cut while only node B was flagged.
    reset_by_now(&mut open)?;
    let text = agent.expect(&["status", "-o", "wide"])?;
    for line in [
        "10.244.2.2:8080/tcp on node-b: all that port 80 of default/web may use here is on flagged nodes",
        "exempt: TCP 10.96.0.10:80: all its destinations are on flagged nodes",
    ] {
        ensure!(text.contains(line), "{line:?} not in\n{text}");
    }
    agent.unflag("node-c")?;
    let began = Instant::now();
    agent.unflag("node-b")?;
    wait_same(&cluster, &before, began, &agent.log())?;
    untouched(&agent)
}
