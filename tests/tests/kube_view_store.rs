//! An agent that is started while the API server is away takes the last good view from its disk. Each test ends or stops the API server.

use std::{
    collections::BTreeSet,
    fs,
    os::unix::fs::MetadataExt as _,
    path::PathBuf,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, ensure};
use nodefence_tests::{
    Agent, Conn, Family,
    audit::BOTH,
    checks::SOON,
    client::wait_until,
    kube::{
        Alone,
        alone::{backends, backends_on, lists},
        control::{SERVICES, SLICES},
        forwards::object,
        members::MEMBERS,
    },
    long,
    topology::Service,
};

/// A generous limit, since the machine may be busy.
const LIMIT: Duration = Duration::from_secs(120);
/// How often these agents store their view at most.
const EVERY: Duration = Duration::from_secs(1);
/// The Service `host` in the file.
const HOST: &str = r#"{"service":{"name":"default/host""#;

/// The options of these agents. Once the API server is there again, they do not wait long before they ask it.
fn options() -> Vec<&'static str> {
    let mut options = vec!["--view-store-every", "1s"];
    if !long() {
        options.extend(["--watch-faster", "5"]);
    }
    options
}

/// A file of the agent's run folder.
fn file(agent: &Agent, name: &str) -> PathBuf {
    agent.socket().with_file_name(name)
}

/// The file of the view, by its inode: each write makes a new one.
fn written(agent: &Agent) -> Option<u64> {
    fs::metadata(file(agent, "view.json")).ok().map(|meta| meta.ino())
}

/// Waits until the file has a text, or has it no more.
fn stores(agent: &Agent, text: &str, wanted: bool) -> Result<()> {
    let has = || {
        let stored = fs::read_to_string(file(agent, "view.json"));
        stored.is_ok_and(|stored| stored.contains(text) == wanted)
    };
    let found = wait_until(&format!("`{text}` is stored: {wanted}"), LIMIT, has);
    found.map(drop).with_context(|| agent.log())
}

/// The backends of the cluster at the start.
fn whole(alone: &Alone) -> BTreeSet<String> {
    backends_on(&[&alone.cluster.b, &alone.cluster.c], &[Service::Web, Service::Host])
}

/// Checks that `status` says whether the view is from the disk.
fn says_stored(agent: &Agent, wanted: bool) -> Result<()> {
    let row = || agent.status().map(|status| status["cluster"].clone());
    let found =
        wait_until("where the view is from", LIMIT, || row().is_ok_and(|row| row["is_stored"] == wanted));
    found.map(drop).with_context(|| format!("wanted {wanted}: {:?}\n{}", row(), agent.log()))
}

/// Starts the agent again, which is to know the same backends, and to cut by them.
fn starts_with(alone: &mut Alone, wanted: &BTreeSet<String>) -> Result<()> {
    alone.agent.restart(&[])?;
    let Alone { agent, cluster, .. } = alone;
    says_stored(agent, true)?;
    ensure!(backends(agent)? == *wanted, "{:#?}\n{}", backends(agent)?, agent.log());
    ensure!(agent.log().contains("event=\"view-from-disk\""), "{}", agent.log());
    ensure!(agent.warning("NF32")?.is_some(), "{}", agent.log());
    let [of_b, of_c] = [&cluster.b, &cluster.c].map(|node| node.endpoint(Service::Web, Family::V4));
    agent.flag(cluster.b.name)?;
    Conn::refused_at_once(&cluster.a.ns, of_b, SOON).with_context(|| agent.log())?;
    let who = Conn::connect(&cluster.a.ns, of_c, SOON)?.who()?;
    ensure!(who == cluster.c.name, "{who} answered");
    agent.unflag(cluster.b.name)
}

