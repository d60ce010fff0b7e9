//! Commands that change a running agent. The change lasts until the agent ends.

use std::{process::Stdio, time::Duration};

use anyhow::{Result, ensure};
use nodefence_tests::{Agent, bin_path::nodefence_command, client::wait_until};
use serde_json::{Value, json};

use super::{FOUR, start};

/// The limit within which the agent notices that another product forwards in kube-proxy's place, or does so no longer.
const NOTICED: Duration = Duration::from_secs(20);

/// Runs a command as `sudo nodefence ..` does. Gives its standard output and its standard error.
fn by_sudo(agent: &Agent, args: &[&str]) -> Result<(String, String)> {
    let mut command = nodefence_command()?;
    command.args(args).arg("--socket").arg(agent.socket()).env("SUDO_USER", "ann").stdin(Stdio::null());
    let output = command.output()?;
    ensure!(output.status.success(), "{args:?}: {output:?}");
    let text = |bytes| String::from_utf8_lossy(bytes).into_owned();
    Ok((text(&output.stdout), text(&output.stderr)))
}

#[test]
fn the_mode_is_changed_until_the_agent_ends() -> Result<()> {
    let (_ns, mut agent) = start(&[])?;
    agent.flag("node-b")?;
    ensure!(agent.expect(&["mode"])? == "enforce\n", "{}", agent.expect(&["mode"])?);
    let (told, _) = by_sudo(&agent, &["mode", "observe"])?;
    ensure!(told.starts_with("observe\nset to observe by root (sudo by ann) at "), "{told}");
    ensure!(told.ends_with("; started with enforce\n"), "{told}");
    // The command returns once the change is carried out.
    ensure!(agent.node("node-b")?["action"] == "observe");
    agent.wait_for_log("event=\"mode-set\" mode=observe by=\"root (sudo by ann)\"")?;
    let status = agent.status()?;
    let set = &status["mode_set"];
    ensure!(
        status["mode"] == "observe" && set["started"] == "enforce" && set["set"] == "observe",
        "{status}"
    );
    ensure!(set["changed"]["by"] == "root (sudo by ann)", "{set}");
    ensure!(agent.expect(&["status"])?.contains("set to observe by root (sudo by ann)"));
    // A command that changes nothing does not change who set the mode.
    agent.expect(&["mode", "observe"])?;
    ensure!(agent.json(&["mode"])?["changed"]["by"] == "root (sudo by ann)");
    agent.expect(&["flag", "node-c", "--force"])?;
    ensure!(agent.node("node-c")?["action"] == "observe");
    let (told, _) = by_sudo(&agent, &["mode", "enforce", "-o", "json"])?;
    let told: Value = serde_json::from_str(&told)?;
    ensure!(told["mode"] == "enforce" && told["warnings"] == json!([]), "{told}");
    ensure!(agent.node("node-b")?["action"] == "refuse");
    agent.expect(&["mode", "observe"])?;
    agent.restart(&["--take-over"])?;
    ensure!(
        agent.expect(&["mode"])? == "enforce\n",
        "the next agent does not take the mode from its own command line"
    );
    ensure!(agent.node("node-b")?["action"] == "refuse");
    Ok(())
}

/// Beside Cilium the agent observes even if a command sets it to enforce. That command gets a warning.
#[test]
fn an_agent_that_is_held_back_says_so() -> Result<()> {
    let (ns, agent) = start(&["--mode", "observe"])?;
    agent.flag("node-b")?;
    ns.ip("link add cilium_host type veth peer name cilium_net")?;
    let seen = || agent.status().is_ok_and(|status| status["replacement"]["product"] == "Cilium");
    wait_until("Cilium is noticed", NOTICED, seen)?;
    ensure!(agent.status()?["replacement"]["beside"] == "nothing");
    let (told, warned) = by_sudo(&agent, &["mode", "enforce"])?;
    ensure!(told.starts_with("observe\nset to enforce by root (sudo by ann) at "), "{told}");
    ensure!(
        warned.contains("warning: Cilium forwards Services here (device cilium_host): nothing is cut"),
        "{warned}"
    );
    let status = agent.status()?;
    ensure!(status["mode"] == "observe" && status["replacement"]["beside"] == "observes", "{status}");
    ensure!(agent.node("node-b")?["action"] == "observe");
    agent.wait_for_log("event=\"proxy-replaced\"")?;
    ns.ip("link delete cilium_host")?;
    let cut = || agent.node("node-b").is_ok_and(|node| node["action"] == "refuse");
    wait_until("node-b is cut once Cilium is gone", NOTICED, cut).map(drop)
}

#[test]
fn the_log_level_is_changed_until_the_agent_ends() -> Result<()> {
    let (_ns, mut agent) = start(&[])?;
    let write = |more: &str| agent.rewrite_cluster_file(&format!("{FOUR}{more}"));
    ensure!(agent.expect(&["log-level"])? == "info\n");
    write("- {name: node-e, address: 10.9.0.15, backends: [{address: 10.9.5.1}]}\n")?;
    agent.wait_for_log("event=\"view-taken\"")?;
    ensure!(!agent.log().contains(" DEBUG "), "{}", agent.log());
    let (told, _) = by_sudo(&agent, &["log-level", "debug"])?;
    ensure!(told.starts_with("debug\nset to debug by root (sudo by ann) at "), "{told}");
    agent.wait_for_log("event=\"log-level-set\" filter=\"debug\" by=\"root (sudo by ann)\"")?;
    write("")?;
    agent.wait_for_log("event=\"tables-written\"")?;
    let status = agent.status()?;
    ensure!(status["log_level"]["started"] == "info" && status["log_level"]["set"] == "debug", "{status}");
    let wrong = agent.cli(&["log-level", "loud"])?;
    let said = String::from_utf8_lossy(&wrong.stderr);
    ensure!(
        !wrong.status.success() && said.contains("log level `loud`: expected error, warn, info"),
        "{said}"
    );
    ensure!(agent.json(&["log-level"])?["set"] == "debug");
    agent.expect(&["log-level", "warn"])?;
    agent.flag("node-b")?;
    agent.terminate()?;
    ensure!(!agent.log().contains("event=\"flagged\""), "{}", agent.log());
    agent.restart(&[])?;
    ensure!(agent.expect(&["log-level"])? == "info\n");
    Ok(())
}
