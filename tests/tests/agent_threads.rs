//! That no thread of the agent's waits for another one, and that the agent ends in order where one of them falls.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    sync::Arc,
    thread::sleep,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, ensure};
use aya::maps::{Array, Map, MapData};
use nodefence::{flags::monotonic_ns, report::Request};
use nodefence_tests::{
    Agent, Netns, agent::PINNED_MAPS, client::wait_until, four_nodes, promises::FOLLOWED, traced::Still,
    watch,
};
use serde_json::Value;

/// Longer than a verdict holds that nobody renews (3 s).
const STILL: Duration = Duration::from_secs(5);
/// A verdict lies so far ahead at least, whoever stands still.
const AHEAD: Duration = Duration::from_secs(1);
/// A flag and its end are carried out and told by then, whoever stands still but for who saves flags.
const ANSWERED: Duration = Duration::from_millis(500);
/// So long each of them waits at most until it is saved.
const SAVED: Duration = Duration::from_secs(1);
/// For what nobody promised: a process is up, or has ended.
const READY: Duration = Duration::from_secs(60);

const SERVICES: &str = "services:
- name: default/web
  clusterIPs: [10.96.0.10]
  ports: [{port: 80}]
  endpoints: [{address: 10.9.1.1, node: node-b}, {address: 10.9.2.1, node: node-c}]
";

/// An agent that rescues, and thus has all of its threads.
fn start() -> Result<(Arc<Netns>, Agent)> {
    let ns = four_nodes::namespace("threads")?;
    let file = format!("{}{SERVICES}", four_nodes::FILE);
    let agent = Agent::start_with(&ns, "node-a", &["v0"], &file, &["--proxy", "nftables"])?;
    let rescues = || agent.status().is_ok_and(|status| status["rescue"]["idle"].is_null());
    wait_until("it rescues", READY, rescues).with_context(|| agent.log())?;
    Ok((ns, agent))
}

/// One that cuts node-b, and that node's place.
fn start_and_cut() -> Result<(Arc<Netns>, Agent, u32)> {
    let (ns, agent) = start()?;
    agent.flag("node-b")?;
    let index = agent.node("node-b")?["index"].as_u64().context("no index")?;
    Ok((ns, agent, u32::try_from(index)?))
}

/// Up to when (CLOCK_MONOTONIC, ns) the verdict at this place holds.
fn until(ns: &Netns, index: u32) -> Result<u64> {
    ns.run(move || {
        let map = MapData::from_pin(format!("{PINNED_MAPS}/nodes")).and_then(Map::from_map_data)?;
        let nodes: Array<_, [u8; 48]> = map.try_into()?;
        Ok(u64::from_ne_bytes(nodes.get(&index, 0)?[8..16].try_into()?))
    })
}

/// Who is cut, by name.
fn flagged(agent: &Agent) -> Result<Vec<String>> {
    let nodes: Vec<Value> = agent.ask(&Request::Nodes)?;
    let cut = nodes.iter().filter(|node| node["action"] == "refuse");
    Ok(cut.filter_map(|node| node["name"].as_str()).map(str::to_owned).collect())
}

/// The nice values of a process's threads, by name.
fn nice_values(pid: impl std::fmt::Display) -> Result<BTreeMap<String, BTreeSet<i32>>> {
    let mut found = BTreeMap::<_, BTreeSet<_>>::new();
    for task in fs::read_dir(format!("/proc/{pid}/task"))? {
        // A thread of the runtime may end meanwhile.
        let Ok(stat) = fs::read_to_string(task?.path().join("stat")) else { continue };
        // `pid (name) state ...`, and nice is the 19th field (proc_pid_stat(5)).
        let (head, rest) = stat.rsplit_once(')').context("a name without an end")?;
        let (_, name) = head.split_once('(').context("no name")?;
        let nice = rest.split_whitespace().nth(16).context("no nice value")?.parse()?;
        found.entry(name.to_owned()).or_default().insert(nice);
    }
    Ok(found)
}

/// Packets and operators wait for some. The others take their turn as the agent's first thread does, also the runtime's that did what may block.
#[test]
fn who_is_waited_for_has_precedence_and_nobody_else() -> Result<()> {
    const FIRST: [&str; 4] = ["verdicts", "takeout", "rescue", "rescue-kept"];
    const USUAL: [&str; 7] = ["source", "answers", "builder", "tables", "store", "log", "audit"];
    let (_ns, agent) = start()?;
    agent.flag("node-b")?;
    let pid = agent.proc()?.pid();
    let found = nice_values(pid)?;
    // The first thread's name is the process's.
    let usual = found.get("nodefence").context("no first thread")?.clone();
    ensure!(usual.len() == 1 && !usual.contains(&-20), "the agent was started with precedence: {found:?}");
    for (names, nice) in [(&FIRST[..], &BTreeSet::from([-20])), (&USUAL[..], &usual)] {
        for name in names {
            ensure!(found.get(*name) == Some(nice), "{name}: not {nice:?}: {found:?}");
        }
    }
    let runtime = found.get("nodefence-rt").context("no thread of the runtime's")?;
    ensure!(runtime.contains(&-20) && runtime.is_subset(&(&usual | &BTreeSet::from([-20]))), "{found:?}");
    Ok(())
}

