//! What `kubectl nodefence` prints, compared with golden files.

use std::{collections::BTreeMap, fmt::Write as _};

use clap::{CommandFactory as _, Parser as _};
use serde_json::{Value, json};

use super::{
    agent_rows::AgentRow,
    args::KubectlCli,
    ask::Server,
    error::Error,
    flag_rows::{self, ClusterFlagReport, ClusterFlags, ClusterUnflagReport, NodeFlagRow},
    known::{Known, Unread},
    node_rows::{self, ClusterNodes},
    off_rows::{LeftAgent, Said, Waited, said},
    preflight_rows::{self, Facts, PreflightReport},
    samples::{flag, known, member, now, pause, settings},
    session,
    settings_rows::{self, ClusterSettings},
    status_rows::{self, ClusterStatus},
    would::would,
};
use crate::{
    cli::{args::Format, fault, golden},
    crds::{FlagState, NodeFlagStatus, SettingsMode},
    report::{Document, schema},
};

const THREE: [Format; 3] = [Format::Table, Format::Json, Format::Yaml];
const NAMED: [Format; 4] = [Format::Table, Format::Name, Format::Json, Format::Yaml];

/// The schemas of what is printed.
pub(in crate::cli) fn schemas() -> Vec<(&'static str, Value)> {
    fn one<T: Document>() -> (&'static str, Value) {
        (T::KIND, schema::<T>())
    }
    vec![
        one::<ClusterFlagReport>(),
        one::<ClusterUnflagReport>(),
        one::<ClusterFlags>(),
        one::<ClusterNodes>(),
        one::<ClusterStatus>(),
        one::<ClusterSettings>(),
        one::<PreflightReport>(),
    ]
}

/// Three nodes with flags in several states, and settings with everything.
fn full() -> Known {
    let mut judged = flag("node-b", "alice");
    let message = "3 of 3 nodes (zone z1) have claims, and the limit allows 1".to_owned();
    judged.status = Some(NodeFlagStatus { state: FlagState::Withheld, message, observed_generation: 1 });
    judged.spec.force = true;
    let mut bare = flag("node-c", "bob");
    bare.spec.by = None;
    bare.spec.reason = String::new();
    let mut over = flag("node-c", "carol");
    over.metadata.name = Some("node-c-aaaaa".to_owned());
    over.spec.until = now();
    let mut gone = flag("node-x", "carol");
    gone.spec.reason = "disk \u{1b}[2J".to_owned();
    let members = [
        member("node-a", None, None),
        member("node-b", Some("z1"), Some("front")),
        member("node-c", Some("z1"), None),
    ];
    let mut known = known(members, [judged, bare, over, gone]);
    known.settings.iter_mut().for_each(|settings| {
        settings.pauses = vec![pause("dave")];
        settings.opt_outs.nodes = vec!["node-a".to_owned()];
    });
    known
}

fn rows(known: &Known) -> Vec<NodeFlagRow> {
    known.flags.iter().map(|flag| NodeFlagRow::new(known, flag)).collect()
}

#[test]
fn help_of_all_verbs() {
    let mut command = KubectlCli::command();
    command.build();
    let mut text = command.render_long_help().to_string();
    for verb in command.get_subcommands_mut().filter(|verb| verb.get_name() != "help") {
        let _ = write!(text, "\n### {}\n{}", verb.get_name().to_owned(), verb.render_long_help());
    }
    golden::check("kubectl-help", &text);
}

#[test]
fn values_that_are_refused() {
    let mut text = String::new();
    for words in [
        &["flag", "b", "--reason", "r", "--for", "soon"][..],
        &["flag", "b", "--reason", "r", "--for", "0s"],
        &["flag", "b", "--reason", "r", "--until", "8:00"],
        &["status", "-o", "name"],
        &["mode", "off", "--wait=1h"],
        &["mode", "observe", "--wait"],
    ] {
        let parsed = KubectlCli::try_parse_from([&["kubectl-nodefence"], words].concat());
        let error = parsed.and_then(KubectlCli::checked).expect_err("refused");
        let _ = write!(text, "### kubectl nodefence {}\n{error}\n", words.join(" "));
    }
    golden::check("kubectl-usage", &text);
}

