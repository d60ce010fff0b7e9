//! An agent whose source delivers single objects: what the agent waits for, what it cuts, how it treats conflicts, and how it ends.

use std::{
    net::SocketAddr,
    path::Path,
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, ensure};
use aya::maps::{HashMap, Map, MapData};
use nodefence_common::{Addr, BackendEntry, Reason};
use nodefence_tests::{
    Agent, Netns, Outcome,
    agent::PINNED_MAPS,
    bin,
    client::{Conn, wait_until},
    four_nodes,
    promises::FOLLOWED,
    watch::wait_within,
};
use serde_json::{Value, json};

/// The destination does not exist: a packet that is not refused within this time gets no answer.
const AT_ONCE: Duration = Duration::from_secs(1);
/// A generous limit, since the machine may be busy.
const READY: Duration = Duration::from_secs(60);

const NODES: &str = "nodes node-a=10.9.0.1 node-b=10.9.0.12 node-c=10.9.0.13 node-d=10.9.0.14\n";
const SERVICES: &str = "services default/web=10.96.0.10:80 default/db=10.96.0.11:80\n";
const SLICES: &str = "slices web-1=default/web:10.9.1.1@node-b,10.9.2.1@node-c db-1=default/db:10.9.1.2@node-b,10.9.3.1@node-d\n";

fn begin() -> Result<(Arc<Netns>, Agent)> {
    begin_with(&[])
}

fn begin_with(options: &[&str]) -> Result<(Arc<Netns>, Agent)> {
    let ns = four_nodes::namespace("objects")?;
    for address in ["10.9.1.1", "10.9.1.2", "10.9.2.1"] {
        ns.ip(&format!("neigh add {address} lladdr 02:00:00:00:00:01 nud permanent dev v0"))?;
    }
    let agent = Agent::of_objects(&bin("nodefence-objects")?, &ns, "node-a", &["v0"], options)?;
    Ok((ns, agent))
}

/// An agent that has received all objects.
fn start() -> Result<(Arc<Netns>, Agent)> {
    start_with(&[])
}

fn start_with(options: &[&str]) -> Result<(Arc<Netns>, Agent)> {
    let (ns, mut agent) = begin_with(options)?;
    agent.tell(&[NODES, SERVICES, SLICES].concat())?;
    agent.ready()?;
    Ok((ns, agent))
}

/// The index of the node that the map `backends` has for this address.
fn owner(ns: &Netns, address: &str) -> Result<Option<u64>> {
    let address = Addr::from(address.parse::<std::net::IpAddr>()?);
    ns.run(move || {
        let map = MapData::from_pin(Path::new(PINNED_MAPS).join("backends")).and_then(Map::from_map_data)?;
        let backends: HashMap<_, Addr, BackendEntry> = map.try_into()?;
        Ok(backends.get(&address, 0).ok().map(|entry| entry.node.into()))
    })
}

/// Waits until the map `backends` has this address with this node, or does not have it.
fn owned(ns: &Netns, agent: &Agent, address: &str, node: Option<&str>) -> Result<()> {
    let index = node.map(|node| agent.node(node)?["index"].as_u64().context("no index")).transpose()?;
    let what = format!("{address} is of {node:?} in the map");
    wait_within(&what, FOLLOWED, Instant::now(), || owner(ns, address).is_ok_and(|owner| owner == index))
        .with_context(|| agent.log())
        .map(drop)
}

fn is_refused(ns: &Netns, address: &str) -> Result<bool> {
    let to: SocketAddr = format!("{address}:8080").parse()?;
    match Conn::attempt(ns, to, AT_ONCE).conn.map_err(|error| Outcome::of(&error)) {
        // A packet that passes gets no answer, since its destination does not exist.
        Err(Outcome::TimedOut) => Ok(false),
        _ => Conn::refused_at_once(ns, to, AT_ONCE).map(|_| true),
    }
}

