use std::{
    io::{self, ErrorKind},
    path::Path,
    process::{Command, Output},
};

use super::{
    args::{Format, PIN_DIR},
    exit::Exit,
    explain,
    output::{colours, print, printable},
    replacement,
};
use crate::{
    dataplane::{
        Features, InterfaceStatus, TcMode, features, inspect,
        probe::{Conntrack, Finding, Findings},
    },
    doctor::{AS_ROOT, Check, Counting, DoctorReport, Facts, Level, judge},
    plan::Mode,
    proxy,
    report::{
        Beside, ClientError, Effect, GuardRow, Health, IpvsRow, OffStatus, OrOff, ReplacementRow, Status,
    },
};

/// Checks the machine and prints the result. Where an agent runs, its own answer says where its pins are and what forwards Services.
pub(super) fn run(
    format: Format,
    devices: &[String],
    pin_dir: Option<&Path>,
    socket: &Path,
) -> anyhow::Result<Exit> {
    let (answer, pid) = explain::ask(socket);
    let off = match &answer {
        Ok(OrOff::Off(status)) => Some(off(status)),
        _ => None,
    };
    let answer = explain::running(answer);
    let running = answer.as_ref().ok();
    let of_agent = running.map(|status| Path::new(&status.dataplane.pin_dir));
    let pin_dir = pin_dir.or(of_agent).unwrap_or(Path::new(PIN_DIR));
    let told = running.map(|status| status.proxy.clone());
    let looked = || proxy::replacement().map(|found| ReplacementRow::new(found, Mode::Enforce, false));
    let beside = running.map_or_else(looked, |status| status.replacement.clone());
    // Conntrack's counters are read a second apart, and the slow checks run meanwhile. The facts come before the features: trying
    // programs raises this process's own limits, which are among the facts.
    let counting = Counting::begin();
    let mut facts = Facts::gather(devices, pin_dir)?;
    let features = features();
    let findings = Findings::gather();
    facts.conntrack = counting.end();
    let lacking = facts.lacking();
    let mut checks = judge(&facts);
    checks.extend(tried(features, &lacking));
    checks.extend(probed(&findings));
    let judged = || proxy::judge(proxy::ProxyChoice::Auto, &proxy::Facts::gather());
    checks.push(kube_proxy(&told.unwrap_or_else(judged)));
    // Where the agent only observes because of a replacement, the agent has a warning of its own about that.
    if running.is_none() || beside.as_ref().is_none_or(|row| row.beside != Beside::Observes) {
        checks.push(replacement::check(beside.as_ref()));
    }
    checks.push(flowtables(nft_flowtables()));
    match inspect(pin_dir, devices) {
        Ok(statuses) => {
            checks.extend(statuses.iter().flat_map(|status| interface(status, !devices.is_empty(), &lacking)))
        }
        Err(error) => checks.push(unknown("interfaces", &error.to_string())),
    }
    match off {
        Some(check) => checks.push(check),
        None => checks.extend(agent(answer, pid)),
    }
    let report = DoctorReport::from(checks);
    print(format, &report, |report| table(&report.items, colours()))?;
    Ok(if report.level == Level::Fail { Exit::Findings } else { Exit::Ok })
}

/// A check that this process could not make: its result is neither good nor bad.
fn unknown(name: &str, why: &str) -> Check {
    Check::warn(name, format!("unknown: {why}"), AS_ROOT)
}

/// The checks of the BPF features, each of which was tried. `lacking`: the capabilities that this process lacks. Without them a refusal
/// says nothing about the kernel.
fn tried(features: Features, lacking: &[&str]) -> Vec<Check> {
    let why = format!("trying it needs {}", lacking.join(", "));
    let check = |there, name, works: &str, otherwise: Check| match there {
        true => Check::ok(name, works),
        false if lacking.is_empty() => otherwise,
        false => unknown(name, &why),
    };
    let config = |names| format!("grep -wE '{names}' /boot/config-$(uname -r)  # the kernel must have them");
    let tc = Check::fail("TC programs", "this kernel has none", config("CONFIG_(BPF_SYSCALL|NET_CLS_BPF)"));
    let ring = Check::fail("BPF ring buffer", "this kernel has none", config("CONFIG_BPF_SYSCALL"));
    let xdp = Check::warn("XDP", "cannot be used", "nodefence agent --xdp off  # as it is by default");
    let clsact = Check::ok("attach mode", "clsact (no tcx: it came with 6.6 and CONFIG_NET_XGRESS)");
    vec![
        check(features.classifier, "TC programs", "work", tc),
        check(features.ring_buffer, "BPF ring buffer", "works", ring),
        check(features.xdp, "XDP", "works (used with --xdp only)", xdp),
        check(features.tcx, "attach mode", "tcx", clsact),
    ]
}