#[test]
fn errors() {
    let objects = || "nodeflags.nodefence.io".to_owned();
    let node = || "node-b".to_owned();
    let mut last = known([member("node-a", None, None), member("node-b", None, None)], []);
    last.flags = vec![flag("node-a", "alice")];
    let only = known([member("node-b", None, None)], []);
    let why = [would(&last, "node-b", false, &[]).unwise, would(&only, "node-b", false, &[]).unwise].concat();
    let time = || format!("{:.0}", now());
    let mut text = String::new();
    for error in [
        Error::Forbidden {
            verb: "list",
            resource: objects(),
            message: "User \"bob\" cannot list resource \"nodeflags\"".to_owned(),
            role: "the ClusterRole nodefence-view",
        },
        Error::NoKind { resource: objects() },
        Error::Invalid { verb: "create", resource: objects(), message: "`by` is another's name".to_owned() },
        Error::Request { verb: "list", resource: objects(), source: "connection refused".into() },
        Error::NoDate,
        Error::NoAgents("nodefence".to_owned()),
        Error::UnknownNode(node()),
        Error::UnknownFlag("node-b-7xk2p".to_owned()),
        Error::Unwise { node: node(), why },
        Error::TooLong,
        Error::Past { until: time(), now: time() },
        Error::UnreadSettings("until: `never`".to_owned()),
        Error::Forced { node: node(), flag: "node-b-7xk2p".to_owned() },
        Error::Exists,
        Error::Busy,
    ] {
        let exit = error.exit();
        let line = fault::text(Format::Table, exit, &error.into());
        let _ = writeln!(text, "{line} (exit code {})", exit as u8);
    }
    let no_file = anyhow::anyhow!("no such file").context(session::NO_CONFIGURATION);
    let _ = writeln!(text, "{}", fault::text(Format::Table, crate::cli::Exit::Error, &no_file));
    let _ = writeln!(text, "{}", session::NO_PROXY);
    let _ = writeln!(text, "{}", super::WITHOUT_SERVER);
    for role in super::ask::ROLES {
        let _ = writeln!(text, "{role}");
    }
    golden::check("kubectl-errors", &text);
}

/// A flag that cannot be read.
fn unread() -> Unread {
    let why = "until: `never`".to_owned();
    Unread { kind: "NodeFlag", name: "node-c-late".to_owned(), node: Some("node-c".to_owned()), why }
}

#[test]
fn flag_as_it_is_printed() {
    let mut known = full();
    known.settings.iter_mut().for_each(|settings| settings.limit = "1/100".to_owned());
    known.flags[1].status = None;
    let rows = rows(&known);
    let (_, agents) = known.does();
    let mut warnings = would(&known, "node-b", true, &[]).warnings;
    warnings.extend(would(&known, "node-a", true, &[]).warnings);
    warnings.extend(would(&known, "node-new", true, &[]).warnings);
    let settings = Unread { kind: "NodefenceSettings", name: "default".to_owned(), ..unread() };
    warnings.push(settings.text());
    warnings.push(super::flag::not_judged());
    warnings.push(super::flag::stays("node-b-aaaaa", &Error::Busy));
    let report = ClusterFlagReport {
        flag: rows[0].clone(),
        dry_run: true,
        agents: agents.clone(),
        replaced: vec!["node-b-aaaaa".to_owned()],
        warnings,
    };
    let flag = NodeFlagRow { state: FlagState::Pending, by: None, ..rows[0].clone() };
    let least =
        ClusterFlagReport { flag, dry_run: false, agents, replaced: Vec::new(), warnings: Vec::new() };
    let samples = [("full", report), ("least", least)];
    golden::report("kubectl-flag", &samples, &NAMED, flag_rows::flagged);
}

#[test]
fn flags_and_unflag_as_they_are_printed() {
    let items = rows(&full());
    let list = ClusterFlags { items: items.clone(), unread: vec![unread().text()] };
    let samples = [("full", list), ("none", ClusterFlags { items: Vec::new(), unread: Vec::new() })];
    golden::report("kubectl-flags", &samples, &NAMED, flag_rows::flags);
    let report = ClusterUnflagReport {
        items,
        unread: vec!["node-c-late".to_owned()],
        not_flagged: Some("node-a".to_owned()),
    };
    golden::report("kubectl-unflag", &[("full", report)], &NAMED, flag_rows::unflagged);
}

