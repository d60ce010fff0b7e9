//! A drain is restored although its records were removed or damaged.

use std::{fs, path::PathBuf, time::Instant};

use anyhow::{Context as _, Result, ensure};
use nodefence_tests::{Agent, Cluster, client::wait_until, promises::RESTORED};

use super::common::{LIMIT, agent, cluster, saved, wait_drained, wait_same};

struct Out {
    cluster: Cluster,
    agent: Agent,
    before: Vec<String>,
    run_dir: PathBuf,
}

/// A cluster whose node B is drained.
fn out() -> Result<Out> {
    let cluster = cluster()?;
    let before = saved(&cluster.a.ns)?;
    let agent = agent(&cluster)?;
    agent.flag("node-b")?;
    wait_drained(&cluster, &agent)?;
    let run_dir = agent.socket().parent().context("no folder")?.to_owned();
    Ok(Out { cluster, agent, before, run_dir })
}

impl Out {
    fn is_restored(&self, began: Instant) -> Result<()> {
        wait_same(&self.cluster, &self.before, began, &self.agent.log()).map(drop)
    }
}

#[test]
fn an_agent_that_ends_after_its_run_folder() -> Result<()> {
    let mut out = out()?;
    fs::remove_dir_all(&out.run_dir)?;
    let began = Instant::now();
    out.agent.terminate()?;
    out.is_restored(began)
}

/// An agent whose run folder is removed restores everything, and ends.
#[test]
fn a_run_folder_that_goes_while_the_agent_lives() -> Result<()> {
    let mut out = out()?;
    let began = Instant::now();
    fs::remove_dir_all(&out.run_dir)?;
    out.is_restored(began)?;
    wait_until("the agent has ended", LIMIT, || out.agent.log().contains("the agent ends;"))
        .with_context(|| out.agent.log())?;
    out.agent.terminate()
}

#[test]
fn a_ledger_whose_first_line_is_damaged() -> Result<()> {
    let mut out = out()?;
    let began = Instant::now();
    out.agent.kill();
    let path = out.run_dir.join("ledger.log");
    let mut bytes = fs::read(&path)?;
    bytes[20] ^= 1;
    fs::write(&path, bytes)?;
    out.is_restored(began)
}

/// Sets the weight to 0, as kube-proxy does for a pod that drains.
fn drain(cluster: &Cluster) -> Result<Vec<String>> {
    cluster.a.ns.exec("ipvsadm -e -t 10.96.0.10:80 -r 10.244.2.2:8080 -m -w 0")?;
    saved(&cluster.a.ns)
}

/// Checks that the table stays the same for as long as a guard needs to restore.
fn stays(cluster: &Cluster, drained: &[String], agent: &Agent) -> Result<()> {
    std::thread::sleep(RESTORED);
    let now = saved(&cluster.a.ns)?;
    ensure!(now == drained, "{now:#?}\n{drained:#?}\n{}", agent.log());
    Ok(())
}

#[test]
fn a_guard_does_nothing_after_detach() -> Result<()> {
    let mut out = out()?;
    out.agent.kill();
    let run_dir = out.run_dir.to_str().context("no UTF-8")?;
    out.agent.expect(&["--run-dir", run_dir, "detach"])?;
    ensure!(saved(&out.cluster.a.ns)? == out.before, "`detach` has not restored the drain");
    ensure!(!out.run_dir.join("ledger.log").exists(), "the ledger is still there");
    let drained = drain(&out.cluster)?;
    stays(&out.cluster, &drained, &out.agent)
}