/// The checks of the probes, which ran in namespaces of their own.
fn probed(findings: &Findings) -> Vec<Check> {
    let challenging = match &findings.conntrack {
        Finding::Found(Conntrack { syn_ack: false, far_past: false, liberal: false }) => Check::warn(
            "challenging idle clients",
            "conntrack translates no form of challenge on this kernel",
            "uname -r  # idle flows are cut when they next send; later kernels translate challenges",
        ),
        Finding::Found(found) => Check::ok("challenging idle clients", challenged_by(*found)),
        Finding::NotNeeded(why) => Check::ok("challenging idle clients", why.clone()),
        Finding::Failed(why) => Check::warn(
            "challenging idle clients",
            format!("unknown how conntrack treats challenges, so the agent tries all ways: {why}"),
            AS_ROOT,
        ),
    };
    let resets = match &findings.ipvs_translates {
        Finding::Found(true) => Check::ok("RST", "made in place; IPVS translates it back"),
        Finding::Found(false) => Check::ok(
            "RST",
            "injected by the agent: IPVS of this kernel does not translate one made in place (fixed by de2c211868b9)",
        ),
        Finding::NotNeeded(why) => Check::ok("RST", format!("made in place: {why}")),
        Finding::Failed(why) => Check::warn(
            "RST",
            format!(
                "injected by the agent, since it is unknown whether IPVS translates one made in place: {why}"
            ),
            AS_ROOT,
        ),
    };
    let deleting = match &findings.deletes_by_filter {
        Finding::Found(by_filter) => Check::ok("conntrack entries", format!("deleted {by_filter}")),
        Finding::NotNeeded(why) => Check::ok("conntrack entries", why.clone()),
        Finding::Failed(why) => Check::warn(
            "conntrack entries",
            format!("deleted one by one, since it is unknown whether conntrack deletes by filter: {why}"),
            AS_ROOT,
        ),
    };
    vec![challenging, resets, deleting]
}

/// The check of how kube-proxy forwards.
fn kube_proxy(judgement: &proxy::Judgement) -> Check {
    let found = judgement.to_string();
    if judgement.mode.is_some() || judgement.is_told() {
        return Check::ok("kube-proxy", found);
    }
    let remedy = "curl -s http://127.0.0.1:10249/proxyMode  # tell the agent with --proxy; without kube-proxy this is as it should be";
    Check::warn("kube-proxy", found, remedy)
}

fn challenged_by(found: Conntrack) -> String {
    let ways = [
        (found.syn_ack, "SYN|ACK"),
        (found.far_past, "ACK from the past"),
        (!found.far_past && found.liberal, "ACK from the past, on flows made liberal"),
    ];
    let ways: Vec<&str> = ways.into_iter().filter_map(|(works, way)| works.then_some(way)).collect();
    format!("by {}", ways.join(", then by "))
}

/// The flowtables that `nft` lists, or the check that says why there is no list.
fn nft_flowtables() -> Result<String, Check> {
    nft_listed(Command::new("nft").args(["list", "flowtables"]).output())
}

fn nft_listed(output: io::Result<Output>) -> Result<String, Check> {
    let missing = "the program nft is not installed";
    let output = output.map_err(|error| {
        let why = if error.kind() == ErrorKind::NotFound { missing.to_owned() } else { error.to_string() };
        Check::warn(FLOWTABLES, format!("unknown: {why}"), "apt-get install nftables")
    })?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    let said = String::from_utf8_lossy(&output.stderr);
    Err(unknown(FLOWTABLES, &format!("nft: {}", said.lines().next().unwrap_or("it failed").trim())))
}

const FLOWTABLES: &str = "nft flowtables";

/// The check of flowtables. Packets of software flowtables still pass TC egress. Packets of hardware flowtables do not.
fn flowtables(listed: Result<String, Check>) -> Check {
    let listed = match listed {
        Ok(listed) => listed,
        Err(check) => return check,
    };
    let count = listed.lines().filter(|line| line.trim_start().starts_with("flowtable ")).count();
    let offloaded =
        listed.lines().any(|line| line.trim_start().starts_with("flags") && line.contains("offload"));
    match (count, offloaded) {
        (0, _) => Check::ok(FLOWTABLES, "none"),
        (_, true) => Check::warn(
            FLOWTABLES,
            "flows are offloaded to hardware: they do not pass the cut",
            "nft list flowtables  # take `flags offload` out of them",
        ),
        (count, false) => Check::ok(FLOWTABLES, format!("{count}, in software: the cut sees them")),
    }
}

