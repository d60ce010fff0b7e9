//! The doctor beside an agent that runs.

use std::sync::Arc;

use anyhow::{Context as _, Result, ensure};
use nodefence_tests::{Agent, Netns};
use serde_json::Value;

/// What only the agent was told is asked of it: where its pins are, and who forwards.
#[test]
fn it_asks_the_agent() -> Result<()> {
    let ns = Arc::new(Netns::new("doctor")?);
    ns.ip("link add v0 type veth peer name v1")?;
    ns.ip("link set v0 up")?;
    let nodes = "nodes: [{ name: node-a, address: 10.2.0.11 }]\n";
    let own = ["--proxy", "nftables", "--pin-dir", "/sys/fs/bpf/own/nodefence/v1"];
    let agent = Agent::start_with(&ns, "node-a", &["v0"], nodes, &own)?;
    let found = |doctor: &[&str]| -> Result<[String; 2]> {
        let checks: Value = serde_json::from_str(&agent.expect(&[doctor, &["-o", "json"]].concat())?)?;
        let checks = checks.as_array().context("a list")?;
        let found = |name: &str| {
            let check = checks.iter().find(|check| check["name"] == name);
            check.and_then(|check| check["found"].as_str()).map(str::to_owned).context(name.to_owned())
        };
        Ok([found("interface v0")?, found("kube-proxy")?])
    };
    let [interface, proxy] = found(&["doctor"])?;
    ensure!(interface.starts_with("attached") && proxy.starts_with("nftables"), "{interface}, {proxy}");
    // Who names another folder hears of that one.
    let [interface, _] = found(&["doctor", "--pin-dir", "/sys/fs/bpf/nodefence/v1"])?;
    ensure!(interface == "not attached", "{interface}");
    drop(agent);
    let agent = Agent::start_with(&ns, "node-a", &["v0"], nodes, &["--proxy", "none"])?;
    let told = agent.expect(&["doctor"])?;
    ensure!(told.contains("datapath only (--proxy says so)"), "{told}");
    Ok(())
}
