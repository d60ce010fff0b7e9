//! Flags: which ones the agent accepts, how long they last, and what the command line says about them. `agent_maps` checks their effect on the maps.

use std::{
    fs,
    process::Output,
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, ensure};
use aya::maps::{Array, HashMap, Map, MapData};
use nodefence::flags::monotonic_ns;
use nodefence_common::{Action, Addr, BackendEntry, NodeEntry, Verdict};
use nodefence_tests::{
    Agent, Netns,
    agent::PINNED_MAPS,
    client::wait_until,
    four_nodes,
    promises::{LAPSED, RENEWED},
    watch::{wait_within, within},
};
use serde_json::Value;

/// The limit of waits that have no promised time.
const LIMIT: Duration = Duration::from_secs(10);
/// The agent reads routes at an event, and every 5 s without one. A change that the agent sees within this time came by an event.
const BY_EVENT: Duration = Duration::from_secs(3);

fn start_on(interfaces: &[&str], more: &[&str]) -> Result<(Arc<Netns>, Agent)> {
    let ns = four_nodes::namespace("flags")?;
    let agent = Agent::start_with(&ns, "node-a", interfaces, four_nodes::FILE, more)?;
    Ok((ns, agent))
}

fn start(more: &[&str]) -> Result<(Arc<Netns>, Agent)> {
    start_on(&["v0"], more)
}

/// The content of the maps `nodes` and `backends`.
#[derive(Debug, PartialEq)]
struct Maps {
    nodes: Vec<NodeEntry>,
    backends: Vec<(Addr, BackendEntry)>,
}

fn maps(ns: &Netns) -> Result<Maps> {
    ns.run(|| {
        let open =
            |name: &str| MapData::from_pin(format!("{PINNED_MAPS}/{name}")).and_then(Map::from_map_data);
        let nodes: Array<_, NodeEntry> = open("nodes")?.try_into()?;
        let backends: HashMap<_, Addr, BackendEntry> = open("backends")?.try_into()?;
        Ok(Maps {
            nodes: nodes.iter().take(16).collect::<Result<_, _>>()?,
            backends: backends.iter().collect::<Result<_, _>>()?,
        })
    })
}

fn entry(ns: &Netns, agent: &Agent, name: &str) -> Result<NodeEntry> {
    let index = agent.node(name)?["index"].as_u64().context("no index")?;
    maps(ns)?.nodes.get(usize::try_from(index)?).copied().context("no entry")
}

#[test]
fn a_flag_is_renewed_and_ends_in_time() -> Result<()> {
    let (ns, agent) = start(&[])?;
    let lasts = Duration::from_secs(5);
    let began = Instant::now();
    agent.expect(&["flag", "node-b", "--for", "5s"])?;
    let flagged = Instant::now();
    let first = entry(&ns, &agent, "node-b")?.until;
    let renewed = || {
        let now = entry(&ns, &agent, "node-b");
        assert!(now.as_ref().is_ok_and(|now| now.until > monotonic_ns()), "lapsed: {now:?}");
        now.is_ok_and(|now| now.until > first)
    };
    wait_within("a verdict's renewal", RENEWED, flagged, renewed)?;
    let took = wait_within("a flag's end", lasts + (RENEWED - Duration::from_secs(1)), flagged, || {
        entry(&ns, &agent, "node-b").is_ok_and(|entry| entry.verdict == Verdict::Healthy as u32)
    })?;
    ensure!(began.elapsed() >= lasts, "it ended after {took:?}");
    ensure!(agent.node("node-b")?["flag"].is_null());
    wait_until("flags.json without the flag", LIMIT, || {
        fs::read_to_string(agent.socket().with_file_name("flags.json"))
            .is_ok_and(|text| !text.contains("node-b"))
    })
    .map(drop)
}

#[test]
fn a_stopped_or_killed_agents_verdict_is_not_renewed() -> Result<()> {
    let (ns, mut agent) = start(&[])?;
    agent.flag("node-b")?;
    let index = usize::try_from(agent.node("node-b")?["index"].as_u64().context("no index")?)?;
    let lapsed = || -> bool {
        let until = maps(&ns).map(|maps| maps.nodes[index].until);
        until.is_ok_and(|until| until < monotonic_ns())
    };
    agent.proc()?.freeze()?;
    wait_within("the agent's stop to its verdict's lapse", LAPSED, Instant::now(), lapsed)?;
    let thawed = Instant::now();
    agent.proc()?.thaw()?;
    wait_within("a renewal after the agent's stop", RENEWED, thawed, || !lapsed())?;
    agent.kill();
    wait_within("the agent's death to its verdict's lapse", LAPSED, Instant::now(), lapsed).map(drop)
}

