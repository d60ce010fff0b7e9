//! The real `nodefence agent`, run in a namespace: on a node of a [`Cluster`](crate::Cluster), or of a benchmark.

use std::{
    io::{PipeWriter, Write as _},
    os::unix::net::UnixStream,
    path::{Path, PathBuf},
    process::{Child, Command, Output, Stdio},
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, bail};
use aya::maps::{Array, Map, MapData};
use nix::sys::signal::Signal;
use nodefence::report::{Client, FlagReport, Request};
use nodefence_common::{NodeEntry, Reason};
use serde::de::DeserializeOwned;
use serde_json::Value;
use tempfile::TempDir;

use crate::{Netns, Proc, bin, bin_path::command, client::wait_until, watch::Watch};

/// How long an agent may take to answer. The verifier alone takes many seconds where the machine is emulated, and so do large tables.
const READY: Duration = Duration::from_secs(180);
/// How long an agent may take to end.
const LAST_WORDS: Duration = Duration::from_secs(30);
/// The folder in which the agent pins its maps and links by default.
const PINS: &str = "/sys/fs/bpf/nodefence";
/// The agent's maps, by their names.
pub const PINNED_MAPS: &str = "/sys/fs/bpf/nodefence/v3";

/// The deadline (CLOCK_MONOTONIC, ns) of the verdict of the node with this index.
///
/// # Errors
/// Where no map is pinned in the namespace, or the map has no such index.
pub fn verdict_until(ns: &Netns, index: u32) -> Result<u64> {
    ns.run(move || {
        let map = MapData::from_pin(format!("{PINNED_MAPS}/nodes")).and_then(Map::from_map_data)?;
        let nodes: Array<_, NodeEntry> = map.try_into()?;
        Ok(nodes.get(&index, 0)?.until)
    })
}

/// An agent with a run folder, a socket and a cluster file of its own. Its pins are in the namespace's own BPF filesystem.
#[derive(Debug)]
pub struct Agent {
    program: PathBuf,
    ns: Arc<Netns>,
    dir: TempDir,
    interfaces: Vec<String>,
    node: String,
    extra: Vec<String>,
    proc: Option<Proc>,
    watch: Arc<Watch>,
    /// The pipe by which the agent is told of objects, where it follows no file.
    says: Option<PipeWriter>,
}

impl Agent {
    /// Starts an agent for the node `node` in `ns` on `interfaces`, and waits until it serves its socket.
    ///
    /// # Errors
    /// Where the binary is missing, or the agent ends or is not ready in time; with its log.
    pub fn start(ns: &Arc<Netns>, node: &str, interfaces: &[&str], cluster_file: &str) -> Result<Self> {
        Self::start_with(ns, node, interfaces, cluster_file, &[])
    }

    /// As [`Agent::start`], with more arguments.
    ///
    /// # Errors
    /// As [`Agent::start`].
    pub fn start_with(
        ns: &Arc<Netns>,
        node: &str,
        interfaces: &[&str],
        cluster_file: &str,
        extra: &[&str],
    ) -> Result<Self> {
        Self::of(&bin("nodefence")?, ns, node, interfaces, cluster_file, extra)
    }

    /// As [`Agent::start_with`], of another build's binary.
    ///
    /// # Errors
    /// As [`Agent::start`].
    pub fn of(
        program: &Path,
        ns: &Arc<Netns>,
        node: &str,
        interfaces: &[&str],
        cluster_file: &str,
        extra: &[&str],
    ) -> Result<Self> {
        let mut this = Self::new(program, ns, node, interfaces, extra)?;
        std::fs::write(this.cluster_file(), cluster_file)?;
        this.restart(&[])?;
        Ok(this)
    }

    /// An agent that follows the objects which [`Agent::tell`] names; its program is `nodefence-objects`. The agent waits for the first lists, but this function
    /// does not wait for the agent: see [`Agent::ready`].
    ///
    /// # Errors
    /// Where the agent cannot be started.
    pub fn of_objects(
        program: &Path,
        ns: &Arc<Netns>,
        node: &str,
        interfaces: &[&str],
        extra: &[&str],
    ) -> Result<Self> {
        let mut this = Self::new(program, ns, node, interfaces, extra)?;
        let (told, says) = std::io::pipe()?;
        this.says = Some(says);
        this.proc = Some(this.spawn(&[], told.into())?);
        Ok(this)
    }

