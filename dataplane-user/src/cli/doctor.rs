use std::{path::Path, process::Command, time::Duration};

use super::{
    args::Format,
    exit::Exit,
    output::{colours, print},
};
use crate::{
    dataplane::{
        Features, InterfaceStatus, TcMode, features, inspect,
        probe::{Conntrack, Finding, Findings},
    },
    doctor::{Check, Facts, Level, judge, worst},
    report::{Client, ClientError, Request, Status},
};

/// How long the agent may take to answer before it counts as hung.
const AGENT_PATIENCE: Duration = Duration::from_secs(5);

/// Looks at the machine and prints what it finds.
pub(super) fn run(format: Format, devices: &[String], pin_dir: &Path, socket: &Path) -> anyhow::Result<Exit> {
    let facts = Facts::gather(devices)?;
    let mut checks = judge(&facts);
    checks.extend(tried(features()));
    checks.extend(probed(&Findings::gather()));
    checks.extend(flowtables(nft_flowtables().as_deref()));
    match inspect(pin_dir, devices) {
        Ok(statuses) => {
            checks.extend(statuses.iter().flat_map(|status| interface(status, !devices.is_empty())))
        }
        Err(error) => checks.push(Check::fail("interfaces", error.to_string(), "run as root")),
    }
    let answer = Client::connect(socket).and_then(|mut client| {
        client.set_patience(AGENT_PATIENCE)?;
        client.ask::<Status>(&Request::Status)
    });
    checks.extend(agent(answer));
    print(format, &checks, |checks| table(checks, colours()))?;
    Ok(if worst(&checks) == Level::Fail { Exit::Unhealthy } else { Exit::Ok })
}

/// What trying each BPF feature gave.
fn tried(features: Features) -> Vec<Check> {
    let must = |there, name, config| match there {
        true => Check::ok(name, "works"),
        false => Check::fail(name, "cannot be used", format!("run as root, on a kernel with {config}")),
    };
    vec![
        must(features.classifier, "TC programs", "CONFIG_BPF_SYSCALL and CONFIG_NET_CLS_BPF"),
        must(features.ring_buffer, "BPF ring buffer", "CONFIG_BPF_SYSCALL, 5.8 or later"),
        match features.xdp {
            true => Check::ok("XDP", "works (used with --xdp only)"),
            false => Check::warn("XDP", "cannot be used", "leave --xdp off"),
        },
        match features.tcx {
            true => Check::ok("attach mode", "tcx"),
            false => Check::ok("attach mode", "clsact (no tcx: it came with 6.6 and CONFIG_NET_XGRESS)"),
        },
    ]
}

/// What the probes in namespaces of their own gave.
fn probed(findings: &Findings) -> Vec<Check> {
    let asking = match &findings.conntrack {
        Finding::Found(Conntrack { syn_ack: false, far_past: false, liberal: false }) => Check::warn(
            "asking idle clients",
            "conntrack translates none of the questions on this kernel",
            "idle flows are cut when they next send; a later kernel translates them",
        ),
        Finding::Found(found) => Check::ok("asking idle clients", asked_by(*found)),
        Finding::NotNeeded(why) => Check::ok("asking idle clients", why.clone()),
        Finding::Failed(why) => Check::warn(
            "asking idle clients",
            format!("how conntrack treats questions is unknown: {why}"),
            "all ways are tried; run as root to find out",
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
            "run as root to find out",
        ),
    };
    vec![asking, resets]
}

fn asked_by(found: Conntrack) -> String {
    let ways = [
        (found.syn_ack, "SYN|ACK"),
        (found.far_past, "ACK from the past"),
        (!found.far_past && found.liberal, "ACK from the past, on flows made liberal"),
    ];
    let ways: Vec<&str> = ways.into_iter().filter_map(|(works, way)| works.then_some(way)).collect();
    format!("by {}", ways.join(", then by "))
}

/// What `nft` lists; `None` where there is no such program, or it may not look.
fn nft_flowtables() -> Option<String> {
    let output = Command::new("nft").args(["list", "flowtables"]).output().ok()?;
    output.status.success().then(|| String::from_utf8_lossy(&output.stdout).into_owned())
}

