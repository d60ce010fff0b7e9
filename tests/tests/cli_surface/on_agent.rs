//! What the commands print about a real agent, and their exit codes.

use std::{
    io::{BufRead as _, BufReader},
    process::Stdio,
    sync::{Arc, mpsc},
    time::Duration,
};

use anyhow::{Context as _, Result, ensure};
use nodefence_tests::{
    Agent, Cluster, Family, Netns, Options, Place, Proc, bin_path, checks::Case, four_nodes,
    topology::Service,
};
use serde_json::Value;

use crate::documents::document;

/// The limit of waits that have no promised time.
const LIMIT: Duration = Duration::from_secs(20);

fn start_with(file: &str, more: &[&str]) -> Result<(Arc<Netns>, Agent)> {
    let ns = four_nodes::namespace("cli")?;
    let agent = Agent::start_with(&ns, "node-a", &["v0"], file, more)?;
    Ok((ns, agent))
}

fn start(more: &[&str]) -> Result<(Arc<Netns>, Agent)> {
    start_with(four_nodes::FILE, more)
}

/// Runs a command that must end with this exit code. Gives its standard output and its standard error.
fn ends(agent: &Agent, args: &[&str], code: i32) -> Result<(String, String)> {
    let output = agent.cli(args)?;
    let [told, warned] =
        [&output.stdout, &output.stderr].map(|text| String::from_utf8_lossy(text).into_owned());
    ensure!(output.status.code() == Some(code), "{args:?}: {}\n{told}{warned}", output.status);
    Ok((told, warned))
}

#[test]
fn a_flag_says_what_it_does_and_who_set_it() -> Result<()> {
    let (_ns, mut agent) = start(&[])?;
    let told = agent.expect(&["flag", "node-b", "--reason", "disk"])?;
    let lines: Vec<&str> = told.lines().collect();
    ensure!(lines[0] == "on this node only (node-a): node-b is flagged by root, ends in 1h", "{told}");
    let names: Vec<&str> = lines.iter().filter_map(|line| line.split_whitespace().next()).collect();
    ensure!(
        names == ["on", "verdict", "established", "idle", "new", "exempt", "uncovered"],
        "{names:?} in:\n{told}"
    );
    ensure!(lines[5..] == ["exempt       0 ports", "uncovered    0 of 2 backends"], "{told}");
    let flag = agent.node("node-b")?["flag"].clone();
    ensure!(
        flag["by"] == "root" && flag["remaining_seconds"].as_u64().is_some_and(|left| left > 3_500),
        "{flag}"
    );

    // This flag is set by sudo, and holds until it is taken back. The next agent adopts it.
    let mut sudo = bin_path::nodefence_command()?;
    sudo.args(["flag", "node-b", "--for", "forever", "--wait", "--socket"]).arg(agent.socket());
    let output = sudo.env("SUDO_USER", "alice").output()?;
    let told = String::from_utf8_lossy(&output.stdout).into_owned();
    let by = "root (sudo by alice)";
    ensure!(told.contains(&format!("node-b is flagged by {by}, until `nodefence unflag`\n")), "{output:?}");
    ensure!(told.contains("\nestablished  0 TCP flows, each reset when its client next sends\n"), "{told}");
    ensure!(told.contains("\nidle         0 challenged, 0 of them closed in "), "{told}");
    ensure!(told.contains("\nreplaces     flagged by root, "), "{told}");
    agent.wait_for_log(&format!("by=\"{by}\""))?;
    agent.kill();
    agent.restart(&[])?;
    let node = agent.node("node-b")?;
    ensure!(node["flag"]["by"] == by && node["flag"]["remaining_seconds"].is_null(), "{node}");
    ensure!(node["claims"][0]["by"] == by, "{node}");
    for verb in ["nodes", "status"] {
        let table = agent.expect(&[verb])?;
        ensure!(table.contains(&format!("flagged by {by} until unflagged")), "{table}");
    }
    Ok(())
}

