//! `nodefence doctor` beside a running agent.

use std::{
    net::UdpSocket,
    process::Command,
    sync::{Arc, atomic::AtomicBool},
    time::Duration,
};

use anyhow::{Context as _, Result, ensure};
use nodefence_tests::{
    Agent, Cluster, Netns, Options, kernel,
    load::{repeat, under},
};
use serde_json::Value;

/// The doctor gets settings that only the agent was given from the agent: the folder of pins and kube-proxy's mode.
#[test]
fn it_asks_the_agent() -> Result<()> {
    let ns = Arc::new(Netns::new("doctor")?);
    ns.ip("link add v0 type veth peer name v1")?;
    ns.ip("link set v0 up")?;
    let nodes = "nodes: [{ name: node-a, address: 10.2.0.11 }]\n";
    let own = ["--proxy", "nftables", "--pin-dir", "/sys/fs/bpf/own/nodefence/v3"];
    let agent = Agent::start_with(&ns, "node-a", &["v0"], nodes, &own)?;
    let found = |doctor: &[&str]| -> Result<[String; 2]> {
        let checks: Value = serde_json::from_str(&agent.expect(&[doctor, &["-o", "json"]].concat())?)?;
        let checks = checks["items"].as_array().context("a list")?;
        let found = |name: &str| {
            let check = checks.iter().find(|check| check["name"] == name);
            check.and_then(|check| check["found"].as_str()).map(str::to_owned).context(name.to_owned())
        };
        Ok([found("interface v0")?, found("kube-proxy")?])
    };
    let [interface, proxy] = found(&["doctor"])?;
    ensure!(interface.starts_with("attached by ") && proxy.starts_with("nftables"), "{interface}, {proxy}");
    // The doctor reports on the folder of `--pin-dir`. A clsact filter has no pin, so the doctor shows it for each folder.
    let [interface, _] = found(&["doctor", "--pin-dir", "/sys/fs/bpf/nodefence/v3"])?;
    let pinned = kernel::version()? >= kernel::TCX;
    let expected = if pinned { "not attached" } else { "attached by clsact" };
    ensure!(interface == expected, "{interface}");
    drop(agent);
    let agent = Agent::start_with(&ns, "node-a", &["v0"], nodes, &["--proxy", "none"])?;
    let told = agent.expect(&["doctor"])?;
    ensure!(told.contains("datapath only (--proxy says so)"), "{told}");
    Ok(())
}

/// The doctor names the process of an agent that does not answer, so that the operator can end it.
#[test]
fn an_agent_that_stands_still_is_named() -> Result<()> {
    let ns = Arc::new(Netns::new("doctor")?);
    ns.ip("link add v0 type veth peer name v1\nlink set v0 up")?;
    let mut agent = Agent::start(&ns, "node-a", &["v0"], "nodes: [{ name: node-a, address: 10.2.0.11 }]\n")?;
    agent.proc()?.freeze()?;
    let output = agent.cli(&["doctor", "-o", "json"])?;
    let checks: Value = serde_json::from_slice(&output.stdout)?;
    let check =
        checks["items"].as_array().and_then(|checks| checks.iter().find(|check| check["name"] == "agent"));
    let check = check.context("no line on the agent")?;
    let pid = agent.proc()?.pid();
    let end = format!("kill {pid}; kill -CONT {pid}  # ");
    let remedy = check["remedy"].as_str().unwrap_or_default();
    ensure!(check["level"] == "fail" && remedy.starts_with(&end), "{check}");
    let done = Command::new("sh").args(["-c", remedy]).status()?;
    ensure!(done.success() && agent.ends_by_itself(Duration::from_secs(10))? == Some(0));
    Ok(())
}

/// Sends packets from two sockets that SNAT maps to one source port. Conntrack drops the second.
fn clash(cluster: &Cluster) -> Result<()> {
    cluster.client.run(|| {
        for _ in 0..2 {
            UdpSocket::bind("192.0.2.2:0")?.send_to(b"x", "10.2.0.13:9999")?;
        }
        Ok(())
    })
}

#[test]
fn packets_that_conntrack_drops() -> Result<()> {
    let cluster = Cluster::new(Options::default())?;
    cluster.a.ns.nft(
        "table ip clash {
            chain post {
                type nat hook postrouting priority 90
                udp dport 9999 snat to 10.2.0.11:5000
            }
        }",
    )?;
    let agent = cluster.agent()?;
    let drops = || -> Result<[String; 2]> {
        let checks: Value = serde_json::from_str(&agent.expect(&["doctor", "-o", "json"])?)?;
        let checks = checks["items"].as_array().context("a list")?;
        let check = checks.iter().find(|check| check["name"] == "conntrack drops").context("no line")?;
        Ok(["level", "found"].map(|field| check[field].as_str().unwrap_or_default().to_owned()))
    };
    let before = drops()?;
    ensure!(before == ["ok", "none"], "{before:?}");
    let clashes = |stop: &AtomicBool| repeat(stop, || clash(&cluster).map(|()| Duration::from_millis(50)));
    let (during, clashed) = under([clashes], drops);
    clashed.into_iter().collect::<Result<Vec<u64>>>()?;
    let during = during?;
    ensure!(during[0] == "warn", "{during:?}\n{}", cluster.a.ns.exec("conntrack -S")?);
    ensure!(during[1].starts_with("packets are being dropped: insert_failed "), "{during:?}");
    // Drops in the past are shown, but are no fault.
    let after = drops()?;
    let history = "none just now; since this network namespace began: insert_failed ";
    ensure!(after[0] == "ok" && after[1].starts_with(history), "{after:?}");
    Ok(())
}