/// Waits until the source's row in `status` passes `test`.
fn told(agent: &Agent, what: &str, test: impl Fn(&Value) -> bool) -> Result<Value> {
    let row = || agent.status().map(|status| status["cluster"].clone());
    wait_within(what, FOLLOWED, Instant::now(), || row().is_ok_and(|row| test(&row)))
        .with_context(|| format!("{:?}\n{}", row(), agent.log()))?;
    row()
}

/// How often the log contains `text`.
fn logged(agent: &Agent, text: &str) -> usize {
    agent.log().matches(text).count()
}

#[test]
fn what_comes_in_any_order_is_cut() -> Result<()> {
    let (ns, mut agent) = begin()?;
    // Slices come first. A single Service is no list: there may be others.
    agent.tell(&format!("{SLICES}service default/web=10.96.0.10:80\n"))?;
    agent
        .wait_for_log("the start waits for the list of objects: the first list of nodes, Services event=")?;
    agent.tell("nodes\n")?;
    agent.wait_for_log("the first list of Services")?;
    agent.tell(SERVICES)?;
    agent.wait_for_log("there are no nodes; if that is meant, start the agent with --allow-empty")?;
    ensure!(!agent.socket().exists(), "the agent serves its socket before it knows the nodes");
    agent.tell(NODES)?;
    agent.ready()?;
    owned(&ns, &agent, "10.9.1.1", Some("node-b"))?;
    owned(&ns, &agent, "10.9.2.1", Some("node-c"))?;
    let status = agent.status()?;
    let row = &status["cluster"];
    ensure!(
        row["source"] == "the list of objects" && row["file"].is_null() && row["error"].is_null(),
        "{row}"
    );
    ensure!((&row["nodes"], &row["backends"]) == (&json!(4), &json!(4)), "{row}");
    ensure!((&row["conflicts"], &row["conflict_examples"]) == (&json!(0), &json!([])), "{row}");
    let text = agent.expect(&["status", "-o", "wide"])?;
    ensure!(
        text.contains("\nList of objects 4 nodes, 4 backends, 2 Services with 4 endpoints, read "),
        "{text}"
    );
    ensure!(text.contains("\nView ") && !text.contains("luster file"), "{text}");

    ensure!(!is_refused(&ns, "10.9.1.1")?, "a pod is cut, and no node is flagged");
    agent.flag("node-b")?;
    ensure!(is_refused(&ns, "10.9.1.1")?, "a pod of the flagged node is not cut");
    ensure!(!is_refused(&ns, "10.9.2.1")?, "a pod of node-c is cut, which is not flagged");
    // A pod is added while its node is cut.
    agent.tell("slice web-2=default/web:10.9.1.3@node-b\n")?;
    owned(&ns, &agent, "10.9.1.3", Some("node-b"))?;
    agent.unflag("node-b")?;
    ensure!(!is_refused(&ns, "10.9.1.1")?, "a pod is cut after the unflag");
    agent.end()
}

