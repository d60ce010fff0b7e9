//! `nodefence off` restores what is drained before it returns, and `on` drains it again.

use std::fs;

use anyhow::{Result, ensure};

use super::common::{agent, cluster, saved, wait_drained};

/// The commands of all children of a process.
fn children(pid: i32) -> Result<Vec<String>> {
    let mut commands = Vec::new();
    for task in fs::read_dir(format!("/proc/{pid}/task"))? {
        let pids = fs::read_to_string(task?.path().join("children"))?;
        // A child may end meanwhile.
        commands.extend(
            pids.split_whitespace().filter_map(|pid| fs::read_to_string(format!("/proc/{pid}/cmdline")).ok()),
        );
    }
    Ok(commands)
}

#[test]
fn off_restores_at_once_and_on_drains_again() -> Result<()> {
    let cluster = cluster()?;
    let before = saved(&cluster.a.ns)?;
    let agent = agent(&cluster)?;
    agent.flag("node-b")?;
    wait_drained(&cluster, &agent)?;
    let report = agent.json(&["off"])?;
    let now = saved(&cluster.a.ns)?;
    ensure!(now == before, "{now:#?}\n{before:#?}\n{}", agent.log());
    ensure!(report["restored"].as_u64().is_some_and(|restored| restored > 0), "{report}");
    ensure!(report["warnings"].as_array().is_some_and(Vec::is_empty), "{report}");
    let children = children(agent.proc()?.pid().as_raw())?;
    ensure!(!children.iter().any(|command| command.contains("guard")), "a guard is left: {children:?}");
    ensure!(!agent.socket().with_file_name("ledger.log").exists(), "the ledger is left");
    agent.expect(&["on"])?;
    wait_drained(&cluster, &agent)?;
    agent.unflag("node-b")?;
    Ok(())
}
