//! No thread of the agent waits for another thread. If a thread fails, the agent shuts down in order.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, ensure};
use libc::{SCHED_BATCH, SCHED_OTHER};
use nodefence::report::Request;
use nodefence_tests::{
    Agent, Netns,
    client::wait_until,
    four_nodes,
    promises::FOLLOWED,
    still::{flags_are_answered, verdicts_are_renewed},
    traced::Still,
    watch,
};
use serde_json::Value;

/// The limit of waits that have no promised time: a process is up, or has ended.
const READY: Duration = Duration::from_secs(60);

const SERVICES: &str = "services:
- name: default/web
  clusterIPs: [10.96.0.10]
  ports: [{port: 80}]
  endpoints: [{address: 10.9.1.1, node: node-b}, {address: 10.9.2.1, node: node-c}]
";

/// An agent that rescues, and so has all of its threads.
fn start() -> Result<(Arc<Netns>, Agent)> {
    let ns = four_nodes::namespace("threads")?;
    let file = format!("{}{SERVICES}", four_nodes::FILE);
    let agent = Agent::start_with(&ns, "node-a", &["v0"], &file, &["--proxy", "nftables"])?;
    let rescues = || agent.status().is_ok_and(|status| status["rescue"]["idle"].is_null());
    wait_until("it rescues", READY, rescues).with_context(|| agent.log())?;
    Ok((ns, agent))
}

/// An agent that cuts node-b, and that node's index.
fn start_and_cut() -> Result<(Arc<Netns>, Agent, u32)> {
    let (ns, agent) = start()?;
    agent.flag("node-b")?;
    let index = agent.node("node-b")?["index"].as_u64().context("no index")?;
    Ok((ns, agent, u32::try_from(index)?))
}

/// Nice value and scheduling policy of a process's threads, by name.
fn precedences(pid: impl std::fmt::Display) -> Result<BTreeMap<String, BTreeSet<(i32, i32)>>> {
    let mut found = BTreeMap::<_, BTreeSet<_>>::new();
    for task in fs::read_dir(format!("/proc/{pid}/task"))? {
        // A thread of the runtime may end meanwhile.
        let Ok(stat) = fs::read_to_string(task?.path().join("stat")) else { continue };
        // `pid (name) state ...`; nice is the 19th field, and policy the 41st (proc_pid_stat(5)).
        let (head, rest) = stat.rsplit_once(')').context("a name without an end")?;
        let (_, name) = head.split_once('(').context("no name")?;
        let fields: Vec<&str> = rest.split_whitespace().collect();
        let field = |number: usize| {
            fields.get(number - 3).context("a line that is short")?.parse::<i32>().context("no number")
        };
        found.entry(name.to_owned()).or_default().insert((field(19)?, field(41)?));
    }
    Ok(found)
}

/// Threads for which packets or operators wait have precedence. Threads of the runtime for blocking work have the nice value and policy of the agent's first
/// thread. The agent's own threads for which nobody waits have the policy SCHED_BATCH: they preempt no other thread when they wake up.
#[test]
fn who_is_waited_for_has_precedence_and_nobody_else() -> Result<()> {
    const FIRST: [&str; 4] = ["verdicts", "drain", "rescue", "rescue-sticky"];
    const USUAL: [&str; 2] = ["answers", "log-writer"];
    const BATCH: [&str; 6] = ["source", "builder", "tables", "store", "log", "audit"];
    let (_ns, agent) = start()?;
    agent.flag("node-b")?;
    let pid = agent.proc()?.pid();
    let found = precedences(pid)?;
    // The first thread has the name of the process.
    let first = found.get("nodefence").context("no first thread")?;
    let usual = first.first().context("no first thread")?.0;
    ensure!(first.len() == 1 && usual != -20, "the agent was started with nice value -20: {found:?}");
    let ahead = (-20, SCHED_OTHER);
    let batch = (usual, SCHED_BATCH);
    for (names, wanted) in [(&FIRST[..], ahead), (&USUAL[..], (usual, SCHED_OTHER)), (&BATCH[..], batch)] {
        for name in names {
            ensure!(found.get(*name) == Some(&BTreeSet::from([wanted])), "{name}: not {wanted:?}: {found:?}");
        }
    }
    let runtime = found.get("nodefence-rt").context("no thread of the runtime's")?;
    ensure!(
        runtime.contains(&ahead) && runtime.is_subset(&BTreeSet::from([ahead, (usual, SCHED_OTHER)])),
        "{found:?}"
    );
    Ok(())
}

