//! An agent that follows a real API server, and whose disk is suspended: its run folder, its log and its stored view.

use std::{
    fs,
    io::ErrorKind,
    path::Path,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, ensure};
use nodefence::flags::monotonic_ns;
use nodefence_tests::{
    Agent, Conn, Family,
    agent::verdict_until,
    audit::BOTH,
    checks::SOON,
    client::wait_until,
    disk::{self, Disk},
    kube::{
        Alone,
        alone::{backends_on, lists},
        forwards::object,
    },
    promises::WATCHED,
    topology::Service,
    watch::{self, overdue, wait_within, within},
};

/// A generous limit, since the machine may be busy.
const LIMIT: Duration = Duration::from_secs(60);
/// How long the disk is suspended: longer than the watchdog waits for an agent whose verdicts hang (10 s).
const SUSPENDED: Duration = Duration::from_secs(15);
/// A verdict's deadline is always at least this far ahead.
const AHEAD: Duration = Duration::from_secs(1);
/// A command waits at most this long for its answer, where nothing is to be saved. This includes the start of the command's process.
const ANSWERED: Duration = Duration::from_secs(1);
/// A flag and an unflag each wait at most this long until they are saved.
const SAVED: Duration = Duration::from_secs(1);
/// The Service `host` in the stored view.
const HOST: &str = r#"{"service":{"name":"default/host""#;

/// Waits until new connections to node B's pod are refused, or are not, within the promised time from `since`.
fn becomes(alone: &Alone, cut: bool, promised: Duration, since: Instant) -> Result<()> {
    let b = &alone.cluster.b;
    let web = b.endpoint(Service::Web, Family::V4);
    let is_cut = || match Conn::connect(&alone.cluster.a.ns, web, SOON) {
        Ok(mut conn) => conn.who().is_ok_and(|who| who == b.name).then_some(false),
        Err(error) => (error.kind() == ErrorKind::ConnectionRefused).then_some(true),
    };
    wait_within(&format!("{} is cut: {cut}", b.name), promised, since, || is_cut() == Some(cut))
        .map(drop)
        .with_context(|| alone.agent.log())
}

/// The stored view. Empty where there is none.
fn stored(folder: &Path) -> String {
    fs::read_to_string(folder.join("run/view.json")).unwrap_or_default()
}

/// Checks that the agent answers in time.
fn answers(agent: &Agent) -> Result<serde_json::Value> {
    let asked = Instant::now();
    let status = agent.status()?;
    within("an answer while the disk is suspended", ANSWERED, asked)?;
    Ok(status)
}

/// Node B is cut, and its verdict is renewed for some time, while the agent answers.
fn holds(alone: &Alone, disk: &mut Disk, index: u32, length: Duration) -> Result<()> {
    let since = Instant::now();
    let mut asked = 0;
    while since.elapsed() < length {
        let until = verdict_until(&alone.cluster.a.ns, index)?;
        let ahead = Duration::from_nanos(until.saturating_sub(monotonic_ns()));
        if ahead + watch::longest_gap(since) < AHEAD {
            return Err(overdue(AHEAD, format!("the verdict holds for {ahead:?} only")))
                .context(alone.agent.log());
        }
        if since.elapsed() > Duration::from_secs(asked) {
            answers(&alone.agent)?;
            asked += 1;
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    disk.is_suspended()
}

#[test]
fn a_suspended_disk_holds_nothing_up() -> Result<()> {
    disk::own_mounts()?;
    let mut alone = Alone::with_arguments(&["--view-store-every", "1s"])?;
    alone.agent.terminate()?;
    let folder = alone.agent.socket().ancestors().nth(2).context("no folder")?.to_owned();
    let mut disk = Disk::under(&alone.cluster.a.ns, &folder)?;
    alone.agent.restart(&[])?;
    let Alone { agent, control, cluster } = &alone;
    let pid = agent.proc()?.pid();
    wait_until("the view is stored", LIMIT, || stored(&folder).contains(HOST))
        .with_context(|| agent.log())?;
    let index = u32::try_from(agent.node("node-b")?["index"].as_u64().context("no index")?)?;
    let whole = backends_on(&[&cluster.b, &cluster.c], &[Service::Web, Service::Host]);
    lists(agent, &whole)?;

    disk.suspend()?;
    let suspended = Instant::now();
    let begun = Instant::now();
    control.flag("by-object", "node-b", serde_json::json!({}))?;
    becomes(&alone, true, WATCHED, begun).context("a flag of the API server")?;
    holds(&alone, &mut disk, index, Duration::from_secs(5))?;
    let begun = Instant::now();
    control.delete_flag("by-object")?;
    becomes(&alone, false, WATCHED, begun).context("a flag of the API server is deleted")?;

    // A flag by the socket is in force before it is saved. The command waits a while for that.
    let begun = Instant::now();
    let command = agent.begin(&["flag", "node-b"])?;
    becomes(&alone, true, ANSWERED, begun).context("a flag by the socket")?;
    let told = command.wait_with_output()?;
    within("the answer to a flag that cannot be saved", ANSWERED + SAVED, begun)?;
    ensure!(told.status.success(), "{told:?}");
    // What the API server has is followed, and cannot be stored.
    control.delete_service("host")?;
    lists(agent, &backends_on(&[&cluster.b, &cluster.c], &[Service::Web]))?;
    holds(&alone, &mut disk, index, SUSPENDED.saturating_sub(suspended.elapsed()))?;
    control.service(&object(Service::Host, &BOTH))?;
    lists(agent, &whole)?;
    control.delete_service("host")?;
    lists(agent, &backends_on(&[&cluster.b, &cluster.c], &[Service::Web]))?;
    let said = agent.warning("NF14")?.unwrap_or_default();
    ensure!(said.contains("the disk has not answered"), "{said:?}");
    ensure!(agent.proc()?.pid() == pid && agent.status()?["pid"] == pid.as_raw(), "another agent answers");
    disk.is_suspended()?;

    disk.resume()?;
    wait_until("the flag is saved", LIMIT, || agent.warning("NF14").is_ok_and(|text| text.is_none()))
        .with_context(|| agent.log())?;
    wait_until("the view is stored", LIMIT, || {
        let text = stored(&folder);
        !text.is_empty() && !text.contains(HOST)
    })
    .with_context(|| agent.log())?;
    // The next agent knows the flag from the disk.
    alone.agent.kill();
    alone.agent.restart(&[])?;
    let row = alone.agent.node("node-b")?;
    ensure!(row["action"] == "refuse", "{row}\n{}", alone.agent.log());
    Ok(())
}
