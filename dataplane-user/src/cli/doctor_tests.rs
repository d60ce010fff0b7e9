use serde_json::json;

use super::*;
use crate::{
    cli::golden,
    dataplane::LinkLayer,
    report::sample::{changed, full},
};

#[test]
fn flowtables_in_hardware_are_a_warning() {
    let unknown = unknown(FLOWTABLES, "not permitted");
    assert_eq!(flowtables(Err(unknown.clone())), unknown);
    assert_eq!(flowtables(Ok(String::new())).level, Level::Ok);
    let software = "table inet f {\n\tflowtable ft {\n\t\thook ingress priority filter\n\t\tdevices = { eth0 }\n\t}\n}\n";
    assert_eq!(flowtables(Ok(software.to_owned())).level, Level::Ok);
    let hardware = software.replace("devices", "flags offload\n\t\tdevices");
    assert_eq!(flowtables(Ok(hardware)).level, Level::Warn);
}

#[test]
fn every_line_that_is_not_ok_has_a_remedy() {
    let none = Features { classifier: false, tcx: false, ring_buffer: false, xdp: false };
    let failed = Findings {
        conntrack: Finding::Failed("no root".into()),
        ipvs_translates: Finding::Failed("no root".into()),
        deletes_by_filter: Finding::Failed("no root".into()),
        milliseconds: 0,
    };
    let missing = InterfaceStatus { name: "eth9".into(), error: Some("gone".into()), ..Default::default() };
    let mut checks = tried(none, &[]);
    checks.extend(probed(&failed));
    checks.extend(interface(&missing, true, &[]));
    assert_eq!(crate::doctor::worst(&checks), Level::Fail);
    assert!(checks.iter().all(|check| check.level == Level::Ok || check.remedy.is_some()));
    let text = table(&checks, false);
    assert!(text.contains("fail  interface eth9") && text.contains("-> ip -brief link"), "{text}");
    assert!(!text.contains('\u{1b}'));
}

#[test]
fn who_guards_is_told_where_somebody_does() {
    let level = |row, loaded| {
        let ipvs = IpvsRow { guard: row, loaded, ..IpvsRow::default() };
        guard(&ipvs).map(|check| check.level)
    };
    assert_eq!(level(GuardRow::Child, false), None);
    assert_eq!(level(GuardRow::Child, true), Some(Level::Ok));
    assert_eq!(level(GuardRow::External { seen: true }, false), Some(Level::Ok));
    assert_eq!(level(GuardRow::External { seen: false }, false), None);
}

/// Warnings stand by their codes. Those that only count events since the agent began are left out.
#[test]
fn warnings_of_the_agent_stand_beside_the_doctor_s_own() {
    let status = changed(|status| {
        status["dataplane"]["renewed_seconds_ago"] = 2.6.into();
        status["ipvs"]["guard"] = json!({"kind": "external", "seen": false});
        status["log_lines_lost"] = 8.into();
    });
    let checks = agent(Ok(status), None);
    let found: Vec<_> = checks.iter().map(|check| (check.name.as_str(), check.level)).collect();
    assert_eq!(found, [("agent", Level::Ok), ("NF05", Level::Fail), ("NF30", Level::Warn)]);
    let remedy = checks[2].remedy.as_deref().unwrap_or_default();
    assert!(remedy.starts_with("nodefence guard --pin-dir /sys/fs/bpf/nodefence/v3  # "), "{remedy}");
}

/// A user who lacks the rights for a check learns only that, and nothing good or bad.
#[test]
fn without_privilege_nothing_is_guessed() {
    let none = Features { classifier: false, tcx: false, ring_buffer: false, xdp: false };
    let refused = InterfaceStatus {
        name: "eth0".into(),
        ifindex: 2,
        link_layer: Some(LinkLayer::L2),
        error: Some("Operation not permitted".into()),
        ..Default::default()
    };
    let socket =
        ClientError::Unreachable { path: "/run/x".into(), source: ErrorKind::PermissionDenied.into() };
    let mut checks = tried(none, &["CAP_BPF"]);
    let silent = InterfaceStatus { error: None, ..refused.clone() };
    for wanted in [false, true] {
        checks.extend(interface(&refused, wanted, &["CAP_BPF"]));
        checks.extend(interface(&silent, wanted, &["CAP_BPF"]));
    }
    checks.extend(agent(Err(socket), None));
    for check in checks {
        assert!(check.level == Level::Warn && check.found.starts_with("unknown: "), "{check:?}");
        assert_eq!(check.remedy.as_deref(), Some(AS_ROOT));
    }
}

