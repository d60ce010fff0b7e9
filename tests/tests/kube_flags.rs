//! NodeFlags and NodefenceSettings of a real API server, and the agent that carries them out.

use std::{
    io::ErrorKind,
    net::SocketAddr,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, ensure};
use nodefence_common::Reason;
use nodefence_tests::{
    Agent, Conn, Family, Node,
    checks::SOON,
    client::wait_until,
    kube::{
        Alone,
        members::MEMBERS,
        orders::{FLAGS, in_time},
    },
    promises::{LAPSED, WATCHED},
    topology::Service,
    watch::wait_within,
};
use serde_json::{Value, json};

/// A generous limit, since the machine may be busy.
const LIMIT: Duration = Duration::from_secs(60);
/// How long flags and pauses last that end by themselves in a test. Long enough to see them hold.
const SHORT: Duration = Duration::from_secs(4);

fn web(node: &Node) -> SocketAddr {
    node.endpoint(Service::Web, Family::V4)
}

/// Whether new connections to the node's pod are refused. An error that is no refusal counts as neither.
fn is_cut(alone: &Alone, node: &Node) -> Option<bool> {
    match Conn::connect(&alone.cluster.a.ns, web(node), SOON) {
        Ok(mut conn) => conn.who().is_ok_and(|who| who == node.name).then_some(false),
        Err(error) => (error.kind() == ErrorKind::ConnectionRefused).then_some(true),
    }
}

/// Waits until the node is cut, or is not, within the promised time from `since`.
fn becomes(alone: &Alone, node: &Node, cut: bool, since: Instant) -> Result<()> {
    wait_within(&format!("{} is cut: {cut}", node.name), WATCHED, since, || is_cut(alone, node) == Some(cut))
        .map(drop)
        .with_context(|| format!("{}\n{}", claims(&alone.agent, node), alone.agent.log()))
}

/// Checks that the node is cut, or is not.
fn is(alone: &Alone, node: &Node, cut: bool) -> Result<()> {
    let found = is_cut(alone, node);
    ensure!(
        found == Some(cut),
        "{}: cut {found:?} in place of {cut}: {}\n{}",
        node.name,
        claims(&alone.agent, node),
        alone.agent.log()
    );
    Ok(())
}

/// The claims on a node, for errors and comparisons.
fn claims(agent: &Agent, node: &Node) -> Value {
    agent.node(node.name).map(|row| row["claims"].clone()).unwrap_or_default()
}

/// How the claims on a node stand.
fn standings(agent: &Agent, node: &Node) -> Vec<String> {
    let claims = claims(agent, node);
    let each = claims.as_array().into_iter().flatten();
    each.filter_map(|claim| claim["standing"].as_str().map(str::to_owned)).collect()
}

/// Waits until the claims on a node stand like this.
fn stand(agent: &Agent, node: &Node, wanted: &[&str]) -> Result<()> {
    wait_until(&format!("{} has claims that stand {wanted:?}", node.name), LIMIT, || {
        standings(agent, node) == wanted
    })
    .map(drop)
    .with_context(|| format!("{}\n{}", claims(agent, node), agent.log()))
}

#[test]
fn a_flag_cuts_within_a_second_and_its_deletion_or_end_ends_that() -> Result<()> {
    let alone = Alone::new()?;
    let Alone { agent, control, cluster } = &alone;
    let b = &cluster.b;
    is(&alone, b, false)?;
    let begun = Instant::now();
    control.flag("one", b.name, json!({"reason": "disk", "by": "ann"}))?;
    becomes(&alone, b, true, begun)?;
    let row = claims(agent, b)[0].clone();
    let told = [&row["source"], &row["cause"], &row["by"], &row["reason"], &row["standing"]];
    ensure!(told == ["nodeflag:one", "operator", "ann", "disk", "enforced"], "{row}");
    // A second object: the first one's deletion changes nothing.
    control.flag("two", b.name, json!({"cause": "external"}))?;
    stand(agent, b, &["enforced", "enforced"])?;
    control.delete_flag("one")?;
    stand(agent, b, &["enforced"])?;
    is(&alone, b, true)?;
    let begun = Instant::now();
    control.delete_flag("two")?;
    becomes(&alone, b, false, begun)?;

    control.flag("short", b.name, json!({"until": in_time(SHORT)}))?;
    let begun = Instant::now();
    becomes(&alone, b, true, begun)?;
    wait_until("the flag ends by itself", LIMIT, || is_cut(&alone, b) == Some(false))
        .with_context(|| agent.log())?;
    // Applied again, as by a tool that keeps objects as a repository has them, it means nothing.
    control.delete_flag("short")?;
    control.flag("short", b.name, json!({"until": in_time(Duration::ZERO)}))?;
    // The API server tells its clock in whole seconds, so that the flag may hold for part of one. With it this one would be more than the limit.
    control.flag("marker", cluster.c.name, json!({"force": true}))?;
    stand(agent, &cluster.c, &["enforced"])?;
    wait_until("the flag means nothing", SOON, || standings(agent, b).is_empty())
        .with_context(|| agent.log())?;
    is(&alone, b, false)
}