#[test]
fn flags_are_adopted_after_a_restart() -> Result<()> {
    let (ns, mut agent) = start(&[])?;
    agent.expect(&["flag", "node-b", "--for", "1h", "--reason", "the disk \"is\" gone"])?;
    let before = agent.node("node-b")?;
    let since = before["flag"]["since"].clone();
    for kill in [true, false] {
        if kill {
            agent.kill();
        } else {
            agent.terminate()?;
        }
        agent.restart(&[])?;
        let b = agent.node("node-b")?;
        ensure!(b["index"] == before["index"] && b["generation"] == before["generation"], "{before} {b}");
        ensure!(b["flag"]["reason"] == "the disk \"is\" gone" && b["flag"]["since"] == since, "{b}");
        ensure!(
            b["flag"]["remaining_seconds"].as_u64().is_some_and(|left| left <= 3600 && left > 3000),
            "{b}"
        );
        let entry = entry(&ns, &agent, "node-b")?;
        ensure!(entry.verdict == Verdict::Flagged as u32 && entry.until > monotonic_ns());
    }
    Ok(())
}

/// The agent renews flags before it reads the cluster file, since a large file takes an unknown time. A start that fails because of a bad file shows it: the verdict
/// was renewed before.
#[test]
fn flags_are_renewed_before_the_cluster_file_is_read() -> Result<()> {
    let (ns, mut agent) = start(&[])?;
    agent.flag("node-b")?;
    let index = usize::try_from(agent.node("node-b")?["index"].as_u64().context("no index")?)?;
    agent.kill();
    let before = maps(&ns)?.nodes[index].until;
    fs::write(agent.cluster_file(), "nodes:\n- {name: node-a, addr")?;
    let error = agent.restart(&[]).expect_err("started with a bad file").to_string();
    ensure!(error.contains("cluster.yaml"), "{error}");
    ensure!(maps(&ns)?.nodes[index].until > before, "the verdict was not renewed before the file was read");
    fs::write(agent.cluster_file(), four_nodes::FILE)?;
    agent.restart(&[])?;
    ensure!(agent.node("node-b")?["action"] == "refuse");
    Ok(())
}

#[test]
fn a_damaged_flags_file_frees_and_says_so() -> Result<()> {
    let (ns, mut agent) = start(&[])?;
    agent.flag("node-b")?;
    agent.kill();
    let file = agent.socket().with_file_name("flags.json");
    fs::write(&file, "{\"version\": 1, \"boot_id\": ")?;
    agent.restart(&[])?;
    let status = agent.json(&["status"])?;
    let problem = status["flags_problem"].as_str().context("no problem in status")?;
    ensure!(problem.contains("flags.json") && problem.contains("is damaged"), "{problem}");
    ensure!(entry(&ns, &agent, "node-b")?.verdict == Verdict::Healthy as u32, "node-b is still cut");
    // The next flag writes a sound file.
    agent.flag("node-b")?;
    ensure!(agent.json(&["status"])?["flags_problem"].is_null());
    Ok(())
}

#[test]
fn unwise_flags_are_refused_unless_forced() -> Result<()> {
    let (ns, agent) = start(&[])?;
    let refused = |args: &[&str], says: &str| -> Result<()> {
        let output = agent.cli(args)?;
        let text = String::from_utf8_lossy(&output.stderr);
        ensure!(
            output.status.code() == Some(4) && text.contains(says) && text.contains("--force"),
            "{output:?}"
        );
        Ok(())
    };
    refused(&["flag", "node-a"], "the node this agent runs on")?;
    agent.flag("node-b")?;
    refused(&["flag", "node-c"], "2 of 4 nodes would be flagged, more than a third")?;
    // A repeated flag of the same node counts once.
    agent.flag("node-b")?;
    agent.expect(&["flag", "node-c", "--force"])?;
    let own = agent.cli(&["flag", "node-a", "--force"])?;
    ensure!(own.status.success());
    let told = String::from_utf8_lossy(&own.stderr);
    ensure!(told.contains("that connect to a pod of this machine still reach it"), "{told}");
    let a = entry(&ns, &agent, "node-a")?;
    ensure!((a.verdict, a.action) == (Verdict::Flagged as u32, Action::Refuse as u32), "{a:?}");
    let unknown = agent.cli(&["flag", "node-z"])?;
    ensure!(unknown.status.code() == Some(7), "{unknown:?}");
    ensure!(String::from_utf8_lossy(&unknown.stderr).contains("no node `node-z`"), "{unknown:?}");
    Ok(())
}