/// Each line that the doctor may print.
#[test]
fn what_the_doctor_says() {
    use std::os::unix::process::ExitStatusExt as _;

    let mut checks = Vec::new();
    let none = Features { classifier: false, tcx: false, ring_buffer: false, xdp: false };
    let all = Features { classifier: true, tcx: true, ring_buffer: true, xdp: true };
    for (features, lacking) in [(none, &[][..]), (all, &[]), (none, &["CAP_BPF"])] {
        checks.extend(tried(features, lacking));
    }
    let conntrack = |syn_ack, far_past, liberal| Finding::Found(Conntrack { syn_ack, far_past, liberal });
    let by_filter = serde_json::from_value(json!({"v4": true, "v6": true})).unwrap();
    for (conntrack, ipvs_translates, deletes_by_filter) in [
        (conntrack(false, false, false), Finding::Found(true), Finding::Found(by_filter)),
        (
            conntrack(true, false, true),
            Finding::Found(false),
            Finding::NotNeeded("conntrack is not loaded".into()),
        ),
        (
            conntrack(true, true, true),
            Finding::NotNeeded("no IPVS".into()),
            Finding::Failed("no root".into()),
        ),
        (
            Finding::NotNeeded("conntrack is not loaded".into()),
            Finding::Failed("no root".into()),
            Finding::Failed("no root".into()),
        ),
        (
            Finding::Failed("no root".into()),
            Finding::Failed("no root".into()),
            Finding::Failed("no root".into()),
        ),
    ] {
        checks.extend(probed(&Findings { conntrack, ipvs_translates, deletes_by_filter, milliseconds: 1 }));
    }
    for judged in [
        json!({"mode": null, "why": "no trace of kube-proxy"}),
        json!({"mode": "ipvs", "why": "kube-proxy says so"}),
    ] {
        checks.push(kube_proxy(&serde_json::from_value(judged).unwrap()));
    }
    let found = crate::proxy::Replacement::by_devices(|name| name == "cilium_host").unwrap();
    checks.push(replacement::check(None));
    for force in [false, true] {
        checks.push(replacement::check(Some(&ReplacementRow::new(found, Mode::Enforce, force))));
    }
    let output = |code, stderr: &str, stdout: &str| {
        let (stdout, stderr) = (stdout.as_bytes().to_vec(), stderr.as_bytes().to_vec());
        Ok(std::process::Output { status: std::process::ExitStatus::from_raw(code), stdout, stderr })
    };
    for listed in [
        Err(ErrorKind::NotFound.into()),
        Err(ErrorKind::PermissionDenied.into()),
        output(256, "Operation not permitted\n", ""),
        output(256, "", ""),
        output(0, "", ""),
        output(0, "", "flowtable a {\n}\n"),
        output(0, "", "flowtable a {\nflags offload\n}\n"),
    ] {
        checks.push(flowtables(nft_listed(listed)));
    }
    let gone =
        InterfaceStatus { name: "eth9".into(), error: Some("it is not there".into()), ..Default::default() };
    let there = InterfaceStatus {
        name: "eth0".into(),
        ifindex: 2,
        link_layer: Some(LinkLayer::L2),
        ..Default::default()
    };
    let busy = InterfaceStatus { error: Some("its qdisc is another's".into()), ..there.clone() };
    let ahead = crate::dataplane::ProgramAhead { id: 7, name: "other".into(), r#where: "TC egress".into() };
    let mut tcx = InterfaceStatus { tc: Some(TcMode::Tcx), programs_ahead: vec![ahead], ..there.clone() };
    tcx.xdp.reason = Some("it is off".into());
    let clsact = InterfaceStatus { tc: Some(TcMode::Clsact), ..there.clone() };
    for (status, wanted, lacking) in [
        (&gone, true, &[][..]),
        (&gone, false, &[]),
        (&busy, true, &[]),
        (&busy, true, &["CAP_BPF"]),
        (&there, true, &["CAP_BPF"]),
        (&there, true, &[]),
        (&tcx, true, &[]),
        (&clsact, true, &[]),
    ] {
        checks.extend(interface(status, wanted, lacking));
    }
    let path = || Path::new("/run/nodefence/agent.sock").to_owned();
    let patience = std::time::Duration::from_secs(5);
    for (error, pid) in [
        (ClientError::Unreachable { path: path(), source: ErrorKind::PermissionDenied.into() }, None),
        (ClientError::Unreachable { path: path(), source: ErrorKind::NotFound.into() }, None),
        (ClientError::Silent { path: path(), patience }, Some(7)),
        (ClientError::Silent { path: path(), patience }, None),
    ] {
        checks.extend(agent(Err(error), pid));
    }
    let of_objects = changed(|status| {
        status["cluster"]["error"] = json!("nodes[0].name is missing");
        status["cluster"]["file"] = serde_json::Value::Null;
        status["ipvs"]["guard"] = json!({"kind": "external", "seen": true});
    });
    let guarded = changed(|status| status["ipvs"]["loaded"] = json!(true));
    for status in [changed(|_| ()), guarded, full(), of_objects] {
        checks.extend(agent(Ok(status), Some(7)));
    }
    checks.push(unknown("interfaces", "netlink does not answer"));
    let print = |report: &DoctorReport, _: Format| table(&report.items, false);
    let few = [("fails", one_of_each_level()), ("is well", Vec::new())];
    let few = few.map(|(what, checks)| (what, DoctorReport::from(checks)));
    let text = golden::sections(&[("all", DoctorReport::from(checks))], &[Format::Table], print)
        + &golden::sections(&few, &[Format::Table, Format::Json, Format::Yaml], print);
    golden::check("doctor", &text);
}

/// At least one check of each level.
fn one_of_each_level() -> Vec<Check> {
    vec![
        Check::ok("TC programs", "work"),
        unknown("interfaces", "netlink does not answer"),
        flowtables(Ok("flowtable a {\nflags offload\n}\n".to_owned())),
        Check::fail("agent", "it does not answer", "systemctl restart nodefence"),
    ]
}