#[test]
fn an_agent_that_starts_without_the_api_server_knows_the_cluster() -> Result<()> {
    let mut alone = Alone::with_arguments(&options())?;
    let before = whole(&alone);
    lists(&alone.agent, &before)?;
    says_stored(&alone.agent, false)?;
    stores(&alone.agent, HOST, true)?;
    alone.agent.terminate()?;
    alone.control.freeze_server()?;
    starts_with(&mut alone, &before).context("the API server is frozen")?;
    alone.agent.terminate()?;
    alone.control.kill_server()?;
    starts_with(&mut alone, &before).context("the API server was killed")?;

    // What the API server has by then is another cluster than the stored one.
    alone.agent.terminate()?;
    alone.control.start_server()?;
    alone.control.delete_service("host")?;
    alone.control.delete_member("node-c")?;
    alone.control.kill_server()?;
    starts_with(&mut alone, &before).context("the stored view is old")?;
    alone.control.start_server()?;
    let Alone { agent, control, cluster } = &alone;
    let web_on_b = backends_on(&[&cluster.b], &[Service::Web]);
    let follows = || backends(agent).is_ok_and(|found| found == web_on_b);
    wait_until("the view follows", LIMIT, follows)
        .with_context(|| format!("{:?}\n{}", backends(agent), agent.log()))?;
    says_stored(agent, false)?;
    // That is stored, too, and so are later changes.
    stores(agent, HOST, false)?;
    control.service(&object(Service::Host, &BOTH))?;
    stores(agent, HOST, true)?;
    let logged = agent.log().matches("event=\"view-from-disk\"").count();
    ensure!(logged == 3, "logged {logged} times\n{}", agent.log());
    Ok(())
}

#[test]
fn the_view_is_stored_once_an_interval_and_only_if_it_changed() -> Result<()> {
    let alone = Alone::with_arguments(&options())?;
    let Alone { agent, control, .. } = &alone;
    stores(agent, HOST, true)?;
    let begun = Instant::now();
    let mut files = BTreeSet::from([written(agent)]);
    let mut changes = 0;
    while begun.elapsed() < 5 * EVERY {
        control.member("node-d", &[[10, 2, 0, 20 + (changes % 200) as u8].into()])?;
        changes += 1;
        files.insert(written(agent));
    }
    let most = begun.elapsed().as_secs() as usize + 2;
    ensure!(changes > most, "only {changes} changes");
    ensure!((3..=most).contains(&files.len()), "{} files for {changes} changes", files.len());
    control.delete_member("node-d")?;
    stores(agent, "node-d", false)?;
    let last = written(agent);
    let begun = Instant::now();
    while begun.elapsed() < 3 * EVERY {
        ensure!(written(agent) == last, "it was written without a change");
        std::thread::sleep(EVERY / 10);
    }
    // A watch without changes brings a bookmark about once a minute, by which the view is confirmed without being written. Changes of what the agent does not
    // read do the same, and come at once.
    if !long() {
        for path in [format!("{MEMBERS}/node-b"), format!("{SERVICES}/host"), format!("{SLICES}/host")] {
            control.api.annotate(&path, "nodefence.test/note", "1")?;
        }
    }
    let confirmed = || file(agent, "view-confirmed.json").exists();
    wait_until("the view is confirmed", 2 * LIMIT, confirmed).with_context(|| agent.log())?;
    ensure!(written(agent) == last, "it was written to be confirmed");
    Ok(())
}

#[test]
fn a_damaged_file_is_set_aside_and_the_start_waits() -> Result<()> {
    let mut alone = Alone::with_arguments(&options())?;
    let before = whole(&alone);
    lists(&alone.agent, &before)?;
    stores(&alone.agent, HOST, true)?;
    alone.agent.terminate()?;
    alone.control.kill_server()?;
    let stored = file(&alone.agent, "view.json");
    let text = fs::read_to_string(&stored)?;
    fs::write(&stored, &text[..text.len() / 2])?;
    alone.agent.begin_again()?;
    alone.agent.wait_for_log("view.json is damaged: it ends too early; kept as ")?;
    ensure!(!stored.exists() && file(&alone.agent, "view.json.bad").exists(), "{}", alone.agent.log());
    ensure!(!alone.agent.socket().exists(), "the agent serves its socket before it knows the nodes");
    alone.control.start_server()?;
    alone.agent.ready()?;
    lists(&alone.agent, &before)?;
    stores(&alone.agent, HOST, true)?;
    alone.agent.terminate()?;
    let run_dir = alone.agent.socket().with_file_name("").display().to_string();
    alone.agent.expect(&["--run-dir", &run_dir, "detach"])?;
    ensure!(!stored.exists() && !file(&alone.agent, "view.json.bad").exists());
    Ok(())
}