#[test]
fn what_two_nodes_claim_is_cut_for_neither() -> Result<()> {
    let (ns, mut agent) = start()?;
    agent.flag("node-b")?;
    ensure!(is_refused(&ns, "10.9.1.1")?, "a pod of the flagged node is not cut");
    agent.tell("node node-d=10.9.0.14,10.9.1.1\n")?;
    let row = told(&agent, "conflicts", |row| row["conflicts"] == 2)?;
    let why = "10.9.1.1 is claimed for `node-b` and for `node-d`, and counts for neither";
    let expected = json!([
        { "object": "node `node-d`", "field": "addresses[1]", "message": why },
        { "object": "slice `web-1`", "field": "endpoints[0].address", "message": why },
    ]);
    ensure!(row["conflict_examples"] == expected && row["error"].is_null(), "{row}");
    owned(&ns, &agent, "10.9.1.1", None)?;
    ensure!(!is_refused(&ns, "10.9.1.1")?, "an address that two nodes claim is cut");
    // All other backends are still cut, and new objects are still accepted.
    ensure!(is_refused(&ns, "10.9.1.2")?, "a backend without a conflict is not cut any more");
    agent.tell("slice web-2=default/web:10.9.1.3@node-b\n")?;
    owned(&ns, &agent, "10.9.1.3", Some("node-b"))?;
    let text = agent.expect(&["status", "-o", "wide"])?;
    let line = "\nConflicts       2 (NF11)\n";
    ensure!(text.contains(&format!("{line}                node `node-d`, addresses[1]: {why}\n")), "{text}");
    let doctor = agent.cli(&["doctor", "--interface", "v0"])?;
    let doctor = String::from_utf8_lossy(&doctor.stdout).into_owned();
    let found = format!("left out and not cut; the first: node `node-d`, addresses[1]: {why}");
    ensure!(doctor.contains("warn  NF11") && doctor.contains(&found), "{doctor}");
    let both = || logged(&agent, why) >= 2;
    wait_until("both conflicts are logged", READY, both).with_context(|| agent.log())?;
    ensure!(logged(&agent, why) == 2, "not each conflict is logged once: {}", agent.log());
    agent.tell("node node-d=10.9.0.14\n")?;
    told(&agent, "no conflicts", |row| row["conflicts"] == 0 && row["conflict_examples"] == json!([]))?;
    owned(&ns, &agent, "10.9.1.1", Some("node-b"))?;
    ensure!(is_refused(&ns, "10.9.1.1")?, "the address is node-b's alone again, and is not cut");
    agent.end()
}

#[test]
fn the_last_endpoint_of_a_headless_service_passes() -> Result<()> {
    let (ns, mut agent) = start()?;
    agent.tell("service default/peers=None:80\nslice peers-1=default/peers:10.9.1.1@node-b\n")?;
    told(&agent, "three Services", |row| row["services"] == 3)?;
    agent.flag("node-b")?;
    ensure!(!is_refused(&ns, "10.9.1.1")?, "the last endpoint is cut");
    ensure!(is_refused(&ns, "10.9.1.2")?, "an endpoint of a Service that has another one passes");
    agent.tell("slice peers-2=default/peers:10.9.2.1@node-c\n")?;
    let cut = || is_refused(&ns, "10.9.1.1").is_ok_and(|refused| refused);
    wait_until("the endpoint is cut once there is another", READY, cut).with_context(|| agent.log())?;
    agent.end()
}

#[test]
fn a_list_takes_the_place_of_all_that_was_told() -> Result<()> {
    let (ns, mut agent) = start()?;
    let view = |agent: &Agent| Ok::<_, anyhow::Error>(agent.status()?["cluster"]["view"].clone());
    let first = view(&agent)?;
    agent.tell(&[NODES, SERVICES, SLICES].concat())?;
    let told_all = |row: &Value| row["reading"]["times"].as_u64() > Some(0);
    let row = told(&agent, "the same lists", told_all)?;
    ensure!(row["view"] == first, "the same lists gave a new view: {row}");
    agent.tell("slices web-1=default/web:10.9.2.1@node-c db-2=default/db:10.9.1.4@node-b\n")?;
    owned(&ns, &agent, "10.9.1.1", None)?;
    owned(&ns, &agent, "10.9.3.1", None)?;
    owned(&ns, &agent, "10.9.1.4", Some("node-b"))?;
    owned(&ns, &agent, "10.9.2.1", Some("node-c"))?;
    // The agent rejects a list without nodes: such a list would end every flag.
    agent.tell("nodes\n")?;
    told(&agent, "an error", |row| row["error"].as_str().is_some_and(|why| why.contains("--allow-empty")))?;
    owned(&ns, &agent, "10.9.2.1", Some("node-c"))?;
    agent.tell("nodes node-a=10.9.0.1 node-b=10.9.0.12\ngone service default/db\n")?;
    let row = told(&agent, "two nodes", |row| row["nodes"] == 2 && row["services"] == 1)?;
    ensure!(row["error"].is_null() && row["backends"] == 0, "{row}");
    // The endpoint's node does not exist any more.
    ensure!(row["skipped_examples"][0]["object"] == "slice `web-1`" && row["skipped"] == 1, "{row}");
    agent.end()
}

