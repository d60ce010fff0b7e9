//! IPVS is loaded while the agent runs. Runs in VMs (`cargo xtask vm-test`) and alone, since IPVS cannot be unloaded while another test uses it.

use std::{
    process::Command,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, ensure};
use aya::maps::{Array, Map, MapData};
use nodefence_common::{Config, config_flags};
use nodefence_tests::{
    Agent,
    client::wait_until,
    four_nodes,
    still::{flags_are_answered, verdicts_are_renewed},
    traced::Still,
};

/// The modules of IPVS, in the order in which they can be loaded.
const MODULES: [&str; 3] = ["ip_vs", "ip_vs_rr", "ip_vs_wrr"];

fn modprobe(args: &[&str]) -> Result<()> {
    let output = Command::new("modprobe").args(args).output().context("start modprobe")?;
    ensure!(output.status.success(), "modprobe {}: {output:?}", args.join(" "));
    Ok(())
}

/// IPVS is unloaded while this value lives.
struct Unloaded;

impl Unloaded {
    fn new() -> Result<Self> {
        let this = Self;
        // The kernel deletes a namespace some time after its last process, and until then the namespace holds the modules that it has used.
        wait_until("IPVS is unloaded", Duration::from_secs(60), || {
            unload().is_ok_and(|left| left.is_empty())
        })
        .with_context(|| format!("still loaded: {:?}", loaded()))?;
        Ok(this)
    }
}

/// The loaded modules: IPVS, and the schedulers that earlier tests used.
fn loaded() -> Result<Vec<String>> {
    let modules = std::fs::read_to_string("/proc/modules").context("read /proc/modules")?;
    let names = modules.lines().filter_map(|line| line.split_whitespace().next());
    Ok(names.filter(|name| name.starts_with("ip_vs")).map(str::to_owned).collect())
}

/// Tries to unload these modules, the schedulers first. Gives those that are left.
fn unload() -> Result<Vec<String>> {
    let mut modules = loaded()?;
    modules.sort_by_key(|name| name == "ip_vs");
    for module in &modules {
        // A module that is in use is tried again.
        let _busy = modprobe(&["-r", module]);
    }
    loaded()
}

impl Drop for Unloaded {
    fn drop(&mut self) {
        for module in MODULES {
            let _loaded = modprobe(&[module]);
        }
    }
}

/// At boot the agent may be up before kube-proxy loads IPVS. Its finding from before does not hold any more then.
#[cfg(target_arch = "x86_64")]
#[test]
fn ipvs_that_comes_late_is_probed() -> Result<()> {
    let unloaded = Unloaded::new()?;
    let ns = four_nodes::namespace("late")?;
    let agent = Agent::start(&ns, "node-a", &["v0"], four_nodes::FILE)?;
    agent.flag("node-b")?;
    let index = agent.node("node-b")?["index"].as_u64().context("no index")?;
    let finding = || agent.status().map(|status| status["probe"]["ipvs_translates"].clone());
    ensure!(finding()?["not_needed"].is_string(), "without IPVS: {}", finding()?);
    // No other thread waits for a probe, which may take long or never end.
    let still = Still::of_next(agent.proc()?.pid(), "findings", || {
        drop(unloaded);
        Ok(())
    })?;
    let since = Instant::now();
    flags_are_answered(&agent, "findings")?;
    verdicts_are_renewed(&ns, u32::try_from(index)?, "findings", since)?;
    ensure!(
        finding()?["not_needed"].is_string(),
        "IPVS was probed while `findings` stands still: {}",
        finding()?
    );
    still.lift()?;
    let found = || finding().is_ok_and(|finding| finding["found"].is_boolean());
    wait_until("IPVS is probed", Duration::from_secs(120), found).with_context(|| agent.log())?;
    let translates = finding()?["found"] == true;
    let flags = ns.run(|| -> Result<u32> {
        let map = MapData::from_pin("/sys/fs/bpf/nodefence/v3/config").and_then(Map::from_map_data)?;
        let config: Array<_, Config> = map.try_into()?;
        Ok(config.get(&0, 0)?.flags)
    })?;
    ensure!((flags & config_flags::INJECT == 0) == translates, "flags {flags:#x}, translated: {translates}");
    Ok(())
}
