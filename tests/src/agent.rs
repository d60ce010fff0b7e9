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

/// How long it may take to answer: the verifier alone takes many seconds where the machine is emulated, and so do large tables.
const READY: Duration = Duration::from_secs(180);
/// How long it may take to end.
const LAST_WORDS: Duration = Duration::from_secs(30);
/// Where the agent pins what it loads, where no option says otherwise.
const PINS: &str = "/sys/fs/bpf/nodefence";
/// Its maps, by their names.
pub const PINNED_MAPS: &str = "/sys/fs/bpf/nodefence/v3";

/// Up to when (CLOCK_MONOTONIC, ns) the verdict at this place holds.
///
/// # Errors
/// Where no map is pinned in the namespace, or it has no such place.
pub fn verdict_until(ns: &Netns, index: u32) -> Result<u64> {
    ns.run(move || {
        let map = MapData::from_pin(format!("{PINNED_MAPS}/nodes")).and_then(Map::from_map_data)?;
        let nodes: Array<_, NodeEntry> = map.try_into()?;
        Ok(nodes.get(&index, 0)?.until)
    })
}

/// An agent with folders of its own: run folder, socket, cluster file; pins in the namespace's own BPF filesystem.
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
    /// By what it is told of objects, where it follows no file.
    says: Option<PipeWriter>,
}

impl Agent {
    /// Starts one for the node `node` in `ns` on `interfaces`, and waits until it serves its socket.
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

    /// As [`Agent::start_with`], of a binary that need not be this build's.
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

    /// One that follows objects which [`Agent::tell`] tells it of: the program is `nodefence-objects`. It waits for the first
    /// lists, and nobody for it: see [`Agent::ready`].
    ///
    /// # Errors
    /// Where it cannot be started.
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

    /// Tells it of objects, as `nodefence-objects` reads them.
    ///
    /// # Errors
    /// Where it follows a file, or has ended.
    pub fn tell(&mut self, lines: &str) -> Result<()> {
        Ok(self.says.as_mut().context("it follows no objects")?.write_all(lines.as_bytes())?)
    }

    /// By what it is told of objects, for whoever tells it from now on.
    ///
    /// # Errors
    /// Where it follows a file.
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

    /// Waits until it serves its socket.
    ///
    /// # Errors
    /// Where it ends or is not ready in time; with its log.
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

    /// The command of an agent over the same folders: with this one's options but for those that `more` has, and with `more`.
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
        // What the datapath does is looked at by itself, unless a test says otherwise.
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

    /// Whether the process `pid` answers at the socket: where one agent takes over from another, the older one answers at first.
    pub fn serves(&self, pid: i32) -> bool {
        // The CLI is asked only once there is someone to ask: starting it again and again would slow down the agent it waits for.
        let there = UnixStream::connect(self.socket()).is_ok();
        let answer = there.then(|| self.cli(&["status", "-o", "json"]).ok()).flatten();
        let status = answer.and_then(|output| serde_json::from_slice::<Value>(&output.stdout).ok());
        status.is_some_and(|status| status["pid"] == pid)
    }

    /// The cluster file; it may be rewritten (by rename) while the agent runs.
    pub fn cluster_file(&self) -> PathBuf {
        self.dir.path().join("cluster.yaml")
    }

    /// How often it has had the kernel go through each half of conntrack's table: IPv4, IPv6.
    ///
    /// # Errors
    /// Where it does not answer, or does not say so.
    pub fn conntrack_listings(&self) -> Result<[u64; 2]> {
        let row = self.status()?["conntrack"].clone();
        let of = |half: &str| row[half].as_u64().with_context(|| format!("{half} of {row}"));
        Ok([of("listed_v4")?, of("listed_v6")?])
    }

    /// Puts another cluster file in the place of its own, at once, as it should be done.
    ///
    /// # Errors
    /// Where it cannot be written.
    pub fn rewrite_cluster_file(&self, text: &str) -> Result<()> {
        let aside = self.cluster_file().with_extension("new");
        std::fs::write(&aside, text)?;
        Ok(std::fs::rename(aside, self.cluster_file())?)
    }

    /// Writes its cluster file once more, as it is: so the source confirms it.
    ///
    /// # Errors
    /// Where it cannot be read or written.
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

    /// All it has written.
    pub fn log(&self) -> String {
        std::fs::read_to_string(self.log_path()).unwrap_or_default()
    }