#[test]
fn modes_and_answers_reach_the_map() -> Result<()> {
    for (more, action, name) in [
        (&["--mode", "observe"][..], Action::Observe, "observe"),
        (&["--answer", "drop"], Action::Drop, "drop"),
        (&["--mode", "observe", "--answer", "drop"], Action::Observe, "observe"),
    ] {
        let (ns, agent) = start(more)?;
        let report = agent.json(&["flag", "node-b"])?;
        ensure!(report["action"] == name && report["challenged"].is_null(), "{report}");
        ensure!(entry(&ns, &agent, "node-b")?.action == action as u32);
    }
    Ok(())
}

#[test]
fn a_full_map_is_counted_and_the_rest_is_written() -> Result<()> {
    let (ns, agent) = start(&["--max-backends", "2"])?;
    let status = agent.json(&["status"])?;
    ensure!(status["dataplane"]["left_out"] == 3, "{status}");
    ensure!(
        status["dataplane"]["left_out_first"].as_array().is_some_and(|first| !first.is_empty()),
        "{status}"
    );
    ensure!(maps(&ns)?.backends.len() == 2);
    agent.wait_for_log("the maps are full")?;
    ensure!(agent.expect(&["status"])?.contains("3 backends do not fit and pass"));
    let flag = agent.cli(&["flag", "node-b"])?;
    let table = String::from_utf8_lossy(&flag.stdout);
    ensure!(table.contains("3 backends of all nodes do not fit in the maps"), "{flag:?}");
    Ok(())
}

#[test]
fn an_interface_that_does_not_exist_stops_no_other() -> Result<()> {
    let (_ns, agent) = start_on(&["nope0", "v0"], &[])?;
    let status = agent.json(&["status"])?;
    let interfaces = status["interfaces"].as_array().context("no interfaces")?;
    ensure!(
        interfaces[0]["error"].as_str().is_some_and(|error| error.contains("no interface named nope0")),
        "{status}"
    );
    ensure!(interfaces[1]["error"].is_null() && !interfaces[1]["tc"].is_null(), "{status}");
    ensure!(status["state"] == "degraded" && status["warnings"][0]["code"] == "NF21", "{status}");
    agent.wait_for_log("no interface named nope0")
}

