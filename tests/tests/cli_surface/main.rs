//! The command line: help, exit codes, formats, variables. `on_agent` has what it prints about a real agent.

mod documents;
mod on_agent;

use std::{
    os::unix::process::CommandExt as _,
    path::Path,
    process::{Output, Stdio},
};

use anyhow::{Context as _, Result, ensure};
use nodefence_tests::{Netns, bin, bin_path, nodefence_command};

const VERBS: [&str; 22] = [
    "agent",
    "flag",
    "unflag",
    "nodes",
    "backends",
    "flows",
    "counters",
    "status",
    "audit",
    "repair",
    "mode",
    "log-level",
    "off",
    "on",
    "detach",
    "guard",
    "doctor",
    "crds",
    "controller",
    "completions",
    "man",
    "help",
];

fn run(args: &[&str]) -> Result<Output> {
    Ok(nodefence_command()?.args(args).output()?)
}

fn text(output: &[u8]) -> String {
    String::from_utf8_lossy(output).into_owned()
}

#[test]
fn help_teaches() -> Result<()> {
    let output = run(&["--help"])?;
    let help = text(&output.stdout);
    ensure!(output.status.success());
    for verb in VERBS {
        ensure!(help.contains(&format!("\n  {verb} ")), "no {verb} in:\n{help}");
    }
    ensure!(help.contains("Examples:") && help.contains("nodefence flag node-b --for 10m"), "{help}");
    ensure!(help.contains("Exit codes:") && help.contains("  4  refused"), "{help}");
    ensure!(help.contains("[env: NODEFENCE_RUN_DIR]"), "{help}");
    let agent = text(&run(&["agent", "--help"])?.stdout);
    for heading in ["Cluster", "What is cut", "Devices", "kube-proxy", "Limits", "Process and log"] {
        ensure!(agent.contains(&format!("\n{heading}:\n")), "no {heading} in:\n{agent}");
    }
    for verb in VERBS.iter().filter(|verb| **verb != "help") {
        ensure!(run(&[verb, "--help"])?.status.success(), "{verb} --help");
    }
    Ok(())
}

/// `docs/cli.md` has each verb and option that the program's `--help` has, and `-h` prints no more than `--help`. (A unit test writes the page.)
#[test]
fn the_manual_is_complete() -> Result<()> {
    let docs = include_str!("../../../docs/cli.md");
    let words = |text: &str| text.split_whitespace().collect::<Vec<_>>().join(" ");
    let page = words(docs);
    for verb in VERBS.iter().filter(|verb| **verb != "help") {
        ensure!(docs.contains(&format!("## `nodefence {verb}`\n")), "docs/cli.md has no section on {verb}");
        let long = text(&run(&[verb, "--help"])?.stdout);
        for option in words(&long).split(' ').filter(|word| word.starts_with("--") && word.len() > 2) {
            let option = option.trim_end_matches(|letter: char| !letter.is_alphanumeric());
            ensure!(page.contains(option), "docs/cli.md says nothing of {option} ({verb})");
        }
        let short = text(&run(&[verb, "-h"])?.stdout);
        ensure!(short.len() <= long.len() && short.contains("Example"), "{verb} -h: {short}");
    }
    let (_, codes) = docs.split_once("Exit codes:").context("no exit codes")?;
    for code in 0..=7 {
        ensure!(codes.contains(&format!("\n{code}  ")), "docs/cli.md lacks exit code {code}");
    }
    Ok(())
}

#[test]
fn a_wrong_command_line_is_2() -> Result<()> {
    for args in [
        &["dance"][..],
        &[],
        &["flag"],
        &["flag", "node-b", "--for", "soon"],
        &["repair"],
        &["repair", "--kind", "everything"],
        &["agent"],
        &["nodes", "-o", "xml"],
        &["backends", "-o", "name"],
        &["flows", "--backend", "b"],
        &["flows", "--limit", "0"],
        &["agent", "--cluster-file", "x", "--interface", "y", "--mode", "maybe"],
        &["agent", "--cluster-file", "x", "--interface", "y", "--auto", "maybe"],
        &["mode", "maybe"],
        &["agent", "--cluster-file", "x", "--interface", "y", "--auto-limit", "0/3"],
        &["agent", "--cluster-file", "x", "--interface", "y", "--max-backends", "0"],
        &["agent", "--cluster-file", "x", "--interface", "y", "--fault-after", "0s"],
        &["agent", "--cluster-file", "x", "--interface", "y", "--exclude-cidr", "10.0.0.0"],
        &["agent", "--cluster-file", "x", "--interface", "y", "--repair", "all"],
        &["agent", "--cluster-file", "x", "--interface", "y", "--guard", "nobody"],
    ] {
        let output = run(args)?;
        ensure!(output.status.code() == Some(2), "{args:?}: {output:?}");
        ensure!(!output.stderr.is_empty());
    }
    Ok(())
}