    fn new(program: &Path, ns: &Arc<Netns>, node: &str, interfaces: &[&str], extra: &[&str]) -> Result<Self> {
        Ok(Self {
            program: program.to_owned(),
            ns: Arc::clone(ns),
            dir: TempDir::with_prefix("nodefence-test-")?,
            interfaces: interfaces.iter().map(|&name| name.to_owned()).collect(),
            node: node.to_owned(),
            extra: extra.iter().map(|&word| word.to_owned()).collect(),
            proc: None,
            watch: Watch::here(),
            says: None,
        })
    }

    /// Tells the agent of objects, in the lines that `nodefence-objects` reads.
    ///
    /// # Errors
    /// Where the agent follows a file, or has ended.
    pub fn tell(&mut self, lines: &str) -> Result<()> {
        Ok(self.says.as_mut().context("it follows no objects")?.write_all(lines.as_bytes())?)
    }

    /// Hands the pipe for objects to the caller, who tells the agent from now on.
    ///
    /// # Errors
    /// Where the agent follows a file.
    pub fn take_says(&mut self) -> Result<PipeWriter> {
        self.says.take().context("it follows no objects")
    }

    /// Has another agent with these options take over from the one that runs.
    ///
    /// # Errors
    /// As [`Agent::start`].
    pub fn succeed(&mut self, options: &[&str]) -> Result<()> {
        self.extra = options.iter().map(|option| (*option).to_owned()).collect();
        self.restart(&["--take-over"])
    }

    /// Starts the agent anew (an older one that still runs goes on: see `--take-over`) and waits until it serves.
    ///
    /// # Errors
    /// As [`Agent::start`].
    pub fn restart(&mut self, more: &[&str]) -> Result<()> {
        // An older one ends once this one serves.
        self.proc = Some(self.until_ready(self.spawn(more, Stdio::null())?)?);
        Ok(())
    }

    fn spawn(&self, more: &[&str], input: Stdio) -> Result<Proc> {
        let log = std::fs::File::options().create(true).append(true).open(self.log_path())?;
        let mut command = self.command(more);
        command.stdin(input).stdout(log.try_clone()?).stderr(log);
        let proc = Proc::spawn(&self.ns, command)?;
        self.watch.agent(proc.pid().as_raw());
        Ok(proc)
    }

    /// Waits until the agent serves its socket.
    ///
    /// # Errors
    /// Where the agent ends or is not ready in time; with its log.
    pub fn ready(&mut self) -> Result<()> {
        let proc = self.proc.take().context("the agent was killed")?;
        self.proc = Some(self.until_ready(proc)?);
        Ok(())
    }

    fn until_ready(&self, mut proc: Proc) -> Result<Proc> {
        let ready = wait_until("agent ready", READY, || {
            proc.ended().is_ok_and(|ended| ended.is_some()) || self.serves(proc.pid().as_raw())
        });
        if proc.ended()?.is_some() || ready.is_err() {
            bail!("the agent did not come up; its log:\n{}", self.log());
        }
        Ok(proc)
    }

    /// The command of an agent over the same folders, with this one's options and `more`. Options in `more` replace this one's.
    pub fn command(&self, more: &[&str]) -> Command {
        let extra: Vec<&str> = self.extra.iter().map(String::as_str).collect();
        let mut own = vec![
            ("--node", self.node.clone().into()),
            ("--run-dir", self.dir.path().join("run").into()),
            ("--socket", self.socket().into()),
        ];
        if self.says.is_none() {
            own.push(("--cluster-file", self.cluster_file().into_os_string()));
        }
        own.extend(self.interfaces.iter().map(|interface| ("--interface", interface.into())));
        // The datapath's check of itself is off, unless a test says otherwise.
        if !extra.contains(&"--proxy") {
            own.push(("--proxy", "none".into()));
        }
        let mut command = command(&self.program);
        command.arg("agent");
        for (option, value) in own.into_iter().filter(|(option, _)| !more.contains(option)) {
            command.arg(option).arg(value);
        }
        command.args(extra).args(more);
        command
    }

    /// Whether the process `pid` answers at the socket. During a take-over the older agent answers at first.
    pub fn serves(&self, pid: i32) -> bool {
        // The CLI runs only once the socket accepts: starting it again and again would slow down the agent.
        let there = UnixStream::connect(self.socket()).is_ok();
        let answer = there.then(|| self.cli(&["status", "-o", "json"]).ok()).flatten();
        let status = answer.and_then(|output| serde_json::from_slice::<Value>(&output.stdout).ok());
        status.is_some_and(|status| status["pid"] == pid)
    }