/// What agents say: one answers, one does not, and one is missing.
fn agents() -> BTreeMap<String, AgentRow> {
    let status = json!({
        "version": "0.1.0", "mode": "observe", "state": "degraded", "why": "one device is missing",
        "cluster": { "age_seconds": 75, "conflicts": 2 }
    });
    let older = json!({ "version": "0.0.9" });
    BTreeMap::from([
        ("node-a".to_owned(), AgentRow::new("agent-1".to_owned(), Ok(status))),
        ("node-b".to_owned(), AgentRow::new("agent-2".to_owned(), Err(super::agents::late()))),
        ("node-d".to_owned(), AgentRow::new("agent-3".to_owned(), Ok(older))),
    ])
}

#[test]
fn nodes_as_they_are_printed() {
    let known = full();
    let names = ["node-b", "node-c", "node-y"].map(str::to_owned);
    let mut nodes = ClusterNodes::new(&known, &names, false, Ok(agents()));
    let not_asked = ClusterNodes::new(&known, &[], true, Err("you may not list pods".to_owned()));
    let all = ClusterNodes::new(&known, &[], false, Ok(agents()));
    let flagged = ClusterNodes::new(&known, &[], true, Ok(agents()));
    nodes.items.insert(0, all.items[0].clone());
    nodes.agents = flagged.agents.clone();
    nodes.agents_unknown = Some("you may not list pods".to_owned());
    nodes.unread = vec![unread().text()];
    let mut notes = node_rows::notes(&nodes);
    notes.extend([super::agents::may_not(), super::agents::no_status()]);
    let wide = [Format::Table, Format::Wide, Format::Name, Format::Json, Format::Yaml];
    let samples = [("full", nodes), ("not asked", not_asked), ("flagged", flagged)];
    golden::report("kubectl-nodes", &samples, &wide, node_rows::nodes);
    golden::check("kubectl-notes", &(notes.join("\n") + "\n"));
}

#[test]
fn status_as_it_is_printed() {
    let mut known = full();
    known.members.insert("node-d".to_owned(), member("node-d", None, None));
    known.settings.iter_mut().for_each(|settings| settings.pauses.clear());
    let server = Server { now: now(), version: Some("v1.36.3".to_owned()) };
    let nodes = ClusterNodes::new(&known, &[], false, Ok(agents()));
    let mut full =
        ClusterStatus::new(&server, &known, &nodes, Err("you may not list daemonsets.apps".to_owned()));
    full.pauses = vec![pause("dave")];
    full.settings.iter_mut().for_each(|settings| settings.pauses = vec![pause("dave")]);
    full.agents.iter_mut().for_each(|agents| agents.wanted = Some(5));
    full.agents_unknown = Some("you may not list pods".to_owned());
    let nobody = Known::new(now(), Vec::new(), Vec::new(), None);
    let server = Server { version: None, ..server };
    let nodes = ClusterNodes::new(&nobody, &[], false, Err("you may not list pods".to_owned()));
    let nothing = ClusterStatus::new(&server, &nobody, &nodes, Ok(0));
    let samples = [("full", full), ("nothing", nothing)];
    golden::report("kubectl-status", &samples, &THREE, |status, _| status_rows::text(status));
}

#[test]
fn settings_as_they_are_printed() {
    let mut paused = settings();
    paused.spec.pauses = vec![pause("dave")];
    paused.spec.opt_outs.nodes = vec!["node-a".to_owned()];
    let of_mode = |mode| {
        let mut settings = settings();
        settings.spec.mode = mode;
        ClusterSettings::new(now(), Some(settings), Vec::new())
    };
    let left =
        |node: &str, pod: &str, why: String| LeftAgent { node: node.to_owned(), pod: pod.to_owned(), why };
    let hung = left("node-b", "agent-2", super::agents::late());
    let running = left("node-c", "agent-3", "the agent is not off".to_owned());
    let unheard = left("node-d", "agent-4", super::off_wait::UNHEARD.to_owned());
    let off = |node: &str, pod: &str, problems: &[&str]| {
        let status = json!({ "state": "off", "taken_back": false, "problems": problems });
        let Said::NotYet(why) = said(Ok(status)) else { panic!("all is taken back") };
        left(node, pod, why)
    };
    let slow = off("node-e", "agent-5", &[]);
    let stuck = off("node-f", "agent-6", &["IPVS refuses"]);
    let mut full = ClusterSettings::new(now(), Some(paused), vec![pause("alice")]);
    full.waited = Some(Waited {
        off: 3,
        left: vec![hung, running, unheard, slow, stuck],
        without_pod: vec!["node-g".to_owned()],
        members_unknown: Some("you may not list nodemembers.nodefence.io".to_owned()),
    });
    let mut waited = of_mode(SettingsMode::Off);
    waited.waited = Some(Waited { off: 3, ..Waited::default() });
    let mut no_agent = of_mode(SettingsMode::Off);
    no_agent.waited = Some(Waited::default());
    let samples = [
        ("full", full),
        ("none", ClusterSettings::new(now(), None, Vec::new())),
        ("waited", waited),
        ("no agent", no_agent),
        ("off", of_mode(SettingsMode::Off)),
        ("observe", of_mode(SettingsMode::Observe)),
        ("enforce", of_mode(SettingsMode::Enforce)),
    ];
    golden::report("kubectl-settings", &samples, &THREE, |settings, _| settings_rows::text(settings));
}