/// As in a unit file or a pod: the command line takes precedence over a variable, and an empty variable counts as none.
#[test]
fn options_are_variables_too() -> Result<()> {
    let with = |variables: &[(&str, &str)], args: &[&str]| -> Result<Output> {
        Ok(nodefence_command()?.args(args).envs(variables.iter().copied()).output()?)
    };
    let socket = ("NODEFENCE_SOCKET", "/nonexistent/by-variable.sock");
    let told = |output: &Output| text(&output.stderr);
    let output = with(&[socket], &["nodes"])?;
    ensure!(output.status.code() == Some(3) && told(&output).contains("by-variable.sock"), "{output:?}");
    let output = with(&[socket], &["nodes", "--socket", "/nonexistent/typed.sock"])?;
    ensure!(told(&output).contains("no agent answers at /nonexistent/typed.sock"), "{output:?}");
    let output = with(&[("NODEFENCE_SOCKET", ""), ("NODEFENCE_RUN_DIR", "/nonexistent/run")], &["nodes"])?;
    ensure!(told(&output).contains("no agent answers at /nonexistent/run/agent.sock"), "{output:?}");
    // A variable may have a list, whose items are separated by commas.
    let kinds = ("NODEFENCE_REPAIR_KIND", "stale-udp,stray-weight");
    ensure!(with(&[socket, kinds], &["repair"])?.status.code() == Some(3));
    // An error names the variable that has the wrong value. It names none if the value was typed.
    let blamed = "that of the environment's variable ";
    for (name, value, args) in [
        ("NODEFENCE_REPAIR_KIND", "stale-udp,everything", &["repair"][..]),
        ("NODEFENCE_MODE", "maybe", &["agent", "--cluster-file", "x"]),
        ("NODEFENCE_TAKE_OVER", "maybe", &["agent", "--cluster-file", "x"]),
        ("NODEFENCE_OUTPUT", "xml", &["nodes"]),
        ("NODEFENCE_FLAG_FOR", "soon", &["flag", "node-b"]),
    ] {
        let output = with(&[(name, value)], args)?;
        let said = told(&output);
        ensure!(output.status.code() == Some(2) && said.contains(&format!("{blamed}{name}.")), "{said}");
    }
    let output = with(&[("NODEFENCE_OUTPUT", "json")], &["nodes", "-oxml"])?;
    ensure!(output.status.code() == Some(2) && !told(&output).contains(blamed), "{output:?}");
    for verb in [&["agent", "--cluster-file", "x"][..], &["guard"]] {
        let output = with(&[("RUST_LOG", "loud")], verb)?;
        let said = told(&output);
        ensure!(
            output.status.code() == Some(2) && said.contains("RUST_LOG: log level `loud`: expected "),
            "{said}"
        );
    }
    // The agent's own say nothing to the verbs beside it in a pod.
    let output =
        with(&[socket, ("NODEFENCE_NODE", "node-a"), ("NODEFENCE_FORCE", "maybe")], &["flag", "node-b"])?;
    ensure!(output.status.code() == Some(3), "{output:?}");
    Ok(())
}

#[test]
fn without_an_agent_it_is_3() -> Result<()> {
    for verb in ["nodes", "backends", "flows", "counters", "status", "audit", "mode", "log-level"] {
        let output = run(&[verb, "--socket", "/nonexistent/agent.sock"])?;
        let said = text(&output.stderr);
        ensure!(output.status.code() == Some(3), "{verb}: {output:?}");
        ensure!(said.contains("no agent answers at /nonexistent/agent.sock"), "{said}");
        ensure!(said.contains("--socket") && said.lines().count() == 1, "{said}");
    }
    Ok(())
}