    /// Waits until the log has this: the agent waits for nobody who reads it.
    ///
    /// # Errors
    /// Where it does not come; with the log.
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
        // Waited for outside of the namespace's thread, which others need meanwhile.
        Ok(self.begin(args)?.wait_with_output()?)
    }

    /// As [`Agent::cli`], and does not wait for its end.
    ///
    /// # Errors
    /// As [`Agent::cli`].
    pub fn begin(&self, args: &[&str]) -> Result<Child> {
        let mut command = command(&self.program);
        command.args(args).arg("--socket").arg(self.socket());
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        Ok(self.ns.run(move || command.spawn())?)
    }

    /// As [`Agent::cli`], and it must succeed; its standard output.
    ///
    /// # Errors
    /// Where it fails: what it said, and the agent's log.
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

    /// As [`Agent::expect`]; its answer as JSON.
    ///
    /// # Errors
    /// As [`Agent::expect`], or where the answer is no JSON.
    pub fn json(&self, args: &[&str]) -> Result<Value> {
        let text = self.expect(&[args, &["-o", "json"]].concat())?;
        serde_json::from_str(&text).with_context(|| format!("{args:?}: {text}"))
    }

    /// What `nodes` says of one of them.
    ///
    /// # Errors
    /// Where it does not know it.
    pub fn node(&self, name: &str) -> Result<Value> {
        let nodes = self.json(&["nodes"])?;
        let node = nodes.as_array().and_then(|nodes| nodes.iter().find(|node| node["name"] == name));
        node.cloned().with_context(|| format!("no node {name}"))
    }

    /// What it says of itself.
    ///
    /// # Errors
    /// As [`Agent::json`].
    pub fn status(&self) -> Result<Value> {
        self.json(&["status"])
    }

    /// Asks it without a process in between. A connection of its own each time: the agent closes such as say nothing for a while.
    ///
    /// # Errors
    /// Where it refuses or does not answer; with its log.
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
        // Clusters of three nodes: one of three is no more than a third.
        self.expect(&["flag", node, "--reason", "test"]).map(drop)
    }

    /// As [`Agent::flag`], whatever the limits say, and without the start of a command. Gives when it held.
    ///
    /// # Errors
    /// As [`Agent::ask`].
    pub fn flag_by_socket(&self, node: &str) -> Result<Instant> {
        let (node, reason) = (node.to_owned(), "test".to_owned());
        let request = Request::Flag { node, for_ms: None, reason, force: true, wait: false, sudo_user: None };
        self.ask::<FlagReport>(&request)?;
        Ok(Instant::now())
    }

    /// Takes the flag back.
    ///
    /// # Errors
    /// As [`Agent::expect`].
    pub fn unflag(&self, node: &str) -> Result<()> {
        self.expect(&["unflag", node]).map(drop)
    }

    /// A counter's packets.
    ///
    /// # Errors
    /// As [`Agent::expect`], where the answer is no JSON, or where the counter is not listed.
    pub fn counter(&self, reason: Reason) -> Result<u64> {
        let json = self.json(&["counters"])?;
        let rows = json.as_array().or_else(|| json.get("counters")?.as_array());
        let row = rows.and_then(|rows| rows.iter().find(|row| row["reason"] == reason.name()));
        row.and_then(|row| row["packets"].as_u64())
            .with_context(|| format!("no counter `{}` in {json}", reason.name()))
    }

    /// Whether it has found that answers can be made in place on this kernel.
    ///
    /// # Errors
    /// As [`Agent::json`].
    pub fn answers_in_place(&self) -> Result<bool> {
        let finding = &self.status()?["probe"]["ipvs_translates"];
        let not_needed = finding["not_needed"].as_str().map(|_| true);
        finding["found"].as_bool().or(not_needed).with_context(|| format!("the probe failed: {finding}"))
    }

    /// Kills it at once (SIGKILL): no chance to tidy up.
    pub fn kill(&mut self) {
        self.proc = None;
    }

    /// Asks it to end (SIGTERM) and waits.
    ///
    /// # Errors
    /// Where it does not end within 10 s.
    pub fn terminate(&mut self) -> Result<()> {
        self.ends_within(Duration::from_secs(10))
    }

    /// Waits until it has ended by itself; its exit code.
    ///
    /// # Errors
    /// Where it goes on for longer than that.
    pub fn ends_by_itself(&mut self, limit: Duration) -> Result<Option<i32>> {
        let mut proc = self.proc.take().context("the agent was killed")?;
        Ok(proc.wait(limit)?.code())
    }

    /// Ends it and unpins what it left, so that the namespace is as it was. One that is killed may leave a guard, which ends
    /// once nothing is left to be restored.
    ///
    /// # Errors
    /// Where it does not end, or its pins stay.
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
