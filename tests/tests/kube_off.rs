//! NodefenceSettings whose mode is `off`: agents beside a real API server have nothing in the kernel, until the settings say otherwise.

use std::{
    fs, thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, ensure};
use nodefence_tests::{
    Family, Outcome,
    checks::SOON,
    client::{try_new, wait_until},
    kube::{Alone, alone::faster, rights::AGENT},
    left::{left, programs},
    promises::WATCHED,
    topology::Service,
    watch::wait_within,
};
use serde_json::{Value, json};

/// A generous limit, since the machine may be busy. Agents that the settings turn on wait for up to 30 s where [`faster`] is 1.
const LIMIT: Duration = Duration::from_secs(90);
/// How long something is watched that must not happen.
const WHILE: Duration = Duration::from_secs(3);
/// The status of an agent that both a command and the settings turn off.
const BOTH: &str = "`nodefence on` turns it on once the settings in the API server do not turn it off, too";

/// What a new connection to the pod on node B finds.
fn attempt(alone: &Alone) -> Outcome {
    let cluster = &alone.cluster;
    try_new(&cluster.a.ns, cluster.b.endpoint(Service::Web, Family::V4), SOON).0
}

/// Waits until a new connection finds this, within the promised time from `since`.
fn becomes(alone: &Alone, wanted: Outcome, since: Instant) -> Result<()> {
    let what = format!("connections are {wanted:?}");
    wait_within(&what, WATCHED, since, || attempt(alone) == wanted)
        .map(drop)
        .with_context(|| alone.agent.log())
}

fn nothing_is_left(alone: &Alone) -> Result<()> {
    let left = left(&alone.cluster.a.ns)?;
    ensure!(left.is_empty(), "{left:#?}\n{}", alone.agent.log());
    Ok(())
}

/// The status of an agent that is off, once all is taken back.
fn is_off(alone: &Alone, kind: &str) -> Result<Value> {
    let off = |status: &Value| {
        status["state"] == "off" && status["taken_back"] == true && status["off"]["kind"] == kind
    };
    wait_until(&format!("the agent is off by {kind}"), LIMIT, || {
        alone.agent.status().is_ok_and(|status| off(&status))
    })
    .with_context(|| format!("{:?}\n{}", alone.agent.status(), alone.agent.log()))?;
    alone.agent.status()
}

/// Waits until status says that a command and the settings both turn the agent off.
fn both_turn_it_off(alone: &Alone) -> Result<()> {
    let both = || alone.agent.expect(&["status"]).is_ok_and(|text| text.contains(BOTH));
    wait_until("status says that both turn it off", LIMIT, both).map(drop).with_context(|| alone.agent.log())
}

/// Waits until the agent runs.
fn runs(alone: &Alone) -> Result<()> {
    let kind = || alone.agent.status().is_ok_and(|status| status["kind"] == "Status");
    wait_until("the agent runs", LIMIT, kind).map(drop).with_context(|| alone.agent.log())
}

fn off(alone: &Alone) -> Result<()> {
    alone.control.settings(json!({"mode": "off"}))
}

/// A cluster whose node B is flagged and cut.
fn cut() -> Result<Alone> {
    let alone = Alone::with_arguments(&["--watch-faster", &faster().to_string()])?;
    let begun = Instant::now();
    alone.control.flag("one", alone.cluster.b.name, json!({}))?;
    becomes(&alone, Outcome::Refused, begun)?;
    let ns = &alone.cluster.a.ns;
    ensure!(!programs(ns)?.is_empty() && left(ns)? != programs(ns)?, "{:?}", left(ns));
    Ok(alone)
}

#[test]
fn settings_turn_the_agent_off_and_on() -> Result<()> {
    let alone = cut()?;
    let Alone { agent, control, .. } = &alone;
    let pid = agent.status()?["pid"].clone();
    let begun = Instant::now();
    off(&alone)?;
    becomes(&alone, Outcome::Answered, begun)?;
    let status = is_off(&alone, "settings")?;
    nothing_is_left(&alone)?;
    ensure!(status["pid"] == pid, "{status}");
    let text = agent.expect(&["status"])?;
    ensure!(
        text.starts_with("OFF: off since ") && text.contains("by the settings in the API server"),
        "{text}"
    );
    let refused = agent.cli(&["on"])?;
    let said = String::from_utf8_lossy(&refused.stderr).into_owned();
    ensure!(refused.status.code() == Some(4) && said.contains("`kubectl nodefence mode observe`"), "{said}");
    control.enforce()?;
    runs(&alone)?;
    becomes(&alone, Outcome::Refused, Instant::now())?;
    ensure!(agent.status()?["pid"] == pid, "the process is another");
    // Without settings agents observe: the agent is on.
    off(&alone)?;
    is_off(&alone, "settings")?;
    control.delete_settings()?;
    runs(&alone)?;
    ensure!(agent.status()?["mode"] == "observe" && attempt(&alone) == Outcome::Answered, "{}", agent.log());
    Ok(())
}

