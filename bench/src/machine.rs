//! The machine on which a benchmark ran.
use std::path::Path;

use serde_json::{Value, json};

/// Kernel, processor, cores, load and time. A fact that cannot be read is null.
pub(crate) fn facts(arguments: &[String]) -> Value {
    let read = |path: &str| std::fs::read_to_string(path).ok().map(|text| text.trim().to_owned());
    let cpuinfo = read("/proc/cpuinfo").unwrap_or_default();
    let model = cpuinfo
        .lines()
        .find(|line| line.starts_with("model name") || line.starts_with("Hardware"))
        .and_then(|line| line.split_once(':'))
        .map(|(_, model)| model.trim().to_owned());
    json!({
        "kernel": read("/proc/sys/kernel/osrelease"),
        "cpu": model,
        "cores": std::thread::available_parallelism().ok().map(std::num::NonZero::get),
        "virtual": cpuinfo.lines().any(|line| line.starts_with("flags") && line.contains(" hypervisor")),
        "governor": read("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor"),
        "memory": read("/proc/meminfo").and_then(|text| Some(text.lines().next()?.replace("MemTotal:", "").trim().to_owned())),
        "load_at_start": read("/proc/loadavg"),
        "unix_time": std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).ok().map(|since| since.as_secs()),
        "build": if cfg!(debug_assertions) { "debug" } else { "release" },
        "arguments": arguments,
    })
}

/// The path of the agent's binary: `named`, or else the one beside this program.
pub(crate) fn agent(named: Option<&Path>) -> anyhow::Result<std::path::PathBuf> {
    let path = match named {
        Some(path) => path.to_owned(),
        None => std::env::current_exe()?.with_file_name("nodefence"),
    };
    anyhow::ensure!(
        path.is_file(),
        "no agent at {}: build package nodefence, or name it by --agent",
        path.display()
    );
    Ok(path)
}