#[test]
fn a_flag_holds_for_its_machine_alone() -> Result<()> {
    let alone = Alone::new()?;
    let Alone { agent, control, cluster } = &alone;
    let [b, c] = [&cluster.b, &cluster.c];
    control.flag("of-another", b.name, json!({"uid": "another"}))?;
    control.flag("of-nobody", "node-z", json!({}))?;
    control.flag("marker", c.name, json!({}))?;
    stand(agent, c, &["enforced"])?;
    is(&alone, b, false)?;
    let ignored = || agent.status().map(|status| status["settings"]["flags_without_machine"].clone());
    let said = |rows: &Value| {
        let problem = rows[0]["problem"].as_str().unwrap_or_default();
        rows.as_array().is_some_and(|rows| rows.len() == 2) && problem.starts_with("spec.uid: ")
    };
    wait_until("status names flags without effect", LIMIT, || ignored().is_ok_and(|rows| said(&rows)))
        .with_context(|| agent.log())?;
    // They are no fault.
    ensure!(agent.warning("NF33")?.is_none(), "{}", agent.log());
    control.delete_flag("marker")?;
    control.delete_flag("of-nobody")?;
    // The Node is made anew under its name, and is the machine that is flagged.
    let mut member = control.api.get(&format!("{MEMBERS}/{}", b.name))?;
    member["metadata"] = json!({"name": b.name});
    member["spec"]["uid"] = json!("another");
    let begun = Instant::now();
    control.object(MEMBERS, &member)?;
    becomes(&alone, b, true, begun)?;
    wait_until("status names none any more", LIMIT, || ignored().is_ok_and(|rows| rows == json!([])))?;
    let begun = Instant::now();
    control.member_of(b)?;
    becomes(&alone, b, false, begun)
}

#[test]
fn a_limit_withholds_flags_that_are_not_forced() -> Result<()> {
    let alone = Alone::new()?;
    let Alone { agent, control, cluster } = &alone;
    let [b, c] = [&cluster.b, &cluster.c];
    control.flag("of-b", b.name, json!({}))?;
    stand(agent, b, &["enforced"])?;
    // Two nodes of three are more than a third.
    control.flag("of-c", c.name, json!({}))?;
    for node in [b, c] {
        stand(agent, node, &["withheld"])?;
        is(&alone, node, false)?;
    }
    let begun = Instant::now();
    control.flag("of-c", c.name, json!({"force": true}))?;
    becomes(&alone, c, true, begun)?;
    is(&alone, b, false)
}

/// The agent was started without `--auto-limit`, which holds nothing back then.
#[test]
fn a_wider_limit_of_the_settings_lets_two_of_three_nodes_be_cut() -> Result<()> {
    let alone = Alone::new()?;
    let Alone { agent, control, cluster } = &alone;
    let [b, c] = [&cluster.b, &cluster.c];
    control.settings(json!({"mode": "enforce", "limit": "2/3"}))?;
    wait_until("the settings have come", LIMIT, || {
        agent.json(&["mode"]).is_ok_and(|mode| mode["settings"]["limit"] == "2/3")
    })?;
    control.flag("of-b", b.name, json!({}))?;
    stand(agent, b, &["enforced"])?;
    is(&alone, b, true)?;
    control.flag("of-c", c.name, json!({}))?;
    // Both are the last endpoints of a Service now, so that its packets pass.
    stand(agent, c, &["enforced"])?;
    stand(agent, b, &["enforced"])
}

#[test]
fn settings_hold_all_agents_back() -> Result<()> {
    let alone = Alone::new()?;
    let Alone { agent, control, cluster } = &alone;
    let [b, c] = [&cluster.b, &cluster.c];
    control.flag("one", b.name, json!({}))?;
    stand(agent, b, &["enforced"])?;

    // Without settings what would be cut is counted.
    control.delete_settings()?;
    stand(agent, b, &["observed"])?;
    let before = agent.counter(Reason::Observed)?;
    is(&alone, b, false)?;
    ensure!(agent.counter(Reason::Observed)? > before, "{}", agent.log());
    let mode = agent.json(&["mode"])?;
    ensure!(
        mode["mode"] == "observe" && mode["set"] == "enforce" && mode["settings"]["found"] == false,
        "{mode}"
    );
    ensure!(mode["warnings"][0].as_str().is_some_and(|text| text.contains("no NodefenceSettings")), "{mode}");

    let begun = Instant::now();
    control.enforce()?;
    becomes(&alone, b, true, begun)?;

    let pause = json!({"by": "ann", "reason": "a move", "until": in_time(SHORT)});
    control.settings(json!({"mode": "enforce", "pauses": [pause]}))?;
    stand(agent, b, &["observed"])?;
    is(&alone, b, false)?;
    let mode = agent.json(&["mode"])?;
    ensure!(mode["settings"]["pauses"][0]["by"] == "ann", "{mode}");
    wait_until("the pause ends by itself", LIMIT, || is_cut(&alone, b) == Some(true))
        .with_context(|| agent.log())?;

    control.settings(json!({"mode": "enforce", "optOuts": {"nodes": [b.name]}}))?;
    stand(agent, b, &["opted-out"])?;
    is(&alone, b, false)?;
    let begun = Instant::now();
    // Without the opt-out both nodes count, and the limit allows one.
    control.flag("other", c.name, json!({"force": true}))?;
    becomes(&alone, c, true, begun)?;

    control.settings(json!({"mode": "observe"}))?;
    stand(agent, c, &["observed"])?;
    is(&alone, c, false)?;
    // A command cannot make the agent do more than the settings say, but less.
    agent.expect(&["mode", "enforce"])?;
    is(&alone, c, false)?;
    agent.expect(&["mode", "observe"])?;
    control.enforce()?;
    wait_until("the settings have come", LIMIT, || {
        agent.json(&["mode"]).is_ok_and(|mode| mode["settings"]["mode"] == "enforce")
    })?;
    is(&alone, c, false)?;
    agent.expect(&["mode", "enforce"])?;
    is(&alone, c, true)
}