    /// The cluster file; it may be rewritten (by rename) while the agent runs.
    pub fn cluster_file(&self) -> PathBuf {
        self.dir.path().join("cluster.yaml")
    }

    /// How often the agent has had the kernel go through each half of conntrack's table: IPv4, IPv6.
    ///
    /// # Errors
    /// Where the agent does not answer, or does not tell the number.
    pub fn conntrack_listings(&self) -> Result<[u64; 2]> {
        let row = self.status()?["conntrack"].clone();
        let of = |half: &str| row[half].as_u64().with_context(|| format!("{half} of {row}"));
        Ok([of("listed_v4")?, of("listed_v6")?])
    }

    /// Replaces the cluster file in one step (by rename).
    ///
    /// # Errors
    /// Where the file cannot be written.
    pub fn rewrite_cluster_file(&self, text: &str) -> Result<()> {
        let aside = self.cluster_file().with_extension("new");
        std::fs::write(&aside, text)?;
        Ok(std::fs::rename(aside, self.cluster_file())?)
    }

    /// Writes the same cluster file once more, by which the source confirms it.
    ///
    /// # Errors
    /// Where the file cannot be read or written.
    pub fn confirm_cluster_file(&self) -> Result<()> {
        self.rewrite_cluster_file(&std::fs::read_to_string(self.cluster_file())?)
    }

    /// The agent's socket.
    pub fn socket(&self) -> PathBuf {
        self.dir.path().join("run").join("agent.sock")
    }

    fn log_path(&self) -> PathBuf {
        self.dir.path().join("log")
    }

    /// All that the agent has written.
    pub fn log(&self) -> String {
        std::fs::read_to_string(self.log_path()).unwrap_or_default()
    }

    /// Waits until the log has this text. The agent does not wait for its log's reader.
    ///
    /// # Errors
    /// Where the text does not come; with the log.
    pub fn logs(&self, text: &str) -> Result<()> {
        let told = wait_until(&format!("`{text}` in the log"), READY, || self.log().contains(text));
        told.map(drop).with_context(|| self.log())
    }

    /// The running process.
    ///
    /// # Errors
    /// Where it was killed.
    pub fn proc(&self) -> Result<&Proc> {
        self.proc.as_ref().context("the agent was killed")
    }

    /// Runs the CLI against this agent, in its namespace.
    ///
    /// # Errors
    /// Where the binary is missing.
    pub fn cli(&self, args: &[&str]) -> Result<Output> {
        // Waited for outside of the namespace's thread, since others need that thread meanwhile.
        Ok(self.begin(args)?.wait_with_output()?)
    }

    /// As [`Agent::cli`], but does not wait for the command's end.
    ///
    /// # Errors
    /// As [`Agent::cli`].
    pub fn begin(&self, args: &[&str]) -> Result<Child> {
        let mut command = command(&self.program);
        command.args(args).arg("--socket").arg(self.socket());
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        Ok(self.ns.run(move || command.spawn())?)
    }

    /// As [`Agent::cli`], for a command that must succeed. Gives its standard output.
    ///
    /// # Errors
    /// Where the command fails; with its output and the agent's log.
    pub fn expect(&self, args: &[&str]) -> Result<String> {
        let output = self.cli(args)?;
        if !output.status.success() {
            bail!(
                "nodefence {}: {}\n{}\nagent's log:\n{}",
                args.join(" "),
                output.status,
                String::from_utf8_lossy(&output.stderr),
                self.log()
            );
        }
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }

    /// As [`Agent::expect`]; gives the answer as JSON.
    ///
    /// # Errors
    /// As [`Agent::expect`], or where the answer is no JSON.
    pub fn json(&self, args: &[&str]) -> Result<Value> {
        let text = self.expect(&[args, &["-o", "json"]].concat())?;
        serde_json::from_str(&text).with_context(|| format!("{args:?}: {text}"))
    }

    /// The row of `nodes` for one node.
    ///
    /// # Errors
    /// Where the agent does not know the node.
    pub fn node(&self, name: &str) -> Result<Value> {
        let nodes = self.json(&["nodes"])?;
        let node = nodes["items"].as_array().and_then(|nodes| nodes.iter().find(|node| node["name"] == name));
        node.cloned().with_context(|| format!("no node {name}"))
    }

    /// The agent's `status`.
    ///
    /// # Errors
    /// As [`Agent::json`].
    pub fn status(&self) -> Result<Value> {
        self.json(&["status"])
    }