#[test]
fn uncovered_backends_are_named() -> Result<()> {
    let (ns, agent) = start(&[])?;
    ns.ip("link add w0 type veth peer name w1
         link set w0 up
         link set w1 up
         route add 10.9.1.0/24 dev w0")?;
    wait_within("the route is seen", BY_EVENT, Instant::now(), || {
        agent.json(&["status"]).is_ok_and(|status| status["uncovered"] == 1)
    })?;
    let status = agent.json(&["status"])?;
    let backends = status["cluster"]["backends"].as_u64().context("no number")?;
    let own = agent.node("node-a")?["backends"].as_u64().context("no number")?;
    ensure!(status["covered"] == backends - own - 1 && status["state"] == "degraded", "{status}");
    let said = agent.warning("NF24")?.context("no warning")?;
    ensure!(said.ends_with("10.9.1.1 on node-b: leaves by w0, which is not attached"), "{said}");
    let output = agent.cli(&["flag", "node-b"])?;
    let table = String::from_utf8_lossy(&output.stdout);
    ensure!(table.contains("\nuncovered    1 of 2 backends, which pass\n"), "{table}");
    ensure!(table.contains("\n             10.9.1.1 (leaves by w0, which is not attached)\n"), "{table}");
    Ok(())
}

/// First all traffic leaves by a device that is not attached. Then the attached device is deleted.
#[test]
fn who_sees_no_packets_is_blind() -> Result<()> {
    let (ns, agent) = start(&[])?;
    ensure!(agent.json(&["status"])?["state"] == "ok");
    ns.ip("link add w0 type veth peer name w1
         link set w0 up
         link set w1 up
         route add 10.9.0.0/17 dev w0
         route add 10.9.128.0/17 dev w0")?;
    let begins = |with: &str| agent.expect(&["status"]).is_ok_and(|text| text.starts_with(with));
    let uncovered = "BLIND: nothing is cut: no backend is covered; 1 warning: NF03\n  NF03  ";
    wait_within("no backend is covered", BY_EVENT, Instant::now(), || begins(uncovered))
        .with_context(|| agent.expect(&["status"]).unwrap_or_default())?;
    ns.ip("link delete v0")?;
    let gone = "BLIND: nothing is cut: no device is attached; ";
    wait_within("no device is attached", BY_EVENT, Instant::now(), || begins(gone))
        .with_context(|| agent.expect(&["status"]).unwrap_or_default())?;
    ensure!(agent.cli(&["status", "--check"])?.status.code() == Some(5));
    Ok(())
}

#[test]
fn auto_follows_routes() -> Result<()> {
    let (ns, agent) = start_on(&["auto"], &[])?;
    ns.ip("link add w0 type veth peer name w1
         link set w0 up
         link set w1 up
         route add 10.9.1.0/24 dev w0")?;
    wait_within("w0 is attached to", BY_EVENT, Instant::now(), || {
        agent.json(&["status"]).is_ok_and(|status| {
            let attached = |row: &Value| row["name"] == "w0" && !row["tc"].is_null();
            status["uncovered"] == 0
                && status["interfaces"].as_array().is_some_and(|rows| rows.iter().any(attached))
        })
    })
    .with_context(|| agent.log())
    .map(drop)
}

#[test]
fn auto_keeps_what_an_earlier_agent_attached() -> Result<()> {
    let (ns, mut agent) = start_on(&["auto", "x0"], &[])?;
    ns.ip("link add w0 type veth peer name w1
         link set w0 up
         link set w1 up
         link add x0 type veth peer name x1
         link set x0 up
         link set x1 up
         route add 10.9.1.0/24 dev w0")?;
    let attached = |agent: &Agent| -> Result<Vec<String>> {
        let status = agent.json(&["status"])?;
        let rows = status["interfaces"].as_array().context("no interfaces")?;
        let mut names: Vec<String> = rows
            .iter()
            .filter(|row| !row["tc"].is_null())
            .filter_map(|row| row["name"].as_str().map(str::to_owned))
            .collect();
        names.sort_unstable();
        Ok(names)
    };
    let all = ["v0", "w0", "x0"];
    wait_within("all are attached to", BY_EVENT, Instant::now(), || {
        attached(&agent).is_ok_and(|names| names == all)
    })
    .with_context(|| agent.log())?;
    agent.kill();
    // A routing daemon that restarts may add the route again only after the agent's start.
    ns.ip("route del 10.9.1.0/24 dev w0")?;
    agent.restart(&[])?;
    ensure!(attached(&agent)? == all, "{:?}", attached(&agent)?);
    Ok(())
}

#[test]
fn a_flag_says_how_many_flows_there_are() -> Result<()> {
    let (_ns, agent) = start(&[])?;
    // Without --wait the answer comes before the flows are closed: here there are none.
    let report = agent.json(&["flag", "node-b"])?;
    ensure!(report["established"] == 0 && report["challenging"] == false, "{report}");
    agent.unflag("node-b")?;
    let report = agent.json(&["flag", "node-b", "--wait"])?;
    ensure!(report["challenging"] == false && report["challenged"]["listed"] == 0, "{report}");
    Ok(())
}

/// A flag that is withdrawn before its round of challenges begins has no round: whoever waits for it is told so.
#[test]
fn a_flag_that_is_withdrawn_does_not_wait() -> Result<()> {
    const ENDS: Duration = Duration::from_secs(5);
    let (_ns, agent) = start(&[])?;
    for round in 0..15 {
        let begun = Instant::now();
        let waits = std::thread::scope(|scope| -> Result<Output> {
            let waits = scope.spawn(|| agent.cli(&["flag", "node-b", "--wait"]));
            wait_until("the flag is withdrawn", ENDS, || {
                agent.json(&["unflag", "node-b"]).is_ok_and(|report| report["was_flagged"] == true)
            })?;
            waits.join().ok().context("the command's thread panicked")?
        })?;
        ensure!(waits.status.success(), "round {round}: {waits:?}");
        within("a withdrawn flag to its answer", ENDS, begun)?;
    }
    Ok(())
}

#[test]
fn what_a_terminal_would_obey_is_shown() -> Result<()> {
    let (_ns, agent) = start(&[])?;
    let reason = "gone \u{1b}[2J\nfor good";
    agent.expect(&["flag", "node-b", "--reason", reason])?;
    for verb in ["nodes", "status"] {
        let table = agent.expect(&[verb])?;
        ensure!(table.contains("gone \\u{1b}[2J\\nfor good") && !table.contains('\u{1b}'), "{table:?}");
    }
    ensure!(agent.node("node-b")?["flag"]["reason"] == reason);
    Ok(())
}