/// Flowtables in software still send through TC egress; those in hardware do not.
fn flowtables(listed: Option<&str>) -> Option<Check> {
    let listed = listed?;
    let count = listed.lines().filter(|line| line.trim_start().starts_with("flowtable ")).count();
    let offloaded =
        listed.lines().any(|line| line.trim_start().starts_with("flags") && line.contains("offload"));
    match (count, offloaded) {
        (0, _) => None,
        (_, true) => Some(Check::warn(
            "nft flowtables",
            "flows are offloaded to hardware: they do not pass the cut",
            "remove `flags offload` from the flowtables (nft list flowtables)",
        )),
        (count, false) => {
            Some(Check::ok("nft flowtables", format!("{count}, in software: the cut sees them")))
        }
    }
}

/// What is attached to a device and what runs ahead. `wanted`: it was named, so that it must be there.
fn interface(status: &InterfaceStatus, wanted: bool) -> Vec<Check> {
    let name = format!("interface {}", status.name);
    if let Some(error) = &status.error {
        return vec![match wanted {
            true => Check::fail(name, error.clone(), "choose another with --interface"),
            false => Check::ok(name, format!("not of use: {error}")),
        }];
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
            "fine if it answers \"next\" (TC_ACT_UNSPEC); one that answers OK or REDIRECT hides packets from the cut",
        )
    }));
    checks
}

/// How the agent is, where there is one.
fn agent(answer: Result<Status, ClientError>) -> Vec<Check> {
    let status = match answer {
        Ok(status) => status,
        Err(ClientError::Unreachable { .. }) => {
            return vec![Check::warn("agent", "none runs on this node", "start `nodefence agent`")];
        }
        Err(error) => {
            let remedy = "look at its log; if it hangs, end it: verdicts lapse in 3 s";
            return vec![Check::fail("agent", error.to_string(), remedy)];
        }
    };
    let mut checks = vec![Check::ok("agent", format!("process {}, node {}", status.pid, status.node))];
    let mut problem = |name: &str, found: &Option<String>, remedy: &str| {
        checks.extend(found.as_ref().map(|found| Check::fail(name, found.clone(), remedy)));
    };
    problem("cluster file", &status.cluster.error, "mend the file; the last good view holds meanwhile");
    problem("flags file", &status.flags_problem, "flag again");
    problem("maps", &status.dataplane.error, "look at the agent's log");
    problem("renewal", &status.dataplane.renew_error, "look at the agent's log; verdicts lapse in 3 s");
    if status.dataplane.left_out != 0 {
        checks.push(Check::fail(
            "maps",
            format!("{} backends do not fit; their traffic passes", status.dataplane.left_out),
            "restart the agent with a larger --max-backends",
        ));
    }
    if status.uncovered != 0 {
        checks.push(Check::warn(
            "coverage",
            format!("no attached device covers {} backends; traffic to them is not cut", status.uncovered),
            "see `nodefence backends`; attach to their devices with --interface, or use --interface auto",
        ));
    }
    for row in &status.interfaces {
        if let Some(error) = &row.error {
            checks.push(Check::fail(format!("agent's {}", row.name), error.clone(), "see --interface"));
        }
    }
    checks
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
        text.push_str(&format!("  {:<width$}  {}\n", check.name, check.found));
        if let Some(remedy) = &check.remedy {
            text.push_str(&format!("      {:<width$}  -> {remedy}\n", ""));
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flowtables_in_hardware_are_a_warning() {
        assert_eq!(flowtables(None), None);
        assert_eq!(flowtables(Some("")), None);
        let software = "table inet f {\n\tflowtable ft {\n\t\thook ingress priority filter\n\t\tdevices = { eth0 }\n\t}\n}\n";
        assert_eq!(flowtables(Some(software)).unwrap().level, Level::Ok);
        let hardware = software.replace("devices", "flags offload\n\t\tdevices");
        assert_eq!(flowtables(Some(&hardware)).unwrap().level, Level::Warn);
    }

    #[test]
    fn every_line_that_is_not_ok_has_a_remedy() {
        let none =
            Features { classifier: false, tcx: false, ring_buffer: false, xdp: false, kernel_btf: false };
        let failed = Findings {
            conntrack: Finding::Failed("no root".into()),
            ipvs_translates: Finding::Failed("no root".into()),
            milliseconds: 0,
        };
        let missing =
            InterfaceStatus { name: "eth9".into(), error: Some("gone".into()), ..Default::default() };
        let mut checks = tried(none);
        checks.extend(probed(&failed));
        checks.extend(interface(&missing, true));
        assert_eq!(worst(&checks), Level::Fail);
        assert!(checks.iter().all(|check| check.level == Level::Ok || check.remedy.is_some()));
        let text = table(&checks, false);
        assert!(text.contains("fail  interface eth9") && text.contains("-> choose another"), "{text}");
        assert!(!text.contains('\u{1b}'));
    }
}