#[test]
fn an_agent_whose_source_has_ended_ends_in_order() -> Result<()> {
    let (_ns, mut agent) = start()?;
    agent.flag("node-b")?;
    drop(agent.take_objects_pipe()?);
    ensure!(agent.ends_by_itself(READY)? == Some(1), "{}", agent.log());
    let log = agent.log();
    ensure!(log.contains("`source`: the list of objects has ended; the agent ends"), "{log}");
    ensure!(!agent.socket().exists(), "the agent left its socket");
    Ok(())
}

#[test]
fn a_signal_ends_a_start_that_waits() -> Result<()> {
    let (_ns, mut agent) = begin()?;
    agent.wait_for_log("the start waits for the list of objects")?;
    agent.terminate()?;
    let log = agent.log();
    ensure!(log.contains("SIGTERM") && !log.contains("has ended"), "{log}");
    Ok(())
}

/// The value of `--max-view-age` in the test.
const OLDEST: Duration = Duration::from_secs(4);

#[test]
fn a_view_that_nobody_confirms_cuts_nothing_in_the_end() -> Result<()> {
    let (ns, mut agent) = start_with(&["--max-view-age", "4s"])?;
    let view = agent.status()?["cluster"]["view"].clone();
    // The agent has these Services already: the list only confirms the view.
    let confirmed = Instant::now();
    agent.tell(SERVICES)?;
    agent.flag("node-b")?;
    ensure!(is_refused(&ns, "10.9.1.1")?, "a pod of the flagged node is not cut");
    let to: SocketAddr = "10.9.1.1:8080".parse()?;
    // A packet that passes gets no answer, since its destination does not exist.
    let passes = || {
        let attempt = Conn::attempt(&ns, to, Duration::from_millis(100));
        attempt.conn.is_err_and(|error| Outcome::of(&error) == Outcome::TimedOut)
    };
    wait_within("an old view cuts nothing", OLDEST + Duration::from_secs(1), confirmed, passes)
        .with_context(|| agent.log())?;
    ensure!(confirmed.elapsed() >= OLDEST, "the cut ended already after {:?}", confirmed.elapsed());
    ensure!(!is_refused(&ns, "10.9.1.1")?, "a pod is cut by a view that is too old");
    ensure!(agent.counter(Reason::Observed)? > 0, "the packets that passed are not counted");
    let row = &agent.status()?["cluster"];
    ensure!((&row["is_old"], &row["max_age_seconds"]) == (&json!(true), &json!(4)), "{row}");
    let status = agent.status()?;
    ensure!(status["state"] == "observe" && status["warnings"][0]["code"] == "NF08", "{status}");
    ensure!(
        agent
            .expect(&["status"])?
            .starts_with("OBSERVE: nothing is cut, only counted: the view is too old; "),
        "{}",
        agent.expect(&["status"])?
    );
    let again = agent.json(&["flag", "node-b"])?;
    let why = "the view is older than --max-view-age: nothing is cut, only counted";
    ensure!(again["warnings"].as_array().is_some_and(|rows| rows.contains(&json!(why))), "{again}");

    let begun = Instant::now();
    agent.tell(SERVICES)?;
    wait_within("a view that is confirmed cuts", FOLLOWED, begun, || !passes())?;
    ensure!(is_refused(&ns, "10.9.1.1")?, "a confirmed view does not cut again");
    let row = &agent.status()?["cluster"];
    ensure!(row["view"] == view && row["is_old"] == json!(false), "{row}");
    agent.wait_for_log("the view is confirmed")?;
    for line in ["has not confirmed its view for so long", "the view is confirmed"] {
        ensure!(logged(&agent, line) == 1, "`{line}` is not logged exactly once: {}", agent.log());
    }
    agent.end()
}