#[test]
fn a_guard_is_told_what_is_wrong_with_its_run_folder() -> Result<()> {
    let dir = tempfile::TempDir::with_prefix("nodefence-test-")?;
    let guard = |folder: &str, code: i32, expected: &str| -> Result<()> {
        let output = run(&["guard", "--run-dir", dir.path().join(folder).to_str().context("path")?])?;
        let said = text(&output.stderr);
        ensure!(output.status.code() == Some(code) && output.stdout.is_empty(), "{output:?}");
        ensure!(said.contains(folder) && said.contains(expected), "{said}");
        Ok(())
    };
    guard("none", 1, "there is none; expected the agent's --run-dir")?;
    ensure!(!dir.path().join("none").exists(), "the guard has made the run folder");
    let theirs = dir.path().join("theirs");
    std::fs::create_dir(&theirs)?;
    std::os::unix::fs::chown(&theirs, Some(65_534), None)?;
    guard("theirs", 1, "it belongs to user 65534")?;
    let shared = dir.path().join("shared");
    std::fs::create_dir(&shared)?;
    std::fs::write(shared.join("letter"), "")?;
    guard("shared", 1, "it is open to other users and holds `letter`")
}

#[test]
fn completions_and_manual_pages_are_made() -> Result<()> {
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let script = text(&run(&["completions", shell])?.stdout);
        let words = ["unflag", "take-over", "guard"];
        ensure!(words.iter().all(|word| script.contains(word)), "{shell}");
    }
    let page = text(&run(&["man"])?.stdout);
    ensure!(page.contains(".TH nodefence 1"), "{page}");
    let dir = tempfile::TempDir::with_prefix("nodefence-test-")?;
    let pages = dir.path().join("man1");
    ensure!(run(&["man", "--dir", pages.to_str().context("path")?])?.status.success());
    for page in ["nodefence.1", "nodefence-flag.1", "nodefence-agent.1", "nodefence-guard.1"] {
        ensure!(Path::new(&pages).join(page).is_file(), "no {page}");
    }
    Ok(())
}

/// No API server is needed to print them.
#[test]
fn definitions_are_printed_as_kubectl_takes_them() -> Result<()> {
    for args in [&["crds"][..], &["crds", "-o", "yaml"]] {
        let printed = text(&run(args)?.stdout);
        let begin = "apiVersion: apiextensions.k8s.io/v1\nkind: CustomResourceDefinition\n";
        let name = "name: nodemembers.nodefence.io\n";
        ensure!(printed.starts_with(begin) && printed.contains(name), "{printed}");
    }
    let list: serde_json::Value = serde_json::from_slice(&run(&["crds", "-o", "json"])?.stdout)?;
    ensure!(list["apiVersion"] == "v1" && list["kind"] == "List", "{list:#}");
    ensure!(list["items"][0]["metadata"]["name"] == "nodemembers.nodefence.io", "{list:#}");
    Ok(())
}

#[test]
fn definitions_that_cannot_be_applied_say_why() -> Result<()> {
    let output = run(&["crds", "--apply", "--kubeconfig", "/nonexistent/kubeconfig"])?;
    let said = text(&output.stderr);
    ensure!(output.status.code() == Some(1) && output.stdout.is_empty(), "{output:?}");
    ensure!(said.contains("/nonexistent/kubeconfig"), "{said}");
    Ok(())
}

/// A reader may end early, as in `nodefence completions bash | head -1`.
#[test]
fn a_reader_that_goes_away_is_no_error() -> Result<()> {
    for args in [&["completions", "bash"][..], &["man"], &["crds"]] {
        let (reader, writer) = std::io::pipe()?;
        drop(reader);
        let output = nodefence_command()?.args(args).stdout(writer).stderr(Stdio::piped()).output()?;
        ensure!(output.status.success() && output.stderr.is_empty(), "{args:?}: {output:?}");
    }
    Ok(())
}

#[test]
fn a_full_disk_is_not_blamed_on_the_agent() -> Result<()> {
    for args in [&["completions", "bash"][..], &["--help"]] {
        let full = std::fs::File::options().write(true).open("/dev/full")?;
        let output = nodefence_command()?.args(args).stdout(full).stderr(Stdio::piped()).output()?;
        let told = text(&output.stderr);
        ensure!(output.status.code() == Some(1), "{args:?}: {output:?}");
        ensure!(
            told.contains("is done, but standard output does not take the result: No space left"),
            "{told}"
        );
    }
    Ok(())
}

