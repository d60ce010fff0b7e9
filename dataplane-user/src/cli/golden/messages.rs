//! The texts of verbs besides their reports: refusals, warnings and errors.

use std::{io, os::unix::fs::PermissionsExt as _, path::Path, time::Duration};

use clap::Parser as _;
use serde_json::json;

use super::{FORMATS, check, has_all, section, sections};
use crate::{
    agent::{LockError, Logging, own_folder},
    cli::{
        args::{Cli, Format},
        claims, environment,
        exit::Exit,
        fault, flag, nodes, off, output, tables, verbs,
    },
    cluster::{Error, Problem},
    dataplane::DetachReport,
    enforce::{Auto, ChangedBy},
    plan::Mode,
    proxy::Replacement,
    report::{
        Client, ClientError, Detached, ErrorKind, Failure, ReplacementRow, Reply, Request, ScopeRow,
        WithheldRow,
    },
};

/// The error as a command prints it at its end.
fn said(error: impl Into<anyhow::Error>) -> String {
    let error: anyhow::Error = error.into();
    fault::text(Format::Table, Exit::of(&error), &error) + "\n"
}

fn broken() -> io::Error {
    io::Error::from(io::ErrorKind::PermissionDenied)
}

#[test]
fn a_value_that_is_refused() {
    let mut text = String::new();
    for args in [
        &["flag", "b", "--for", "soon"][..],
        &["flag", "b", "--for", "11y"],
        &["flag", "b", "--for", "0s"],
        &["flag", "b", "--reason", &"a".repeat(1_001)],
        &["flows", "--backend", "b"],
        &["flows", "--protocol", "icmp"],
        &["flows", "--limit", "0"],
        &["flows", "-o", "name"],
        &["repair"],
        &["repair", "--kind", "all"],
        &["mode", "maybe"],
        &["doctor", "NF99"],
        &["agent"],
        &["agent", "--cluster-file", "x", "--fault-after", "soon"],
        &["agent", "--cluster-file", "x", "--fault-after", "25h"],
        &["agent", "--cluster-file", "x", "--max-view-age", "soon"],
        &["agent", "--cluster-file", "x", "--max-view-age", "0s"],
        &["agent", "--cluster-file", "x", "--auto-limit", "3"],
        &["agent", "--cluster-file", "x", "--auto-limit", "0/3"],
        &["agent", "--cluster-file", "x", "--auto-limit", "4/3"],
        &["agent", "--cluster-file", "x", "--exclude-cidr", "10.0.0.0"],
        &["agent", "--cluster-file", "x", "--interface", "eth0,"],
        &["controller", "--identity", ""],
    ] {
        let parsed = Cli::try_parse_from([&["nodefence"], args].concat()).and_then(Cli::checked);
        let error = parsed.expect_err("refused").to_string().replace(&"a".repeat(1_001), "aaa...");
        text += &format!("### nodefence {}\n{error}\n", args.join(" ").replace(&"a".repeat(1_001), "aaa..."));
    }
    text += &environment::of_variable("NODEFENCE_FLAG_FOR");
    check("usage", &(text + "\n"));
}

#[test]
fn why_there_is_no_answer() {
    let path = || Path::new("/run/nodefence/agent.sock").to_owned();
    let mut text = String::new();
    for error in [
        ClientError::Unreachable { path: path(), source: io::ErrorKind::NotFound.into() },
        ClientError::Unreachable { path: path(), source: broken() },
        ClientError::Silent { path: path(), patience: Duration::from_secs(15) },
        Failure::new(ErrorKind::Refused, "it would be unwise").into(),
        Reply::Ok(json!("?")).into_value::<u64>().expect_err("no number").into(),
    ] {
        text += &said(error);
    }
    let dir = tempfile::tempdir().expect("folder");
    let socket = dir.path().join("agent.sock");
    let listener = std::os::unix::net::UnixListener::bind(&socket).expect("socket");
    let rude = std::thread::spawn(move || {
        let (stream, _) = listener.accept().expect("client");
        io::BufRead::read_line(&mut io::BufReader::new(stream), &mut String::new()).expect("request");
    });
    let error = Client::connect(&socket).and_then(|mut client| client.ask::<u64>(&Request::Nodes));
    text += &said(error.expect_err("it hung up")).replace(&*dir.path().to_string_lossy(), "DIR");
    rude.join().expect("no panic");
    let gone = ClientError::Unreachable { path: path(), source: io::ErrorKind::NotFound.into() };
    text += &format!("{}\n", nodes::away(gone));
    check("no-answer", &text);
}