/// `default/alone` has endpoints on node B only. Packets to a backend of node C leave by a device that is not attached.
#[test]
fn strict_names_what_is_not_cut() -> Result<()> {
    let services = "services:
- name: default/alone
  clusterIPs: [10.96.0.9]
  ports: [{port: 80, targetPort: 8080, protocol: tcp}]
  endpoints: [{address: 10.9.1.1, node: node-b}]
";
    let (ns, agent) = start_with(&format!("{}{services}", four_nodes::FILE), &[])?;
    ns.ip("link add w0 type veth peer name w1
         link set w0 up
         link set w1 up
         route add 10.9.2.0/24 dev w0")?;
    nodefence_tests::client::wait_until("the route is seen", LIMIT, || {
        agent.status().is_ok_and(|status| status["uncovered"] == 1)
    })?;
    ends(&agent, &["flag", "node-d", "--strict"], 0)?;
    agent.unflag("node-d")?;

    let (told, warned) = ends(&agent, &["flag", "node-b", "--strict"], 5)?;
    ensure!(
        warned.contains("nodefence: --strict: 1 port exempt; node-b is flagged all the same\n"),
        "{warned}"
    );
    let line = "exempt       1 port, which pass\n             10.9.1.1:8080/tcp (all that port 80 of default/alone may use here is on flagged nodes)\n";
    ensure!(told.contains(line), "{told}");
    ensure!(agent.node("node-b")?["action"] == "refuse");
    // Without `--strict` exempt ports are no finding.
    ends(&agent, &["flag", "node-b"], 0)?;
    agent.unflag("node-b")?;

    let (told, warned) = ends(&agent, &["flag", "node-c", "--strict"], 5)?;
    ensure!(warned.contains("nodefence: --strict: 1 backend uncovered; node-c "), "{warned}");
    let line = "uncovered    1 of 1 backend, which pass\n             10.9.2.1 (leaves by w0, which is not attached)\n";
    ensure!(told.contains(line), "{told}");
    let report = agent.json(&["flag", "node-c"])?;
    ensure!(report["on"] == "node-a" && report["exempt_count"] == 0, "{report}");
    Ok(())
}

#[test]
fn findings_end_apart_from_failures() -> Result<()> {
    let (_ns, mut agent) = start(&[])?;
    let (told, _) = ends(&agent, &["status", "--check"], 0)?;
    ensure!(told.starts_with("OK: no node is cut\nAgent "), "{told}");
    ends(&agent, &["audit"], 0)?;
    agent.rewrite_cluster_file("nodes: [")?;
    nodefence_tests::client::wait_until("the file is refused", LIMIT, || {
        agent.status().is_ok_and(|status| status["cluster"]["error"].is_string())
    })?;
    let (told, _) = ends(&agent, &["status", "--check"], 5)?;
    ensure!(
        told.starts_with("DEGRADED: 1 warning: NF09\n  NF09  the cluster file was not taken, "),
        "{told}"
    );
    let (told, _) = ends(&agent, &["status", "--check", "-o", "json"], 5)?;
    ensure!(
        told.starts_with("{\n  \"schema_version\": 1,\n  \"kind\": \"Status\",\n  \"state\": \"degraded\",\n  \"why\": \"1 warning: NF09\",\n"),
        "{told}"
    );
    ends(&agent, &["status"], 0)?;
    for args in
        [&["flag", "node-z"][..], &["flows", "--node", "node-z"], &["flows", "--service", "default/z"]]
    {
        let (_, warned) = ends(&agent, args, 7)?;
        ensure!(warned.starts_with("nodefence: there is no "), "{warned}");
    }
    let (told, _) = ends(&agent, &["doctor", "nf09"], 0)?;
    ensure!(
        told.starts_with("NF09   ") && told.contains("\nhere   the cluster file was not taken, "),
        "{told}"
    );
    let file = agent.cluster_file().display().to_string();
    ensure!(told.contains(&format!("\ndo     ${{EDITOR:-vi}} {file}  # ")), "{told}");
    let doctor = agent.cli(&["doctor", "--interface", "v0"])?;
    let doctor = String::from_utf8_lossy(&doctor.stdout).into_owned();
    ensure!(doctor.contains("\nfail  NF09 "), "{doctor}");
    agent.kill();
    ends(&agent, &["status", "--check"], 3)?;
    // The doctor explains a warning's number also without an agent.
    let (told, _) = ends(&agent, &["doctor", "NF09"], 0)?;
    ensure!(told.contains("\nhere   not known: no agent answers at "), "{told}");
    let (_, error) = ends(&agent, &["doctor", "NF99"], 2)?;
    ensure!(error.contains("expected one of NF01, NF02, "), "{error}");
    Ok(())
}

#[test]
fn nodes_are_listed_as_they_are_asked_for() -> Result<()> {
    let (_ns, agent) = start(&[])?;
    agent.flag("node-b")?;
    let names = |args: &[&str]| -> Result<String> {
        let told = agent.expect(&[&["nodes", "-o", "name"], args].concat())?;
        Ok(told.split_whitespace().collect::<Vec<_>>().join(" "))
    };
    ensure!(names(&[])? == "node-a node-b node-c node-d");
    ensure!(names(&["node-d", "node-b"])? == "node-b node-d");
    ensure!(names(&["--flagged"])? == "node-b");
    ensure!(names(&["node-c", "--flagged"])?.is_empty());
    let (told, warned) = ends(&agent, &["nodes", "node-z", "node-c", "--no-headers"], 7)?;
    ensure!(told.starts_with("node-c  10.9.0.13  ") && told.lines().count() == 1, "{told}");
    ensure!(warned == "nodefence: there is no node `node-z` (see `nodefence nodes`)\n", "{warned}");
    let (told, warned) = ends(&agent, &["nodes", "node-z", "node-b", "-o", "json"], 7)?;
    let list: Value = serde_json::from_str(&told)?;
    ensure!(list["items"][0]["name"] == "node-b" && list["items"][1].is_null(), "{list}");
    ensure!(list["not_found"][0] == "node-z", "{list}");
    let error: Value = serde_json::from_str(&warned)?;
    ensure!((&error["kind"], &error["reason"]) == (&"Error".into(), &"not_found".into()), "{error}");
    let wide = agent.expect(&["nodes", "-o", "wide"])?;
    ensure!(wide.starts_with("NAME") && wide.contains("GENERATION") && wide.contains("  POOL  "), "{wide}");
    ensure!(agent.expect(&["nodes", "node-c", "--flagged", "--no-headers"])?.is_empty());
    Ok(())
}

/// A running command, and the lines that it prints.
struct Lines {
    proc: Proc,
    lines: mpsc::Receiver<String>,
}

impl Lines {
    fn of(ns: &Netns, agent: &Agent, args: &[&str]) -> Result<Self> {
        let (reader, writer) = std::io::pipe()?;
        let mut command = bin_path::nodefence_command()?;
        command.args(args).arg("--socket").arg(agent.socket());
        command.stdin(Stdio::null()).stdout(writer);
        let proc = Proc::spawn(ns, command)?;
        let (told, lines) = mpsc::channel();
        std::thread::spawn(move || {
            BufReader::new(reader).lines().map_while(Result::ok).try_for_each(|line| told.send(line))
        });
        Ok(Self { proc, lines })
    }

    fn next(&self) -> Result<String> {
        self.lines.recv_timeout(LIMIT).context("no more lines")
    }
}

#[test]
fn watched_nodes_are_printed_again_when_they_change() -> Result<()> {
    let (ns, mut agent) = start(&[])?;
    let table = Lines::of(&ns, &agent, &["nodes", "node-b", "node-c", "-w"])?;
    let json = Lines::of(&ns, &agent, &["nodes", "--watch", "--flagged", "-o", "json"])?;
    ensure!(table.next()?.starts_with("NAME "));
    for name in ["node-b", "node-c"] {
        let line = table.next()?;
        ensure!(line.starts_with(name) && line.contains("  pass  "), "{line}");
    }
    let row = |lines: &Lines| document("Node", &lines.next()?);
    agent.expect(&["flag", "node-b", "--reason", "disk"])?;
    let line = table.next()?;
    ensure!(line.starts_with("node-b") && line.contains("  refuse  ") && line.ends_with(": disk"), "{line}");
    let told = row(&json)?;
    ensure!(told["name"] == "node-b" && told["action"] == "refuse" && told["flag"]["by"] == "root", "{told}");
    // Neither the passing of time nor a restart of the agent is a change.
    agent.kill();
    agent.restart(&[])?;
    std::thread::sleep(Duration::from_millis(2_500));
    agent.unflag("node-b")?;
    let line = table.next()?;
    ensure!(line.starts_with("node-b") && line.contains("  pass  "), "{line}");
    let told = row(&json)?;
    ensure!(told["name"] == "node-b" && told["flag"].is_null(), "{told}");
    for Lines { mut proc, lines } in [table, json] {
        proc.signal(nix::sys::signal::Signal::SIGINT)?;
        proc.wait(LIMIT)?;
        ensure!(
            lines.recv_timeout(LIMIT) == Err(mpsc::RecvTimeoutError::Disconnected),
            "the watch printed more lines"
        );
    }
    Ok(())
}

#[test]
fn flows_are_listed_by_backend_service_and_protocol() -> Result<()> {
    let cluster = Cluster::new(Options::default())?;
    let agent = Agent::start(&cluster.a.ns, "node-a", &["eth0"], &cluster.services_file())?;
    let case = Case { cluster: &cluster, place: Place::Outside, family: Family::V4 };
    let _open = [case.to_b(Service::Web)?, case.to_b(Service::Web)?];
    let service = cluster.service(Service::Web, Place::Outside, Family::V4).to_string();
    let backend = cluster.b.endpoint(Service::Web, Family::V4).to_string();
    let list = |args: &[&str]| -> Result<Vec<Value>> {
        let answer = agent.json(&[&["flows"], args].concat())?;
        Ok(answer["items"].as_array().context("no list")?.clone())
    };
    let all = list(&[])?;
    let to_b = all.iter().filter(|flow| flow["backend"] == backend.as_str()).count();
    ensure!(to_b >= 2, "{all:?}");
    ensure!(list(&["--backend", &backend])?.len() == to_b);
    ensure!(list(&["--backend", "10.244.2.77"])?.is_empty());
    for name in ["default/web", &service] {
        let flows = list(&["--service", name])?;
        ensure!(
            flows.len() >= 2 && flows.iter().all(|flow| flow["service"] == service.as_str()),
            "{name}: {flows:?}"
        );
    }
    ensure!(list(&["--service", "default/dns"])?.iter().all(|flow| flow["service"] != service.as_str()));
    ensure!(list(&["--service", "default/web", "--protocol", "udp"])?.is_empty());
    ensure!(list(&["--protocol", "tcp"])?.iter().all(|flow| flow["protocol"] == "tcp"));
    let (told, warned) = ends(&agent, &["flows", "--backend", &backend, "--limit", "1"], 0)?;
    ensure!(told.lines().count() == 2, "{told}");
    ensure!(warned == format!("warning: flows that are not listed (--limit 1): {}\n", to_b - 1), "{warned}");
    Ok(())
}