/// The checks of a device: what is attached, and which programs run before ours. `wanted`: the device was named, so it must exist.
fn interface(status: &InterfaceStatus, wanted: bool, lacking: &[&str]) -> Vec<Check> {
    let name = format!("interface {}", status.name);
    if let Some(error) = &status.error {
        // The device has gone since, or no program of ours fits its type.
        let unfit = status.ifindex == 0 || status.link_layer.is_none();
        return vec![match (unfit, wanted) {
            (true, true) => {
                Check::fail(name, error.clone(), "ip -brief link  # choose another with --interface")
            }
            (true, false) => Check::ok(name, format!("not of use: {error}")),
            (false, _) if !lacking.is_empty() => unknown(&name, error),
            (false, _) => {
                Check::fail(name, error.clone(), format!("tc filter show dev {} egress", status.name))
            }
        }];
    }
    // The kernel shows tcx links and pins only to privileged processes. It shows clsact filters to all.
    if !lacking.is_empty() {
        return vec![unknown(&name, &format!("to see what is attached needs {}", lacking.join(", ")))];
    }
    let found = match status.tc {
        None => "not attached".to_owned(),
        Some(TcMode::Tcx) => "attached by tcx".to_owned(),
        Some(TcMode::Clsact) => "attached by clsact".to_owned(),
    };
    let mut checks = vec![match &status.xdp.reason {
        None => Check::ok(&*name, found),
        Some(reason) => Check::ok(&*name, format!("{found}; XDP: {reason}")),
    }];
    checks.extend(status.programs_ahead.iter().map(|ahead| {
        Check::warn(
            format!("ahead on {}", status.name),
            format!("{} (id {}) at {} sees packets before ours", ahead.name, ahead.id, ahead.r#where),
            format!(
                "bpftool prog show id {}  # fine if it answers TC_ACT_UNSPEC; OK or REDIRECT hides packets from the cut",
                ahead.id
            ),
        )
    }));
    checks
}

/// The check of an agent that is off.
pub(super) fn off(status: &OffStatus) -> Check {
    let found = format!("process {} is {}", status.pid, status.off.text());
    Check::warn("agent", found, format!("nodefence on  # {}", status.off.end()))
}

/// The checks of the agent. `pid`: the process that listens at its socket.
fn agent(answer: Result<Status, ClientError>, pid: Option<i32>) -> Vec<Check> {
    let status = match answer {
        Ok(status) => status,
        Err(error) if error.forbidden() => {
            return vec![unknown("agent", "this user may not use its socket")];
        }
        Err(ClientError::Unreachable { path, .. }) => {
            let found = format!("none answers at {}", path.display());
            let remedy = "nodefence agent --cluster-file cluster.yaml";
            return vec![Check::warn("agent", found, remedy)];
        }
        Err(error) => {
            // A stopped process handles no SIGTERM before it gets SIGCONT.
            let end = match pid {
                Some(pid) => {
                    format!("kill {pid}; kill -CONT {pid}  # or, of a unit, systemctl restart nodefence")
                }
                None => "systemctl restart nodefence  # or restart its container".to_owned(),
            };
            let remedy = format!("{end}; look at its log first: verdicts lapse within 3 s");
            return vec![Check::fail("agent", error.to_string(), remedy)];
        }
    };
    let mut checks = vec![Check::ok("agent", format!("process {}, node {}", status.pid, status.node))];
    let standing = Health::of(&status).warnings.into_iter().filter(|warning| warning.standing);
    checks.extend(standing.map(|warning| {
        let name = warning.code.name();
        let found = warning.message;
        let remedy = explain::remedy(warning.code, Some(&status));
        match warning.code.explanation().effect {
            Effect::Blind | Effect::Fails => Check::fail(name, found, remedy),
            Effect::Limits | Effect::Past => Check::warn(name, found, remedy),
        }
    }));
    checks.extend(guard(&status.ipvs));
    checks
}

/// The check of who restores IPVS where the agent is killed. `None` where there is nothing to restore, and where a warning says that the
/// external guard is missing.
fn guard(ipvs: &IpvsRow) -> Option<Check> {
    const NAME: &str = "IPVS guard";
    match ipvs.guard {
        GuardRow::Child => ipvs.loaded.then(|| {
            Check::ok(NAME, "child of the agent (in a container: ends with it, see `nodefence guard --help`)")
        }),
        GuardRow::External { seen: true } => Some(Check::ok(NAME, "external, and it is there")),
        GuardRow::External { seen: false } => None,
    }
}

fn table(checks: &[Check], colours: bool) -> String {
    let width = checks.iter().map(|check| check.name.len()).max().unwrap_or(0);
    let mut text = String::new();
    for check in checks {
        let (word, colour) = match check.level {
            Level::Ok => ("ok  ", 32),
            Level::Warn => ("warn", 33),
            Level::Fail => ("fail", 31),
        };
        if colours {
            text.push_str(&format!("\u{1b}[{colour}m{word}\u{1b}[0m"));
        } else {
            text.push_str(word);
        }
        text.push_str(&format!("  {:<width$}  {}\n", check.name, printable(&check.found)));
        if let Some(remedy) = &check.remedy {
            text.push_str(&format!("      {:<width$}  -> {}\n", "", printable(remedy)));
        }
    }
    text
}

#[cfg(test)]
#[path = "doctor_tests.rs"]
mod tests;