#[test]
fn why_a_command_failed() {
    let run = |args: &[&str]| verbs::run(Cli::try_parse_from(args).expect("valid"), None).expect_err("fails");
    let mut text = String::new();
    let dir = tempfile::tempdir().expect("folder");
    let at = |name: &str| dir.path().join(name).to_string_lossy().into_owned();
    std::fs::write(at("file"), "").expect("file");
    std::fs::create_dir(at("nodefence.1")).expect("folder");
    text += &said(run(&["nodefence", "man", "--dir", &at("file/man")]));
    text += &said(run(&["nodefence", "man", "--dir", &at("")]));
    text = text.replace(&*dir.path().to_string_lossy(), "DIR");
    text += &said(Logging::first_filter(Some("debgu".as_ref())).expect_err("no filter"));
    let guarded = verbs::is_there(Path::new("/proc/nodefence"));
    text += &said(guarded.expect_err("no folder"));
    let contexts = [output::NOT_TAKEN, off::SILENT, off::STILL_STARTS];
    for context in verbs::CONTEXTS.into_iter().chain(contexts) {
        text += &said(anyhow::Error::new(broken()).context(context));
    }
    for error in [
        LockError::Busy { path: "/run/nodefence/agent.lock".into(), pid: Some(7), advice: verbs::END_IT },
        LockError::Busy { path: "/run/nodefence/agent.lock".into(), pid: None, advice: verbs::END_IT },
        LockError::Busy { path: "/run/nodefence/agent.lock".into(), pid: Some(7), advice: off::END_IT },
        LockError::Folder { path: "/run/nodefence".into(), what: "make run folder", source: broken() },
        LockError::Folder {
            path: "/run/nodefence".into(),
            what: "make run folder",
            source: io::ErrorKind::StorageFull.into(),
        },
    ] {
        text += &said(error);
    }
    for what in ["look at run folder", "set the mode of run folder"] {
        text += &said(LockError::Folder { path: "/run/nodefence".into(), what, source: broken() });
    }
    for what in ["open", "write the process id into", "lock"] {
        text += &said(LockError::Folder { path: "/run/nodefence/agent.lock".into(), what, source: broken() });
    }
    let theirs = io::Error::other("it belongs to user 7");
    text +=
        &said(LockError::Folder { path: "/run/nodefence".into(), what: "use run folder", source: theirs });
    std::fs::set_permissions(dir.path(), std::fs::Permissions::from_mode(0o755)).expect("mode");
    text += &said(own_folder(dir.path()).expect_err("shared")).replace(&*dir.path().to_string_lossy(), "DIR");
    check("failures", &text);
}

#[test]
fn why_a_cluster_file_is_not_taken() {
    let problems = [
        Problem::Read(broken()),
        Problem::NotAFile("a folder"),
        Problem::TooLarge(1 << 30),
        Problem::Empty,
        Problem::Truncated,
        Problem::Unsettled,
        Problem::NotUtf8(7),
        Problem::NoList,
        Problem::NoServices,
        Problem::NoNodes,
        Problem::Invalid("nodes[1].address: it stands twice at line 5, column 14".to_owned()),
    ];
    let told = problems.map(|problem| said(Error { path: "/etc/nodefence/cluster.yaml".into(), problem }));
    check("cluster-file", &told.concat());
}

#[test]
fn an_error_is_a_line_or_an_object() {
    let path = Path::new("/run/nodefence/agent.sock").to_owned();
    let refused = |kind, why: &str| ClientError::from(Failure::new(kind, why));
    let held =
        LockError::Busy { path: "/run/nodefence/agent.lock".into(), pid: Some(7), advice: verbs::END_IT };
    let errors: [(&str, anyhow::Error); 5] = [
        (
            "failed",
            anyhow::Error::new(broken()).context("cannot take signals").context("the guard does not begin"),
        ),
        ("unreachable", ClientError::Unreachable { path, source: io::ErrorKind::NotFound.into() }.into()),
        ("refused", refused(ErrorKind::Refused, "it would be unwise").into()),
        ("busy", held.into()),
        ("not found", refused(ErrorKind::NotFound, "there is no node `node-z`").into()),
    ];
    let mut text = String::new();
    for (what, error) in &errors {
        for format in FORMATS {
            text += &section(what, format, &(fault::text(format, Exit::of(error), error) + "\n"));
        }
    }
    let names = ["node-y".to_owned(), "node-z".to_owned()];
    for format in FORMATS {
        let said = fault::not_found_text(format, &names).expect("two names");
        text += &section("no such nodes", format, &(said + "\n"));
    }
    let wrong = Cli::try_parse_from(["nodefence", "flag", "b", "--for", "soon"]).expect_err("refused");
    for format in [Format::Json, Format::Yaml] {
        let said = fault::usage_object(format, &wrong, Some("NODEFENCE_FLAG_FOR")).expect("an object");
        text += &section("usage", format, &(said + "\n"));
    }
    assert_eq!(fault::usage_object(Format::Table, &wrong, None), None);
    check("errors", &text);
}