#[test]
fn the_doctor_works_without_an_agent() -> Result<()> {
    let ns = Netns::new("doctor")?;
    ns.ip("link add v0 type veth peer name v1")?;
    let doctor = |args: &'static [&'static str]| -> Result<Output> {
        let program = bin("nodefence")?;
        Ok(ns.run(move || bin_path::command(&program).arg("doctor").args(args).output())?)
    };
    let output = doctor(&["--interface", "v0", "-o", "json"])?;
    let checks: serde_json::Value = serde_json::from_slice(&output.stdout)?;
    let checks = checks["items"].as_array().context("no list")?;
    let found = |name: &str| checks.iter().find(|check| check["name"] == name);
    for name in
        ["kernel", "BPF filesystem", "capabilities", "TC programs", "attach mode", "RST", "interface v0"]
    {
        let check = found(name).with_context(|| format!("no line on {name}: {checks:?}"))?;
        ensure!(check["level"] == "ok", "{check}");
    }
    ensure!(found("agent").is_some_and(|check| check["level"] == "warn"));
    ensure!(checks.iter().all(|check| check["level"] == "ok" || check["remedy"].is_string()), "{checks:?}");
    ensure!(output.status.code() == Some(0), "{output:?}");

    let output = doctor(&["--interface", "nope0"])?;
    let said = text(&output.stdout);
    ensure!(output.status.code() == Some(5), "{output:?}");
    ensure!(
        said.contains("fail  interface nope0") && said.contains("there is no interface named nope0"),
        "{said}"
    );
    ensure!(!said.contains("rp_filter nope0") && !said.contains("offload nope0"), "{said}");
    ensure!(!said.contains('\u{1b}'), "colours in a pipe");
    Ok(())
}

/// To an ordinary user the doctor reports that it cannot know, not that nodefence cannot work.
#[test]
fn the_doctor_does_not_guess() -> Result<()> {
    let dir = tempfile::TempDir::with_prefix("nodefence-test-")?;
    // The program is copied, since other users may have no access to the build folder.
    let program = dir.path().join("nodefence");
    std::fs::copy(bin("nodefence")?, &program)?;
    std::os::unix::fs::chown(dir.path(), Some(65_534), Some(65_534))?;
    let mut command = bin_path::command(&program);
    command.args(["doctor", "-o", "json"]).uid(65_534).gid(65_534);
    let output = Netns::new("nobody")?.run(move || command.output())?;
    let checks: serde_json::Value =
        serde_json::from_slice(&output.stdout).with_context(|| text(&output.stderr))?;
    let checks = checks["items"].as_array().context("no list")?;
    ensure!(checks.iter().all(|check| check["level"] != "fail"), "{checks:?}");
    for name in ["capabilities", "TC programs", "attach mode", "challenging idle clients", "nft flowtables"] {
        let check = checks.iter().find(|check| check["name"] == name).context(name)?;
        ensure!(check["level"] == "warn" && check["remedy"] == "sudo nodefence doctor", "{check}");
    }
    ensure!(output.status.code() == Some(0), "{output:?}");
    Ok(())
}

/// `ExecStart=` of each unit is a command line that this program understands.
#[test]
fn what_the_units_start_is_understood() -> Result<()> {
    for (unit, verb) in [
        (include_str!("../../../deploy/systemd/nodefence.service"), "agent"),
        (include_str!("../../../deploy/systemd/nodefence-guard.service"), "guard"),
    ] {
        let value = |key: &str| unit.lines().find_map(|line| line.strip_prefix(key)).unwrap_or_default();
        let mut words: Vec<&str> = value("ExecStart=").split_whitespace().collect();
        ensure!(
            words.first() == Some(&"/usr/local/bin/nodefence") && words.get(1) == Some(&verb),
            "{words:?}"
        );
        // The options before `--help` are parsed first.
        words.push("--help");
        let output = run(&words[1..])?;
        ensure!(output.status.success(), "{words:?}: {output:?}");
    }
    Ok(())
}
