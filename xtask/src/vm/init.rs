//! The guest's first process: this program, copied into the initramfs. It mounts the usual filesystems, loads modules that the kernel rarely loads
//! by itself, runs the plan that the kernel's command line names, and powers off. The second serial line carries only results. The first one
//! carries the kernel's messages and ours.

use std::fs::{self, File};
use std::io::Write as _;
use std::path::Path;
use std::process::{Command, ExitCode};

use anyhow::{Context as _, Result};
use nix::sys::wait::wait;
use nix::unistd::Pid;

use super::plan::{self, PARAMETER, Plan, VARIABLE, Work};
use crate::process;
use crate::test::job::{End, Event};

/// The serial line for the plan's results.
const RESULTS: &str = "/dev/ttyS1";
const BUSYBOX: &str = "/usr/bin/busybox";
/// The folder of busybox's programs. They stand in for programs that the machine lacks.
const APPLETS: &str = "/opt/busybox";
const PATH: &str = "/usr/sbin:/usr/bin:/opt/busybox";
/// The argument of the process that runs the plan.
const RUN: &str = "run-plan";

/// The mounts: the type of the filesystem, and the place.
const MOUNTS: [(&str, &str); 11] = [
    ("proc", "/proc"),
    ("sysfs", "/sys"),
    ("devtmpfs", "/dev"),
    ("devpts", "/dev/pts"),
    ("tmpfs", "/dev/shm"),
    ("tmpfs", "/run"),
    ("tmpfs", "/tmp"),
    ("bpf", "/sys/fs/bpf"),
    ("cgroup2", "/sys/fs/cgroup"),
    ("debugfs", "/sys/kernel/debug"),
    ("tracefs", "/sys/kernel/tracing"),
];

const MODULES: [&str; 32] = [
    "veth",
    "bridge",
    "br_netfilter",
    "vxlan",
    "ipip",
    "ip6_tunnel",
    "sit",
    "tun",
    "8021q",
    "dummy",
    "nf_conntrack",
    "nf_conntrack_netlink",
    "nf_nat",
    "nf_tables",
    "nft_ct",
    "nft_nat",
    "nft_masq",
    "nft_chain_nat",
    "nft_compat",
    "ip_set",
    "ip_set_hash_ip",
    "xt_set",
    "sch_ingress",
    "cls_bpf",
    "act_bpf",
    "cls_matchall",
    "act_mirred",
    "tcp_diag",
    "xfrm_user",
    "virtio_pci",
    "virtio_net",
    "vmxnet3",
];
/// The modules that kube-proxy's IPVS mode loads. They are loaded only when needed, since an agent probes a loaded IPVS at every start.
const IPVS: [&str; 3] = ["ip_vs", "ip_vs_rr", "ip_vs_wrr"];

/// Whether this process is a guest's first process, or the process that runs the plan.
pub(crate) fn is_meant() -> bool {
    std::process::id() == 1 || std::env::args().nth(1).as_deref() == Some(RUN)
}

/// Does the guest's work. The first process itself only sets up the guest and reaps orphans.
pub(crate) fn main() -> ExitCode {
    if std::process::id() != 1 {
        return match run() {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => {
                eprintln!("init: {error:#}");
                ExitCode::FAILURE
            }
        };
    }
    if let Err(error) = set_up().and_then(|()| run_beside()) {
        eprintln!("init: {error:#}");
    }
    for words in [&["sync"][..], &["poweroff", "-f"]] {
        if let Err(error) = run_to_end(Command::new(BUSYBOX).args(words)) {
            eprintln!("init: {error:#}");
        }
    }
    // The kernel panics if its first process ends. That ends the guest too.
    ExitCode::FAILURE
}

/// Runs the plan in a process of its own, and reaps orphans until that process ends. Tests wait for processes to disappear, so orphans must be
/// reaped.
fn run_beside() -> Result<()> {
    let mut command = command("/proc/self/exe")?;
    let child = command.arg(RUN).spawn().context("cannot start the process that runs the plan")?;
    let child = Pid::from_raw(i32::try_from(child.id())?);
    while wait().context("nothing to wait for")?.pid() != Some(child) {}
    Ok(())
}

