//! An agent that is killed for lack of memory, and that nobody can start again since its image is gone. Its guard is apart, as in the chart.

use std::{
    fs::File,
    path::PathBuf,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, ensure};
use nodefence_tests::{
    Agent, Conn, Family, Netns, Place, Proc,
    client::wait_until,
    ipvs::saved,
    kube::{
        Beside, Mode, Setup, Source,
        drained::{wait_drained, weighted},
        forwards::{endpoint, slice},
    },
    long, nodefence_command,
    promises::RESTORED,
    topology::Service,
    watch::wait_within,
};

/// The limit of waits that have no promised time.
const LIMIT: Duration = Duration::from_secs(120);

/// How long no agent is there.
fn orphaned() -> Duration {
    Duration::from_secs(if long() { 600 } else { 20 })
}

/// kube-proxy's `syncPeriod`: it writes everything anew several times while no agent is there.
fn sync_period() -> Duration {
    orphaned() / 4
}

/// The guard's container: it starts before the agent, in a PID namespace of its own.
struct Guard {
    proc: Proc,
    log: PathBuf,
}

impl Guard {
    fn start(ns: &Netns, agent: &Agent) -> Result<Self> {
        let run_dir = agent.socket().parent().context("no folder")?.to_owned();
        let log = run_dir.with_file_name("guard.log");
        let mut command = nodefence_command()?;
        command.args(["guard", "--wait", "--run-dir"]).arg(&run_dir);
        let file = File::options().create(true).append(true).open(&log)?;
        command.stdout(file.try_clone()?).stderr(file);
        Ok(Self { proc: Proc::spawn_as_init(ns, command)?, log })
    }

    fn log(&self) -> String {
        std::fs::read_to_string(&self.log).unwrap_or_default()
    }

    fn lives(&mut self) -> Result<()> {
        ensure!(self.proc.ended()?.is_none(), "the guard ended\n{}", self.log());
        Ok(())
    }
}

fn same(beside: &Beside, wanted: &[String]) -> bool {
    saved(&beside.cluster.a.ns).is_ok_and(|now| now == wanted)
}

/// The table is as kube-proxy alone would have it, and changes only as kube-proxy changes it.
#[test]
fn the_table_is_whole_again_and_stays_so() -> Result<()> {
    let setup = Setup {
        source: Source::ApiServer,
        sync_period: sync_period(),
        extra: &["--guard", "external"],
        ..Setup::default()
    };
    let mut beside = Beside::new(Mode::Ipvs, setup)?;
    let mut guard = Guard::start(&beside.cluster.a.ns, &beside.agent)?;
    let seen = || beside.status().is_ok_and(|status| status["ipvs"]["guard"]["seen"] == true);
    wait_until("the guard is seen", LIMIT, seen).with_context(|| guard.log())?;
    let before = saved(&beside.cluster.a.ns)?;
    ensure!(weighted(&beside)?.len() >= 8, "{before:#?}");
    // Without clients no destination has connections, for whose end kube-proxy would wait.
    beside.cluster.b.freeze()?;
    beside.control.flag("one", "node-b", serde_json::json!({}))?;
    wait_drained(&beside)?;

    let killed = Instant::now();
    beside.agent.kill();
    let took = wait_within("the table is whole again", RESTORED, killed, || same(&beside, &before))
        .with_context(|| {
            format!("{before:#?}, and now {:#?}\n{}", saved(&beside.cluster.a.ns), guard.log())
        })?;
    println!("whole {took:?} after the kill");
    let since = Instant::now();
    let synced = beside.proxy.syncs()?;
    while since.elapsed() < orphaned() {
        ensure!(same(&beside, &before), "{:#?}\n{}", saved(&beside.cluster.a.ns), guard.log());
        guard.lives()?;
        std::thread::sleep(Duration::from_millis(500));
    }
    ensure!(beside.proxy.syncs()? > synced, "kube-proxy did not sync meanwhile");

    // What kube-proxy changes now is its own, and nobody undoes it.
    for family in [Family::V4, Family::V6] {
        slice(&beside.control, Service::Web, vec![endpoint(Service::Web, &beside.cluster.c, family)])?;
    }
    let b = &beside.cluster.b;
    let pod = format!("-r {}:", b.pod_address(Family::V4));
    let has_pod = || saved(&beside.cluster.a.ns).map(|lines| lines.iter().any(|line| line.contains(&pod)));
    wait_until("kube-proxy removes node B's pod", LIMIT, || has_pod().is_ok_and(|has| !has))
        .with_context(|| beside.proxy.log())?;
    for family in [Family::V4, Family::V6] {
        let both = [b, &beside.cluster.c].map(|node| endpoint(Service::Web, node, family));
        slice(&beside.control, Service::Web, both.into())?;
    }
    wait_until("kube-proxy adds it again", LIMIT, || same(&beside, &before))
        .with_context(|| format!("{:#?}\n{}", saved(&beside.cluster.a.ns), beside.proxy.log()))?;

    // The image is there again. The flag still stands.
    beside.agent.restart(&[])?;
    wait_drained(&beside).with_context(|| guard.log())?;
    guard.lives()?;
    beside.cluster.b.thaw()?;
    let unflagged = Instant::now();
    beside.control.delete_flag("one")?;
    wait_within("the table is as it was", RESTORED, unflagged, || same(&beside, &before))
        .with_context(|| format!("{:#?}\n{}", saved(&beside.cluster.a.ns), beside.agent.log()))?;
    let to = beside.cluster.service(Service::Web, Place::Outside, Family::V4);
    Conn::connect_to(&beside.cluster.client, to, "node-b", LIMIT).map(drop)
}