/// Verdicts are renewed, flags are carried out and taken back, and one of the others does its work, for as long as somebody stands still.
fn nobody_is_held_up(ns: &Netns, agent: &Agent, index: u32, name: &str) -> Result<()> {
    let since = Instant::now();
    agent.flag_by_socket("node-c").with_context(|| format!("{name} stands still"))?;
    ensure!(flagged(agent)? == ["node-b", "node-c"], "{name} stands still: the flag is not carried out");
    agent.ask::<Value>(&Request::Unflag { node: "node-c".into() })?;
    ensure!(flagged(agent)? == ["node-b"], "{name} stands still: the flag is not taken back");
    let promised = if name == "store" { ANSWERED + 2 * SAVED } else { ANSWERED };
    watch::within(&format!("answers while {name} stands still"), promised, since)?;
    others_go_on(agent, name).with_context(|| format!("{name} stands still"))?;
    while since.elapsed() < STILL {
        let ahead = Duration::from_nanos(until(ns, index)?.saturating_sub(monotonic_ns()));
        if ahead + watch::longest_gap(since) < AHEAD {
            let text = format!("{name} stands still: the verdict holds for {ahead:?} only");
            return Err(watch::overdue(AHEAD, text));
        }
        sleep(Duration::from_millis(50));
    }
    Ok(())
}

/// The file is followed where those work who do so, and else the audit answers.
fn others_go_on(agent: &Agent, name: &str) -> Result<()> {
    const FOLLOWERS: [&str; 3] = ["source", "builder", "tables"];
    if FOLLOWERS.contains(&name) { audit_answers(agent) } else { file_is_followed(agent) }
}

fn file_is_followed(agent: &Agent) -> Result<()> {
    let rows = agent.expect(&["backends"])?;
    let [old, new] = ["10.9.3.1", "10.9.3.2"];
    let other = if rows.contains(new) { old } else { new };
    let renamed = Instant::now();
    agent.rewrite_cluster_file(&format!("{}{SERVICES}", four_nodes::FILE.replace(old, other)))?;
    let follows = || agent.expect(&["backends"]).is_ok_and(|rows| rows.contains(other));
    watch::wait_within("the file is followed", FOLLOWED, renamed, follows).map(drop)
}

/// Faults are exit code 1: its answer is what counts.
fn audit_answers(agent: &Agent) -> Result<()> {
    let audit: Value = serde_json::from_slice(&agent.cli(&["audit", "-o", "json"])?.stdout)?;
    ensure!(audit["node"] == "node-a", "{audit}");
    Ok(())
}

/// Whoever stood still goes on.
fn all_go_on(agent: &Agent) -> Result<()> {
    file_is_followed(agent)?;
    audit_answers(agent)
}

#[test]
fn whoever_stands_still_holds_nobody_up() -> Result<()> {
    let (ns, agent, index) = start_and_cut()?;
    for name in [
        "source",
        "answers",
        "builder",
        "tables",
        "store",
        "log",
        "takeout",
        "rescue",
        "rescue-kept",
        "audit",
    ] {
        let still = Still::of(agent.proc()?.pid(), name)?;
        nobody_is_held_up(&ns, &agent, index, name)?;
        still.lift()?;
    }
    all_go_on(&agent)
}

/// The thread that rescues waits for packets; where that call fails it cannot go on.
#[cfg(target_arch = "x86_64")]
#[test]
fn a_thread_that_falls_ends_the_agent_in_order() -> Result<()> {
    use nodefence_tests::traced::refuse;

    let (ns, mut agent) = start()?;
    agent.flag("node-b")?;
    let pid = agent.proc()?.pid();
    refuse(pid, "rescue", &[libc::SYS_poll, libc::SYS_ppoll])?;
    let code = agent.ends_by_itself(READY)?;
    let log = agent.log();
    ensure!(code == Some(1), "ended with {code:?}: {log}");
    ensure!(log.contains("`rescue`: wait on the packets to rescue"), "it is not told who fell: {log}");
    ensure!(log.contains("the agent ends; the dataplane stays"), "not in order: {log}");
    ensure!(!agent.socket().exists(), "the socket is left");
    // The next one goes on with what it knew.
    agent.restart(&[])?;
    ensure!(agent.node("node-b")?["action"] == "refuse", "{}", agent.log());
    drop(agent);
    drop(ns);
    Ok(())
}

/// Tasks do what may block on threads that bear their names meanwhile. (`findings` looks again only where IPVS or conntrack came later.)
#[cfg(target_arch = "x86_64")]
#[test]
fn a_task_that_stands_still_holds_nobody_up() -> Result<()> {
    let (ns, agent, index) = start_and_cut()?;
    let pid = agent.proc()?.pid();
    // The first three come by themselves.
    for name in ["routes", "neighbours", "kube-proxy", "follow-up", "pinned"] {
        let provoke = || match name {
            "follow-up" | "pinned" => agent.flag_by_socket("node-d").map(drop),
            _ => Ok(()),
        };
        let still = Still::of_next(pid, name, provoke)?;
        agent.ask::<Value>(&Request::Unflag { node: "node-d".into() })?;
        nobody_is_held_up(&ns, &agent, index, name)?;
        still.lift()?;
    }
    std::thread::scope(|scope| -> Result<()> {
        let asks = || agent.status();
        let mut waits = None;
        let still = Still::of_next(pid, "api", || {
            waits = Some(scope.spawn(asks));
            Ok(())
        })?;
        nobody_is_held_up(&ns, &agent, index, "api")?;
        still.lift()?;
        let waited = waits.context("nobody asks")?.join();
        waited.map_err(|_| anyhow::anyhow!("who asks panicked"))?.map(drop)
    })?;
    all_go_on(&agent)
}
