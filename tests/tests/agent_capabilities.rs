//! The chart's unprivileged profile: the agent and the guard with exactly the capabilities that it gives them, and with one less.

use std::{
    fs,
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::{Context as _, Result, bail, ensure};
use nix::{sys::signal::Signal, unistd::Pid};
use nodefence::{
    ipvs::{Destination, Protocol, ServiceKey},
    ledger::{Entry, Ledger, Pair, Phase, Record},
};
use nodefence_tests::{
    Agent, Cluster, Family, Netns, Options, Outcome, Place, Proc, bin,
    bin_path::command,
    checks::{Case, SOON},
    client::{UdpConn, try_new, wait_until},
    four_nodes, kernel,
    topology::Service,
};
use tempfile::TempDir;

/// The template of the agent's pod. The capabilities in it are those of the unprivileged profile.
const TEMPLATE: &str = include_str!("../../deploy/chart/nodefence/templates/agent.yaml");
/// The limit of waits that have no promised time.
const LIMIT: Duration = Duration::from_secs(60);

/// The capabilities that the profile gives a container, by their names for setpriv(1).
fn of_chart(container: &str) -> Result<Vec<String>> {
    let (_, spec) = TEMPLATE.split_once(&format!("- name: {container}\n")).context("no such container")?;
    let (_, list) = spec.split_once("\"capabilities\" (list ").context("it has no capabilities")?;
    let (list, _) = list.split_once(')').context("the list has no end")?;
    Ok(list.split_whitespace().map(|name| name.trim_matches('"').to_lowercase()).collect())
}

/// The number of a capability (include/uapi/linux/capability.h).
fn number(capability: &str) -> Result<u32> {
    let numbers = [
        ("net_admin", 12),
        ("net_raw", 13),
        ("sys_admin", 21),
        ("sys_nice", 23),
        ("sys_resource", 24),
        ("perfmon", 38),
        ("bpf", 39),
    ];
    let known = numbers.into_iter().find(|(name, _)| *name == capability);
    known
        .map(|(_, number)| number)
        .with_context(|| format!("{capability} is none that nodefence has a use for"))
}

/// A program in `folder` that is `nodefence` with these capabilities and no other, as a container runtime starts it under this profile.
fn with_only(capabilities: &[String], folder: &Path) -> Result<PathBuf> {
    let path = folder.join("nodefence");
    let kept = capabilities.iter().map(|name| format!(",+{name}")).collect::<String>();
    // A container may lock little memory, unless its runtime was told otherwise.
    let script = format!(
        "#!/bin/sh
ulimit -l 64
case $1 in agent|guard) export RUST_LOG=debug;; esac
exec setpriv --no-new-privs --inh-caps=-all --ambient-caps=-all --bounding-set=-all{kept} '{}' \"$@\"
",
        bin("nodefence")?.display()
    );
    fs::write(&path, script)?;
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755))?;
    Ok(path)
}

/// A set of capabilities of a process, as the kernel prints it (`CapEff`).
fn set_of(pid: Pid, key: &str) -> Result<u64> {
    let status = fs::read_to_string(format!("/proc/{pid}/status"))?;
    let found = status.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(':'));
    Ok(u64::from_str_radix(found.with_context(|| format!("no {key}"))?.trim(), 16)?)
}

/// Whether this test may give others the capability. A container that tests run in may lack it.
fn is_ours_to_give(capability: &str) -> Result<bool> {
    Ok(set_of(Pid::this(), "CapBnd")? >> number(capability)? & 1 == 1)
}

/// Checks that a process has these capabilities and can have no other.
fn has_only(pid: Pid, capabilities: &[String]) -> Result<()> {
    let mut wanted = 0_u64;
    for name in capabilities {
        wanted |= u64::from(is_ours_to_give(name)?) << number(name)?;
    }
    for key in ["CapEff", "CapPrm", "CapBnd"] {
        let found = set_of(pid, key)?;
        ensure!(found == wanted, "{key}: {found:x}, wanted {wanted:x}");
    }
    ensure!(set_of(pid, "NoNewPrivs")? == 1);
    Ok(())
}

/// The log of an agent or a guard must not tell of anything that the kernel refused.
fn nothing_was_refused(log: &str) -> Result<()> {
    let events =
        ["no-precedence", "keeps-precedence", "guard-keeps-nice", "neighbours-not-held", "notrack-unknown"];
    for event in events {
        ensure!(!log.contains(&format!("event=\"{event}\"")), "{event}: {log}");
    }
    for text in [" ERROR ", "not permitted", "EPERM", "no privilege", "CAP_"] {
        ensure!(!log.contains(text), "`{text}`: {log}");
    }
    Ok(())
}