#[test]
fn a_detach_says_what_it_took_away() {
    let pin_dir = Path::new("/sys/fs/bpf/nodefence/v3");
    let nothing = |bpffs| tables::nothing_pinned(&DetachReport::default(), pin_dir, bpffs).expect("nothing");
    let full = Detached {
        removed: DetachReport { links: 1, filters: 2, qdiscs: 3, maps: 4 },
        restored: 5,
        flags_file: Some("/run/nodefence/flags.json".into()),
        off_file: Some("/run/nodefence/off.json".into()),
        ledgers_left: vec!["/run/nodefence/ledger.bad1".into()],
        warnings: vec![nothing(true)],
    };
    has_all("detach", &full, &[]);
    let least = Detached {
        removed: DetachReport::default(),
        restored: 0,
        flags_file: None,
        off_file: None,
        ledgers_left: Vec::new(),
        warnings: Vec::new(),
    };
    let mut text =
        sections(&[("full", full), ("least", least)], &FORMATS, |detached, _| tables::detach(detached));
    for bpffs in [true, false] {
        text += &format!("warning: {}\n", nothing(bpffs));
    }
    check("detach", &text);
}

#[test]
fn what_is_claimed_and_withheld() {
    let at = |second| jiff::Timestamp::from_second(second).expect("time");
    let row = |counted, allowed| WithheldRow {
        scope: ScopeRow::Zone("z1".to_owned()),
        since: at(0),
        until: at(300),
        counted,
        allowed,
    };
    let none = std::collections::BTreeMap::new();
    let flag = json!({
        "origin": "cli", "set_by": "nodefence flag", "by": "root", "reason": "", "since": "2026-01-01T00:00:00Z",
        "remaining_seconds": null, "until": null
    });
    let flag = serde_json::from_value(flag).expect("flag");
    let flags = std::collections::BTreeMap::from([("node-z".into(), flag)]);
    let claim = json!({
        "source": "hung", "cause": "hung", "by": "", "reason": "", "evidence": null, "since": "2026-01-01T00:00:00Z",
        "until": null, "standing": "unknown", "withheld_by": []
    });
    let claims = std::collections::BTreeMap::from([(
        "node-y".into(),
        vec![serde_json::from_value(claim).expect("claim")],
    )]);
    let mut lines =
        vec![claims::automatic_text(Auto::Observe, "1/3"), row(3, 2).to_string(), row(0, 0).to_string()];
    let held = claims::held_lines(&[], &flags, &claims, "the cluster file");
    let nobody = claims::held_lines(&[], &none, &std::collections::BTreeMap::new(), "the cluster file");
    lines.extend(held.into_iter().chain(nobody).map(|(name, text)| format!("{name}: {text}")));
    let challenged = json!({
        "is_complete": true, "listed": 9, "challenged": 3, "closed": 2, "skipped_closed": 1, "skipped_not_tcp": 2, "skipped_opening_or_ended": 1,
        "unreachable": 1, "liberal": 1, "seconds": 0.25, "problem": null
    });
    lines.push(flag::challenged_text(&serde_json::from_value(challenged).expect("round")));
    let by = ChangedBy { by: "root".to_owned(), at: at(0) };
    let set = crate::report::Adjusted { started: Mode::Enforce, set: Mode::Observe, changed: Some(by) };
    lines.extend(crate::cli::adjust::changed(&set));
    check("claims", &(lines.join("\n") + "\n"));
}

#[test]
fn what_forwards_in_kube_proxy_s_place() {
    let found = Replacement::by_devices(|name| name == "cilium_host").expect("Cilium");
    let rows = [(Mode::Enforce, false), (Mode::Enforce, true), (Mode::Observe, false)];
    let rows = rows.map(|(mode, force)| ReplacementRow::new(found, mode, force));
    check("replacement", &rows.map(|row| format!("{}\n{}\n", row.why, row.remedy)).concat());
}