#[test]
fn an_agent_that_starts_attaches_nothing() -> Result<()> {
    let mut alone = cut()?;
    alone.agent.kill();
    let before = alone.agent.log().len();
    off(&alone)?;
    // What the killed agent left is removed, too.
    alone.agent.begin_again()?;
    is_off(&alone, "settings")?;
    nothing_is_left(&alone)?;
    ensure!(attempt(&alone) == Outcome::Answered, "{}", alone.agent.log());
    let log = alone.agent.log();
    let log = log.get(before..).context("the log is shorter than before")?;
    for event in ["started", "kernel-probed", "starts-anew"] {
        ensure!(!log.contains(&format!("event=\"{event}\"")), "{log}");
    }
    alone.control.enforce()?;
    runs(&alone)?;
    becomes(&alone, Outcome::Refused, Instant::now())
}

#[test]
fn a_command_and_the_settings_both_must_turn_it_on() -> Result<()> {
    let alone = cut()?;
    let Alone { agent, control, .. } = &alone;
    agent.expect(&["off", "--reason", "is it nodefence?"])?;
    is_off(&alone, "node")?;
    off(&alone)?;
    both_turn_it_off(&alone)?;
    let on = agent.json(&["on"])?;
    ensure!(on["still"]["kind"] == "settings" && on["runs"] == false, "{on}");
    is_off(&alone, "settings")?;
    nothing_is_left(&alone)?;
    // The other way round: the command holds though the settings do not.
    agent.expect(&["off"])?;
    control.enforce()?;
    wait_until("the settings turn it off no more", LIMIT, || {
        agent.expect(&["status"]).is_ok_and(|text| !text.contains(BOTH))
    })
    .with_context(|| agent.log())?;
    is_off(&alone, "node")?;
    ensure!(attempt(&alone) == Outcome::Answered, "{}", agent.log());
    agent.expect(&["on"])?;
    runs(&alone)?;
    becomes(&alone, Outcome::Refused, Instant::now())
}

#[test]
fn an_agent_that_is_off_needs_no_way_to_the_api_server() -> Result<()> {
    let mut alone = cut()?;
    alone.agent.expect(&["off"])?;
    alone.agent.kill();
    fs::write(alone.control.kubeconfig_as(AGENT)?, "x")?;
    alone.agent.begin_again()?;
    is_off(&alone, "node")?;
    alone.agent.wait_for_log("event=\"settings-unfollowed\"")?;
    nothing_is_left(&alone)?;
    // Once there is one, the agent follows the settings.
    alone.control.kubeconfig_as(AGENT)?;
    off(&alone)?;
    both_turn_it_off(&alone)
}

/// Does not run in guests, whose API server runs outside.
mod away {
    use super::*;

    #[test]
    fn without_the_api_server_the_last_word_holds() -> Result<()> {
        let mut alone = cut()?;
        let kept = alone.agent.socket().with_file_name("off.settings.json");
        ensure!(!kept.exists());
        off(&alone)?;
        is_off(&alone, "settings")?;
        wait_until("the word is kept", LIMIT, || kept.exists()).with_context(|| alone.agent.log())?;
        let word: Value = serde_json::from_slice(&fs::read(&kept)?)?;
        alone.control.kill_server()?;
        alone.agent.kill();
        alone.agent.begin_again()?;
        let status = is_off(&alone, "settings")?;
        ensure!(status["off"]["since"] == word["since"], "{word} {status}");
        let begun = Instant::now();
        while begun.elapsed() < WHILE {
            nothing_is_left(&alone)?;
            ensure!(attempt(&alone) == Outcome::Answered, "{}", alone.agent.log());
            thread::sleep(Duration::from_millis(100));
        }
        // Once it is back, what it says counts.
        alone.control.start_server()?;
        alone.control.enforce()?;
        runs(&alone)?;
        becomes(&alone, Outcome::Refused, Instant::now())?;
        wait_until("the word is forgotten", LIMIT, || !kept.exists()).with_context(|| alone.agent.log())?;
        // An agent that was on is on without the API server.
        alone.control.kill_server()?;
        alone.agent.kill();
        alone.agent.begin_again()?;
        runs(&alone)?;
        // Without agent the command says what the settings said last.
        alone.agent.kill();
        fs::write(&kept, "{")?;
        let folder = kept.parent().context("no folder")?.to_str().context("no UTF-8")?.to_owned();
        let on = alone.agent.json(&["--run-dir", &folder, "on"])?;
        ensure!(on["still"]["kind"] == "settings" && on["was"].is_null(), "{on}");
        alone.agent.begin_again()?;
        is_off(&alone, "settings").map(drop)
    }
}