/// While the thread `name` stands still, verdicts are renewed, a flag and an unflag are carried out, and one more thread does its work.
fn nobody_is_held_up(ns: &Netns, agent: &Agent, index: u32, name: &str) -> Result<()> {
    let since = Instant::now();
    flags_are_answered(agent, name)?;
    others_go_on(agent, name).with_context(|| format!("{name} stands still"))?;
    verdicts_are_renewed(ns, index, name, since)
}

/// Checks that the cluster file is followed. If `name` is a thread that follows the file, checks that the audit answers instead.
fn others_go_on(agent: &Agent, name: &str) -> Result<()> {
    const FOLLOWERS: [&str; 3] = ["source", "builder", "tables"];
    if FOLLOWERS.contains(&name) { audit_answers(agent) } else { file_is_followed(agent) }
}

fn file_is_followed(agent: &Agent) -> Result<()> {
    let rows = agent.expect(&["backends"])?;
    let [old, new] = ["10.9.3.1", "10.9.3.2"];
    let other = if rows.contains(new) { old } else { new };
    let rewritten = Instant::now();
    agent.rewrite_cluster_file(&format!("{}{SERVICES}", four_nodes::FILE.replace(old, other)))?;
    let follows = || agent.expect(&["backends"]).is_ok_and(|rows| rows.contains(other));
    watch::wait_within("the file is followed", FOLLOWED, rewritten, follows).map(drop)
}

/// The exit code is 5 if the audit finds faults, so only the answer is checked.
fn audit_answers(agent: &Agent) -> Result<()> {
    let audit: Value = serde_json::from_slice(&agent.cli(&["audit", "-o", "json"])?.stdout)?;
    ensure!(audit["node"] == "node-a", "{audit}");
    Ok(())
}

/// Checks that the thread that stood still works again.
fn all_go_on(agent: &Agent) -> Result<()> {
    file_is_followed(agent)?;
    audit_answers(agent)
}

/// Each thread stands still in turn. Three agents run at once, since each of them waits for nearly all of the time.
#[test]
fn whoever_stands_still_holds_nobody_up() -> Result<()> {
    const NAMES: [&[&str]; 3] = [
        &["source", "answers", "builder", "tables"],
        &["store", "log", "log-writer", "audit"],
        &["drain", "rescue", "rescue-sticky"],
    ];
    // Measurements are recorded under the name of the thread, which must be this test's name.
    let test = std::thread::current().name().unwrap_or_default().to_owned();
    std::thread::scope(|scope| -> Result<()> {
        let begin = |names| {
            std::thread::Builder::new()
                .name(test.clone())
                .spawn_scoped(scope, move || each_stands_still(names))
        };
        let held = NAMES.into_iter().map(begin).collect::<std::io::Result<Vec<_>>>()?;
        held.into_iter()
            .try_for_each(|held| held.join().map_err(|_| anyhow::anyhow!("a thread of the test panicked"))?)
    })
}

fn each_stands_still(names: &[&str]) -> Result<()> {
    let (ns, agent, index) = start_and_cut()?;
    for name in names {
        let still = Still::of(agent.proc()?.pid(), name)?;
        nobody_is_held_up(&ns, &agent, index, name)?;
        still.lift()?;
    }
    all_go_on(&agent)
}

/// The thread `rescue` waits for packets by `poll`. If that call fails, the thread ends.
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
    ensure!(log.contains("`rescue`: cannot wait on the packets to rescue: Function not implemented (os error 38); the agent"), "the thread is not named: {log}");
    ensure!(log.contains("the agent ends; the dataplane stays"), "the agent did not end in order: {log}");
    ensure!(!agent.socket().exists(), "the agent left its socket");
    // The next agent adopts the flag.
    agent.restart(&[])?;
    ensure!(agent.node("node-b")?["action"] == "refuse", "{}", agent.log());
    drop(agent);
    drop(ns);
    Ok(())
}

/// A task's blocking work runs on a thread that bears the task's name meanwhile. Two tasks are not tried here: `vm_late_ipvs` stops `findings`, and `cut-log`
/// has no blocking work.
#[cfg(target_arch = "x86_64")]
#[test]
fn a_task_that_stands_still_holds_nobody_up() -> Result<()> {
    let (ns, agent, index) = start_and_cut()?;
    let pid = agent.proc()?.pid();
    // The first three tasks begin blocking work by themselves.
    for name in ["routes", "neighbours", "kube-proxy", "follow-up", "stale-flows"] {
        let provoke = || match name {
            "follow-up" | "stale-flows" => agent.flag_by_socket("node-d").map(drop),
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
        let waited = waits.context("no request was sent")?.join();
        waited.map_err(|_| anyhow::anyhow!("the thread that sent the request panicked"))?.map(drop)
    })?;
    all_go_on(&agent)
}