/// An agent begins where the API server does not know the kinds, and follows them once it does.
#[test]
fn without_the_kinds_the_agent_runs_and_observes() -> Result<()> {
    let alone = Alone::with(|control, cluster| {
        control.members(cluster)?;
        for kind in ["nodeflags", "nodefencesettings"] {
            control.api.delete(&format!(
                "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/{kind}.nodefence.io"
            ))?;
        }
        wait_until("the kinds are gone", LIMIT, || control.api.get(FLAGS).is_err()).map(drop)
    })?;
    let Alone { agent, control, cluster } = &alone;
    agent.wait_for_log("event=\"kind-unknown\"")?;
    ensure!(agent.status()?["mode"] == "observe", "{}", agent.log());
    control.crds()?;
    control.enforce()?;
    control.flag("one", cluster.b.name, json!({}))?;
    stand(agent, &cluster.b, &["enforced"])?;
    is(&alone, &cluster.b, true)
}

/// Does not run in guests, whose API server runs outside.
mod away {
    use nodefence_tests::kube::{
        Faulty,
        alone::faster,
        faulty::{self, Fate},
    };

    use super::*;

    /// Checks for so long that the node is cut.
    fn stays_cut(alone: &Alone, node: &Node, during: Duration) -> Result<()> {
        let begun = Instant::now();
        while begun.elapsed() < during {
            is(alone, node, true)?;
            std::thread::sleep(Duration::from_millis(50));
        }
        Ok(())
    }

    /// The API server's clock is an hour ahead of that of the agent's node.
    #[test]
    fn a_flag_ends_by_the_api_server_s_clock_on_a_node_that_is_an_hour_off() -> Result<()> {
        const HOUR: Duration = Duration::from_secs(3_600);
        let (mut alone, _faulty) = Alone::behind(&[], faster(), |control| {
            control.enforce()?;
            let faulty = Faulty::start(&control.ns, &control.api, |_| Fate::Ahead(HOUR))?;
            Ok((format!("http://127.0.0.1:{}", faulty::PORT), faulty))
        })?;
        alone.agent.ready()?;
        let Alone { agent, control, cluster } = &alone;
        let [b, c] = [&cluster.b, &cluster.c];
        // By the node's own clock this one has not ended yet.
        control.flag("over", c.name, json!({"until": in_time(HOUR / 2), "force": true}))?;
        let begun = Instant::now();
        control.flag("short", b.name, json!({"until": in_time(HOUR + SHORT), "force": true}))?;
        becomes(&alone, b, true, begun)?;
        is(&alone, c, false)?;
        wait_until("the flag ends by itself", LIMIT, || is_cut(&alone, b) == Some(false))
            .with_context(|| agent.log())?;
        Ok(())
    }

    #[test]
    fn without_the_api_server_flags_hold_for_this_agent_and_the_next() -> Result<()> {
        let mut alone = Alone::new()?;
        let begun = Instant::now();
        alone.control.flag("one", alone.cluster.b.name, json!({}))?;
        becomes(&alone, &alone.cluster.b, true, begun)?;
        alone.control.kill_server()?;
        alone.agent.wait_for_log("kind=NodeFlags")?;
        is(&alone, &alone.cluster.b, true)?;
        // The next agent does not know the cluster, and goes on with what the first one left.
        alone.agent.kill();
        alone.agent.begin_again()?;
        stays_cut(&alone, &alone.cluster.b, 2 * LAPSED)?;
        alone.control.start_server()?;
        alone.agent.ready()?;
        stays_cut(&alone, &alone.cluster.b, LAPSED)?;
        // Watches may wait for their backoff.
        alone.control.delete_flag("one")?;
        let ends = || is_cut(&alone, &alone.cluster.b) == Some(false);
        wait_until("the flag's deletion is carried out", LIMIT, ends).with_context(|| alone.agent.log())?;
        Ok(())
    }
}