fn set_up() -> Result<()> {
    fs::create_dir_all(APPLETS)?;
    run_to_end(Command::new(BUSYBOX).args(["--install", "-s", APPLETS]))?;
    for (kind, place) in MOUNTS {
        fs::create_dir_all(place).with_context(|| format!("cannot create {place}"))?;
        // Not every kernel has every filesystem. A test that needs a missing one fails and says so.
        if let Err(error) = run_to_end(Command::new(BUSYBOX).args(["mount", "-t", kind, kind, place])) {
            eprintln!("init: {error:#}");
        }
    }
    fs::create_dir_all("/run/netns")?;
    load(&MODULES)?;
    call(&["ip", "link", "set", "lo", "up"])?;
    if parameters()?.iter().any(|(name, _)| name == "NODEFENCE_TEST_API_SERVER") {
        // This is QEMU's user network. The host is .2, and there is no other machine.
        call(&["ip", "link", "set", "eth0", "up"])?;
        call(&["ip", "address", "add", "10.0.2.15/24", "dev", "eth0"])?;
    }
    // The table's default size follows from the guest's memory, which is small.
    fs::write("/proc/sys/net/netfilter/nf_conntrack_max", "1048576").context("nf_conntrack_max")?;
    call(&["stty", "-F", RESULTS, "raw", "-echo"])
}

fn load(modules: &[&str]) -> Result<()> {
    for module in modules {
        if call(&["modprobe", "-q", module]).is_err() {
            eprintln!("init: no module {module}");
        }
    }
    Ok(())
}

/// The variables that the kernel's command line sets.
fn parameters() -> Result<Vec<(String, String)>> {
    let line = fs::read_to_string("/proc/cmdline").context("/proc/cmdline")?;
    Ok(variables(&line))
}

fn variables(line: &str) -> Vec<(String, String)> {
    let ours = |word: &str| {
        let (name, value) = word.strip_prefix("nodefence.")?.split_once('=')?;
        Some((format!("NODEFENCE_{}", name.to_uppercase()), value.to_owned()))
    };
    line.split_whitespace().filter_map(ours).collect()
}

/// A command with the guest's environment.
fn command(program: impl AsRef<std::ffi::OsStr>) -> Result<Command> {
    let mut command = Command::new(program);
    command.env("PATH", PATH).env("HOME", "/root").env("TMPDIR", "/tmp").env("RUST_BACKTRACE", "1");
    command.envs(parameters()?);
    Ok(command)
}

fn call(words: &[&str]) -> Result<()> {
    let (program, arguments) = words.split_first().context("no program")?;
    run_to_end(command(program)?.args(arguments))
}

/// Runs a program to its end. Fails if the program fails.
fn run_to_end(program: &mut Command) -> Result<()> {
    let status = program.status();
    let status = status.with_context(|| format!("cannot start {}", process::line(program)))?;
    anyhow::ensure!(status.success(), "`{}` ended with {status}", process::line(program));
    Ok(())
}

/// Runs the plan.
fn run() -> Result<()> {
    let variables = parameters()?;
    let name = variables.iter().rev().find(|(name, _)| name == VARIABLE).map(|(_, value)| value);
    let name = name.with_context(|| format!("the kernel's command line has no {PARAMETER}"))?;
    let plan = Plan::load(&Path::new("/").join(Plan::at(name)))?;
    let mut results = File::options().write(true).open(RESULTS).with_context(|| RESULTS.to_owned())?;
    for work in &plan.work {
        let (title, ipvs) = match work {
            Work::Tests(job) => (&job.title, job.ipvs),
            Work::Program { name, ipvs, .. } => (name, *ipvs),
        };
        if ipvs {
            load(&IPVS)?;
        }
        // An error is ignored, since it cannot be reported. The host notices the missing results.
        let mut on_event = |event: Event<'_>| drop(writeln!(results, "{}", plan::line(title, event)));
        let with = |program: &Path, arguments: &[String]| {
            let mut command = process::command(Path::new("/").join(program));
            command.args(arguments).envs(plan.environment.iter().cloned()).current_dir("/tmp");
            command
        };
        match work {
            Work::Tests(job) => job.run(|| with(&job.program, &[]), on_event)?,
            Work::Program { program, arguments, .. } => {
                on_event(Event::Begin);
                // The host has the real limit.
                let limit = std::time::Duration::from_secs(24 * 3600);
                let ended = process::stream(&mut with(program, arguments), limit, |line| {
                    on_event(Event::Line(line))
                })?;
                on_event(Event::End(ended.map_or(End::Killed, |status| End::Code(status.code()))));
            }
        }
    }
    writeln!(results, "{}", plan::DONE)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::variables;

    #[test]
    fn parameters_become_variables() {
        let line = "console=ttyS0 nodefence.plan=plain-5.10 nodefence.role=node quiet nodefence.x\n";
        let pair = |name: &str, value: &str| (name.to_owned(), value.to_owned());
        assert_eq!(variables(line), [pair("NODEFENCE_PLAN", "plain-5.10"), pair("NODEFENCE_ROLE", "node")]);
    }
}