#[test]
fn preflight_as_it_is_printed() {
    let node = |name: &str, kernel: &str, arch: &str, os: &str| {
        let info = json!({
            "kernelVersion": kernel, "architecture": arch, "operatingSystem": os, "osImage": "Debian GNU/Linux 12",
            "bootID": "", "containerRuntimeVersion": "", "kubeProxyVersion": "", "kubeletVersion": "",
            "machineID": "", "systemUUID": "",
        });
        serde_json::from_value(json!({ "metadata": { "name": name }, "status": { "nodeInfo": info } }))
            .unwrap()
    };
    let set = |name: &str| {
        let spec = json!({ "selector": {}, "template": { "spec": { "containers": [] } } });
        serde_json::from_value(json!({ "metadata": { "name": name }, "spec": spec })).unwrap()
    };
    let labels = json!({ "metadata": { "labels": { "pod-security.kubernetes.io/enforce": "baseline" } } });
    let bare = || serde_json::from_value(json!({ "metadata": { "name": "bare" } })).unwrap();
    let nodes = vec![
        node("node-a", "6.1.0-18-amd64", "amd64", "linux"),
        node("node-b", "4.18.0-553.el8.riscv64", "riscv64", "linux"),
        node("node-c", "new", "arm64", "linux"),
        node("node-w", "10.0.20348", "amd64", "windows"),
        bare(),
    ];
    let proxy = json!({ "data": { "config.conf": "mode: kernelspace" } });
    let full = Facts {
        server: Some("v1.29.1".to_owned()),
        nodes,
        daemon_sets: Ok(vec![set("antrea-agent"), set("ovnkube-node")]),
        kube_proxy: Ok(Some(serde_json::from_value(proxy).unwrap())),
        cilium: None,
        namespace: "nodefence".to_owned(),
        own: Ok(Some(serde_json::from_value(labels).unwrap())),
    };
    let names = ["node-a", "node-b", "node-c", "node-w", "bare", "node-y"].map(str::to_owned);
    let forbidden = "you may not list daemonsets.apps";
    let unread = Facts {
        server: None,
        nodes: Vec::new(),
        daemon_sets: Err(forbidden.to_owned()),
        kube_proxy: Err(forbidden.to_owned()),
        cilium: None,
        namespace: "nodefence".to_owned(),
        own: Err(forbidden.to_owned()),
    };
    let unlabelled = Facts {
        server: Some("v1.36.3".to_owned()),
        nodes: Vec::new(),
        daemon_sets: Ok(Vec::new()),
        kube_proxy: Ok(Some(Default::default())),
        cilium: None,
        namespace: "nodefence".to_owned(),
        own: Ok(Some(Default::default())),
    };
    let fresh = Facts {
        server: Some("v1.36.3".to_owned()),
        nodes: vec![node("node-a", "6.1.0-18-amd64", "amd64", "linux")],
        daemon_sets: Ok(vec![set("kube-flannel-ds")]),
        kube_proxy: Ok(None),
        cilium: None,
        namespace: "nodefence".to_owned(),
        own: Ok(None),
    };
    let fresh_report = PreflightReport::new(&fresh, &[]);
    let no_network = Facts { daemon_sets: Ok(Vec::new()), ..fresh };
    let samples = [
        ("full", PreflightReport::new(&full, &names)),
        ("unread", PreflightReport::new(&unread, &[])),
        ("unlabelled", PreflightReport::new(&unlabelled, &[])),
        ("fresh", fresh_report),
        ("no network", PreflightReport::new(&no_network, &[])),
    ];
    golden::report("kubectl-preflight", &samples, &THREE, |report, _| preflight_rows::text(report));
}