/// A guard over an agent's folder. Its program has its own capabilities.
struct Guard {
    proc: Proc,
    log: PathBuf,
    _folder: TempDir,
}

impl Guard {
    fn start(ns: &Netns, agent: &Agent, capabilities: &[String]) -> Result<Self> {
        let folder = TempDir::with_prefix("nodefence-guard-")?;
        let mut command = command(&with_only(capabilities, folder.path())?);
        let run_dir = agent.socket().parent().context("no folder")?.to_owned();
        command.args(["guard", "--wait", "--run-dir"]).arg(run_dir);
        let log = folder.path().join("log");
        let file = fs::File::create(&log)?;
        command.stdout(file.try_clone()?).stderr(file);
        let guard = Self { proc: Proc::spawn(ns, command)?, log, _folder: folder };
        guard.says("event=\"guard-watches\"")?;
        has_only(guard.proc.pid(), capabilities)?;
        Ok(guard)
    }

    fn log(&self) -> String {
        fs::read_to_string(&self.log).unwrap_or_default()
    }

    fn says(&self, text: &str) -> Result<()> {
        wait_until(text, LIMIT, || self.log().contains(text)).map(drop).with_context(|| self.log())
    }

    /// How often the guard has gone to sleep, which it does after each look.
    fn looks(&self) -> Result<u64> {
        let status = fs::read_to_string(format!("/proc/{}/status", self.proc.pid()))?;
        let line = status.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"));
        Ok(line.context("no such line")?.trim().parse()?)
    }
}

/// The agent and its guard have all that a cut takes: programs, exact resets, conntrack, the raw socket of rescue, precedence, and `off`.
#[test]
fn the_profile_is_enough() -> Result<()> {
    let folder = TempDir::with_prefix("nodefence-capabilities-")?;
    let capabilities = of_chart("agent")?;
    let program = with_only(&capabilities, folder.path())?;
    let cluster = Cluster::new(Options::default())?;
    let ns = &cluster.a.ns;
    let file = cluster.services_file();
    let options = ["--proxy", "auto", "--guard", "external"];
    let mut agent = Agent::of(&program, ns, cluster.a.name, &cluster.interfaces(), &file, &options)?;
    has_only(agent.proc()?.pid(), &capabilities)?;
    let mut guard = Guard::start(ns, &agent, &of_chart("guard")?)?;
    wait_until("the agent rescues", LIMIT, || {
        agent.status().is_ok_and(|status| status["rescue"]["idle"].is_null())
    })
    .with_context(|| agent.log())?;
    let status = agent.status()?;
    // A probe that lacks a privilege reports that in place of a finding.
    for probe in ["conntrack", "deletes_by_filter"] {
        ensure!(status["probe"][probe]["found"].is_object(), "{}", status["probe"]);
    }
    ensure!(status["interfaces"][0]["tc"].is_string(), "{}", status["interfaces"]);
    ensure!((locked_memory(&agent)? == "unlimited") == is_ours_to_give("sys_resource")?);

    let mut idle = Vec::new();
    for place in Place::ALL {
        let mut conn = Case { cluster: &cluster, place, family: Family::V4 }.to_b(Service::Web)?;
        conn.long_poll()?;
        idle.push(conn);
    }
    let dns = cluster.service(Service::Dns, Place::Pod, Family::V4);
    let datagrams = UdpConn::connect_to(&cluster.a.pod, dns, "node-b", SOON)?;
    cluster.b.freeze()?;
    agent.flag("node-b")?;
    for conn in &mut idle {
        let outcome = conn.wait_end(SOON);
        ensure!(outcome == Outcome::Reset, "an idle client: {outcome:?}\n{}", agent.log());
    }
    ensure!(datagrams.who()? == "node-c", "a datagram went to the flagged node");
    rescues(&cluster, &agent)?;
    let flows = agent.expect(&["flows", "--node", "node-b"])?;
    ensure!(!flows.contains("ESTABLISHED"), "{flows}");

    agent.expect(&["off"])?;
    cluster.b.thaw()?;
    let backend = cluster.b.endpoint(Service::Web, Family::V4);
    let attempt = || try_new(&cluster.a.pod, backend, SOON).0;
    ensure!(attempt() == Outcome::Answered, "{}", agent.log());
    let pins = ns.exec("find /sys/fs/bpf -path */nodefence*")?;
    ensure!(pins.is_empty(), "left: {pins}");
    agent.expect(&["on"])?;
    ensure!(attempt() == Outcome::Refused, "{}", agent.log());
    agent.terminate()?;
    agent.expect(&[
        "detach",
        "--run-dir",
        agent.socket().parent().and_then(Path::to_str).context("no folder")?,
    ])?;
    guard.proc.signal(Signal::SIGTERM)?;
    ensure!(guard.proc.wait(LIMIT)?.success(), "{}", guard.log());
    nothing_was_refused(&agent.log())?;
    nothing_was_refused(&guard.log())
}