    /// The warning of this code in `status`, where there is one.
    ///
    /// # Errors
    /// As [`Agent::json`].
    pub fn warning(&self, code: &str) -> Result<Option<String>> {
        let status = self.status()?;
        let mut warnings = status["warnings"].as_array().context("no warnings")?.iter();
        let warning = warnings.find(|warning| warning["code"] == code);
        Ok(warning.and_then(|warning| warning["message"].as_str()).map(str::to_owned))
    }

    /// Sends a request without a process in between. Each request has a connection of its own: the agent closes connections that are idle for a while.
    ///
    /// # Errors
    /// Where the agent refuses or does not answer; with its log.
    pub fn ask<T: DeserializeOwned>(&self, request: &Request) -> Result<T> {
        let asked = Client::connect(&self.socket()).and_then(|mut client| {
            client.set_patience(READY)?;
            client.ask(request)
        });
        asked.with_context(|| self.log())
    }

    /// Flags a node by the CLI.
    ///
    /// # Errors
    /// As [`Agent::expect`].
    pub fn flag(&self, node: &str) -> Result<()> {
        // The limit is a third of the nodes, and tests have clusters of three.
        self.expect(&["flag", node, "--reason", "test"]).map(drop)
    }

    /// As [`Agent::flag`], but without limits and without the start of a command. Gives the time at which the flag held.
    ///
    /// # Errors
    /// As [`Agent::ask`].
    pub fn flag_by_socket(&self, node: &str) -> Result<Instant> {
        let node = node.to_owned();
        let reason = "test".to_owned();
        let request = Request::Flag { node, for_ms: None, reason, force: true, wait: false, sudo_user: None };
        self.ask::<FlagReport>(&request)?;
        Ok(Instant::now())
    }

    /// Withdraws the flag.
    ///
    /// # Errors
    /// As [`Agent::expect`].
    pub fn unflag(&self, node: &str) -> Result<()> {
        self.expect(&["unflag", node]).map(drop)
    }

    /// The packets that a counter has counted.
    ///
    /// # Errors
    /// As [`Agent::expect`], where the answer is no JSON, or where the counter is not listed.
    pub fn counter(&self, reason: Reason) -> Result<u64> {
        let json = self.json(&["counters"])?;
        let row =
            json["items"].as_array().and_then(|rows| rows.iter().find(|row| row["reason"] == reason.name()));
        row.and_then(|row| row["packets"].as_u64())
            .with_context(|| format!("no counter `{}` in {json}", reason.name()))
    }

    /// Whether the agent has found that this kernel can make answers in place.
    ///
    /// # Errors
    /// As [`Agent::json`].
    pub fn answers_in_place(&self) -> Result<bool> {
        let finding = &self.status()?["probe"]["ipvs_translates"];
        let not_needed = finding["not_needed"].as_str().map(|_| true);
        finding["found"].as_bool().or(not_needed).with_context(|| format!("the probe failed: {finding}"))
    }

    /// Kills the agent at once (SIGKILL), so that it cannot tidy up.
    pub fn kill(&mut self) {
        self.proc = None;
    }

    /// Ends the agent by SIGTERM and waits for its end.
    ///
    /// # Errors
    /// Where the agent does not end within 10 s.
    pub fn terminate(&mut self) -> Result<()> {
        self.ends_within(Duration::from_secs(10))
    }

    /// Waits until the agent has ended by itself; gives its exit code.
    ///
    /// # Errors
    /// Where the agent still runs after that time.
    pub fn ends_by_itself(&mut self, limit: Duration) -> Result<Option<i32>> {
        let mut proc = self.proc.take().context("the agent was killed")?;
        Ok(proc.wait(limit)?.code())
    }

    /// Ends the agent and removes its pins, so that the namespace is as it was. A killed agent may leave a guard, which ends once nothing is left to be
    /// restored.
    ///
    /// # Errors
    /// Where the agent does not end, or its pins stay.
    pub fn end(mut self) -> Result<()> {
        self.ends_within(LAST_WORDS)?;
        self.ns.run(|| std::fs::remove_dir_all(PINS)).with_context(|| format!("remove {PINS}"))
    }

    fn ends_within(&mut self, limit: Duration) -> Result<()> {
        let mut proc = self.proc.take().context("the agent was killed")?;
        proc.signal(Signal::SIGTERM)?;
        proc.wait(limit).map(drop)
    }
}