/// New connections are answered by node C, some of them after their SYN met the cut.
fn rescues(cluster: &Cluster, agent: &Agent) -> Result<()> {
    for place in Place::ALL {
        let to = cluster.service(Service::Web, place, Family::V4);
        for _ in 0..12 {
            match try_new(cluster.at(place), to, SOON) {
                (Outcome::Answered, Some(name)) if name == "node-c" => {}
                // Where the machine stood still, the lease of rescue may have lapsed.
                (Outcome::Refused, _) => {}
                other => bail!("{place:?}: {other:?}\n{}", agent.log()),
            }
        }
    }
    let list = agent.json(&["counters"])?;
    let row = list["items"].as_array().and_then(|rows| rows.iter().find(|row| row["reason"] == "rescued"));
    ensure!(row.and_then(|row| row["packets"].as_u64()) > Some(0), "{list}");
    Ok(())
}

/// What shows that a capability is missing.
enum Shown {
    /// The agent does not come up, and its log has this text.
    Ends(&'static str),
    /// The log has this text.
    Log(&'static str),
    /// The report of a flag has this text.
    Flag(&'static str),
    /// This probe of the kernel failed, and says this.
    Probe(&'static str, &'static str),
    /// The limit of locked memory stays as it was, against which maps count before Linux 5.11.
    LockedMemory,
}

use Shown::{Ends, Flag, LockedMemory, Log, Probe};

/// For each capability of the agent: what its absence leads to.
const ABSENT: [(&str, Shown); 5] = [
    ("net_admin", Flag("CAP_NET_ADMIN is missing")),
    ("net_raw", Probe("conntrack", "open a raw socket: EPERM")),
    ("sys_admin", Ends("no privilege to")),
    ("sys_nice", Log("event=\"no-precedence\"")),
    ("sys_resource", LockedMemory),
];

fn shows(agent: Result<(Agent, TempDir)>, shown: &Shown) -> Result<()> {
    let (agent, _folder) = match (agent, shown) {
        (Err(error), Ends(text)) => {
            let told = format!("{error:#}");
            ensure!(told.contains(text), "{told}");
            return Ok(());
        }
        // Before 5.11 no map can be made then.
        (Err(error), LockedMemory) if kernel::version()? < kernel::UNCOUNTED => {
            let told = format!("{error:#}");
            ensure!(told.contains("RLIMIT_MEMLOCK"), "{told}");
            return Ok(());
        }
        (agent, _) => agent?,
    };
    match shown {
        Ends(_) => bail!("the agent runs: {}", agent.log()),
        Log(text) => agent.wait_for_log(text),
        Flag(text) => {
            let told = agent.expect(&["flag", "node-b"])?;
            ensure!(told.contains(text), "{told}");
            Ok(())
        }
        Probe(name, text) => {
            let probe = agent.status()?["probe"][name].clone();
            ensure!(probe["failed"].as_str().is_some_and(|failed| failed.contains(text)), "{probe}");
            Ok(())
        }
        LockedMemory => {
            ensure!(locked_memory(&agent)? != "unlimited");
            Ok(())
        }
    }
}

/// The agent's limit of locked memory, as the kernel prints it.
fn locked_memory(agent: &Agent) -> Result<String> {
    let limits = fs::read_to_string(format!("/proc/{}/limits", agent.proc()?.pid()))?;
    let line = limits.lines().find_map(|line| line.strip_prefix("Max locked memory"));
    let soft = line.and_then(|line| line.split_whitespace().next()).context("no such limit")?;
    Ok(soft.to_owned())
}

/// An agent with these capabilities and no other, and the folder of its program.
fn start_with_only(capabilities: &[String]) -> Result<(Agent, TempDir)> {
    let folder = TempDir::with_prefix("nodefence-capabilities-")?;
    let program = with_only(capabilities, folder.path())?;
    let ns = four_nodes::namespace("capabilities")?;
    let options = ["--guard", "external"];
    let agent = Agent::of(&program, &ns, "node-a", &["v0"], four_nodes::FILE, &options)?;
    has_only(agent.proc()?.pid(), capabilities)?;
    Ok((agent, folder))
}

/// None of the agent's capabilities is spare.
#[test]
fn without_any_one_of_them_the_agent_lacks_something() -> Result<()> {
    let all = of_chart("agent")?;
    let mut named: Vec<&str> = ABSENT.iter().map(|(name, _)| *name).collect();
    named.sort_unstable();
    let mut listed = all.clone();
    listed.sort_unstable();
    ensure!(listed == named, "the chart gives {listed:?}, and this test knows what {named:?} are for");
    for (absent, shown) in &ABSENT {
        let left: Vec<String> = all.iter().filter(|name| name != absent).cloned().collect();
        shows(start_with_only(&left), shown).with_context(|| format!("without {absent}"))?;
    }
    Ok(())
}

/// Who gives the agent BPF and PERFMON in place of SYS_ADMIN has an agent that cuts and knows less of the kernel (docs/security.md).
#[test]
fn sys_admin_can_be_replaced_at_a_price() -> Result<()> {
    let mut capabilities = of_chart("agent")?;
    capabilities.retain(|name| name != "sys_admin");
    capabilities.extend(["bpf", "perfmon"].map(str::to_owned));
    let (agent, _folder) = start_with_only(&capabilities)?;
    agent.flag("node-b")?;
    ensure!(agent.node("node-b")?["action"] == "refuse", "{}", agent.log());
    let status = agent.status()?;
    ensure!(status["interfaces"][0]["tc"].is_string(), "{}", status["interfaces"]);
    for probe in ["conntrack", "deletes_by_filter"] {
        let failed = status["probe"][probe]["failed"].as_str().context("it knows all of the kernel")?;
        ensure!(failed.contains("cannot make a network namespace"), "{failed}");
    }
    agent.expect(&["off"])?;
    ensure!(agent.status()?["taken_back"] == true, "{}", agent.log());
    Ok(())
}

/// A destination that is drained, as the agent writes it down.
fn drain_something(ns: &Netns, agent: &Agent) -> Result<()> {
    let folder = agent.socket().parent().context("no folder")?.to_owned();
    let service = ServiceKey::Address { address: "10.96.0.1:80".parse()?, protocol: Protocol::TCP };
    let destination = "10.9.1.1:8080".parse()?;
    let entry =
        Entry { node: "node-b".into(), phase: Phase::Lowered, original: Destination::new(destination, 1) };
    // A ledger is of one network namespace.
    ns.within(|| Ok(Ledger::open(&folder)?.0.append(&[Record::Own(Pair { service, destination }, entry)])?))
}

/// Of the guard's capabilities NET_ADMIN is for IPVS alone, which this machine may lack: `vm_drain` has a guard restore.
#[test]
fn without_any_one_of_them_the_guard_lacks_something() -> Result<()> {
    let all = of_chart("guard")?;
    let mut listed = all.clone();
    listed.sort_unstable();
    ensure!(listed == ["bpf", "net_admin", "sys_nice"], "{listed:?}");
    let without = |absent: &str| all.iter().filter(|name| *name != absent).cloned().collect::<Vec<_>>();
    let ns = four_nodes::namespace("guards")?;
    let agent = Agent::start_with(&ns, "node-a", &["v0"], four_nodes::FILE, &["--guard", "external"])?;
    drain_something(&ns, &agent)?;
    let is_not_blind = |capabilities: &[String]| {
        let guard = Guard::start(&ns, &agent, capabilities)?;
        let looks = guard.looks()?;
        wait_until("ten looks of the guard", LIMIT, || guard.looks().is_ok_and(|now| now > looks + 10))?;
        nothing_was_refused(&guard.log())
    };
    is_not_blind(&all)?;
    match reads_maps_without_bpf()? {
        true => is_not_blind(&without("bpf"))?,
        false => Guard::start(&ns, &agent, &without("bpf"))?.says("no lease can be read below")?,
    }
    Guard::start(&ns, &agent, &without("sys_nice"))?.says("event=\"guard-keeps-nice\"")
}

/// Whether a process without CAP_BPF may open a pinned map. Before 5.19 `kernel.unprivileged_bpf_disabled`, which distributions set, refuses each bpf(2); from then
/// on only the making of maps and programs (`__sys_bpf`, kernel/bpf/syscall.c).
fn reads_maps_without_bpf() -> Result<bool> {
    let disabled = fs::read_to_string("/proc/sys/kernel/unprivileged_bpf_disabled")?;
    Ok(kernel::version()? >= (5, 19) || disabled.trim() == "0")
}
