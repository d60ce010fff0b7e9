//! The real `nodefence agent` in a namespace, on a node of a [`Cluster`](crate::Cluster) or of a benchmark.

mod answers;
mod kubernetes;

use std::{
    io::{PipeWriter, Write as _},
    os::unix::net::UnixStream,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    sync::Arc,
    time::Duration,
};

use anyhow::{Context as _, Result, bail};
use aya::maps::{Array, Map, MapData};
use nix::sys::signal::Signal;
use nodefence_common::NodeEntry;
use serde_json::Value;
use tempfile::TempDir;

use crate::{Netns, Proc, bin, bin_path::command, client::wait_until, watch::Watch};

/// How long an agent may take to become ready or to answer. On an emulated machine the verifier and large tables each take many seconds.
const READY: Duration = Duration::from_secs(180);
/// How long an agent may take to end.
const END: Duration = Duration::from_secs(30);
/// The folder in which the agent pins its maps and links by default.
const PINS: &str = "/sys/fs/bpf/nodefence";
/// The folder of the pinned maps. Each file has its map's name.
pub const PINNED_MAPS: &str = "/sys/fs/bpf/nodefence/v3";

/// The deadline of the verdict of the node with this index, as CLOCK_MONOTONIC in nanoseconds.
///
/// # Errors
/// Fails if no map is pinned in the namespace, or if the map has no such index.
pub fn verdict_until(ns: &Netns, index: u32) -> Result<u64> {
    ns.run(move || {
        let map = MapData::from_pin(format!("{PINNED_MAPS}/nodes")).and_then(Map::from_map_data)?;
        let nodes: Array<_, NodeEntry> = map.try_into()?;
        Ok(nodes.get(&index, 0)?.until)
    })
}

/// An agent with a run folder, a socket and a cluster file of its own. The agent's pins are in the namespace's own BPF filesystem.
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
    /// The pipe by which the agent gets objects. `None` where the agent follows a cluster file or an API server.
    objects: Option<PipeWriter>,
    /// The kubeconfig of the API server that the agent follows. `None` where the agent follows something else.
    kubeconfig: Option<PathBuf>,
}

impl Agent {
    /// Starts an agent for the node `node` in `ns` on `interfaces`, and waits until the agent serves its socket.
    ///
    /// # Errors
    /// Fails if the binary is missing, or if the agent ends or is not ready in time. The error includes the agent's log.
    pub fn start(ns: &Arc<Netns>, node: &str, interfaces: &[&str], cluster_file: &str) -> Result<Self> {
        Self::start_with(ns, node, interfaces, cluster_file, &[])
    }

    /// Same as [`Agent::start`], with more arguments.
    ///
    /// # Errors
    /// Fails as [`Agent::start`] does.
    pub fn start_with(
        ns: &Arc<Netns>,
        node: &str,
        interfaces: &[&str],
        cluster_file: &str,
        extra: &[&str],
    ) -> Result<Self> {
        Self::of(&bin("nodefence")?, ns, node, interfaces, cluster_file, extra)
    }

    /// Same as [`Agent::start_with`], with the binary of another build.
    ///
    /// # Errors
    /// Fails as [`Agent::start`] does.
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

    /// Starts an agent that follows the objects which [`Agent::tell`] names. Its program is `nodefence-objects`. The agent waits for the first lists. This
    /// function does not wait for the agent: see [`Agent::ready`].
    ///
    /// # Errors
    /// Fails if the agent cannot be started.
    pub fn of_objects(
        program: &Path,
        ns: &Arc<Netns>,
        node: &str,
        interfaces: &[&str],
        extra: &[&str],
    ) -> Result<Self> {
        let mut this = Self::new(program, ns, node, interfaces, extra)?;
        let (input, objects) = std::io::pipe()?;
        this.objects = Some(objects);
        this.proc = Some(this.spawn(&[], input.into())?);
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
            objects: None,
            kubeconfig: None,
        })
    }

    /// Sends objects to the agent, in the lines that `nodefence-objects` reads.
    ///
    /// # Errors
    /// Fails if the agent follows a file, or has ended.
    pub fn tell(&mut self, lines: &str) -> Result<()> {
        Ok(self.objects.as_mut().context("it follows no objects")?.write_all(lines.as_bytes())?)
    }

    /// Hands the pipe for objects to the caller, who sends the objects from now on.
    ///
    /// # Errors
    /// Fails if the agent follows a file.
    pub fn take_objects_pipe(&mut self) -> Result<PipeWriter> {
        self.objects.take().context("it follows no objects")
    }

    /// Starts another agent with these options, which takes over from the one that runs.
    ///
    /// # Errors
    /// Fails as [`Agent::start`] does.
    pub fn take_over_with(&mut self, options: &[&str]) -> Result<()> {
        self.extra = options.iter().map(|option| (*option).to_owned()).collect();
        self.restart(&["--take-over"])
    }

    /// Starts a new agent and waits until it serves. An older agent that still runs goes on meanwhile: see `--take-over`.
    ///
    /// # Errors
    /// Fails as [`Agent::start`] does.
    pub fn restart(&mut self, more: &[&str]) -> Result<()> {
        // The older agent ends once this one serves.
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
    /// Fails if the agent ends or is not ready in time. The error includes the agent's log.
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

    /// The command of an agent over the same folders, with the options of this agent and `more`. An option in `more` replaces the same option of this agent.
    pub fn command(&self, more: &[&str]) -> Command {
        let extra: Vec<&str> = self.extra.iter().map(String::as_str).collect();
        let mut own = vec![
            ("--node", self.node.clone().into()),
            ("--run-dir", self.dir.path().join("run").into()),
            ("--socket", self.socket().into()),
        ];
        if let Some(file) = &self.kubeconfig {
            own.push(("--kubeconfig", file.into()));
        } else if self.objects.is_none() {
            own.push(("--cluster-file", self.cluster_file().into_os_string()));
        }
        own.extend(self.interfaces.iter().map(|interface| ("--interface", interface.into())));
        // Unless the test gives a `--proxy`, the agent works by the datapath alone and changes no forwarding tables.
        if !extra.contains(&"--proxy") {
            own.push(("--proxy", "none".into()));
        }
        let mut command = command(&self.program);
        command.arg("agent").args(self.kubeconfig.is_some().then_some("--kubernetes"));
        for (option, value) in own.into_iter().filter(|(option, _)| !more.contains(option)) {
            command.arg(option).arg(value);
        }
        command.args(extra).args(more);
        command
    }

    /// Whether the process `pid` answers at the socket. During a take-over the older agent answers first.
    pub fn serves(&self, pid: i32) -> bool {
        // The CLI starts only once the socket accepts, since repeated starts would slow down the agent.
        let there = UnixStream::connect(self.socket()).is_ok();
        let answer = there.then(|| self.cli(&["status", "-o", "json"]).ok()).flatten();
        let status = answer.and_then(|output| serde_json::from_slice::<Value>(&output.stdout).ok());
        status.is_some_and(|status| status["pid"] == pid)
    }

    /// The path of the cluster file.
    pub fn cluster_file(&self) -> PathBuf {
        self.dir.path().join("cluster.yaml")
    }

    /// How often the agent has had the kernel list conntrack's table: for IPv4, and for IPv6.
    ///
    /// # Errors
    /// Fails if the agent does not answer, or if its answer lacks the number.
    pub fn conntrack_listings(&self) -> Result<[u64; 2]> {
        let row = self.status()?["conntrack"].clone();
        let of = |half: &str| row[half].as_u64().with_context(|| format!("{half} of {row}"));
        Ok([of("listed_v4")?, of("listed_v6")?])
    }

    /// Replaces the cluster file in one step, by a rename. The agent may run meanwhile.
    ///
    /// # Errors
    /// Fails if the file cannot be written.
    pub fn rewrite_cluster_file(&self, text: &str) -> Result<()> {
        let aside = self.cluster_file().with_extension("new");
        std::fs::write(&aside, text)?;
        Ok(std::fs::rename(aside, self.cluster_file())?)
    }

    /// Writes the same cluster file once more. The agent takes that as the source's confirmation.
    ///
    /// # Errors
    /// Fails if the file cannot be read or written.
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

    /// The agent's log so far.
    pub fn log(&self) -> String {
        std::fs::read_to_string(self.log_path()).unwrap_or_default()
    }

    /// Waits until the log has this text. The agent writes its log without waiting for a reader, so the text may come late.
    ///
    /// # Errors
    /// Fails if the text does not appear in time. The error includes the log.
    pub fn wait_for_log(&self, text: &str) -> Result<()> {
        let found = wait_until(&format!("`{text}` in the log"), READY, || self.log().contains(text));
        found.map(drop).with_context(|| self.log())
    }

    /// The running process.
    ///
    /// # Errors
    /// Fails if the agent was killed.
    pub fn proc(&self) -> Result<&Proc> {
        self.proc.as_ref().context("the agent was killed")
    }

    /// Kills the agent at once (SIGKILL), so that it cannot clean up.
    pub fn kill(&mut self) {
        self.proc = None;
    }

    /// Sends SIGTERM to the agent and waits for its end.
    ///
    /// # Errors
    /// Fails if the agent does not end within 10 s.
    pub fn terminate(&mut self) -> Result<()> {
        self.ends_within(Duration::from_secs(10))
    }

    /// Waits until the agent has ended by itself. Returns its exit code.
    ///
    /// # Errors
    /// Fails if the agent still runs after `limit`.
    pub fn ends_by_itself(&mut self, limit: Duration) -> Result<Option<i32>> {
        let mut proc = self.proc.take().context("the agent was killed")?;
        Ok(proc.wait(limit)?.code())
    }

    /// Ends the agent and removes its pins, so that the namespace is as it was. A killed agent may leave a guard, which ends once it has restored everything.
    ///
    /// # Errors
    /// Fails if the agent does not end, or if its pins cannot be removed.
    pub fn end(mut self) -> Result<()> {
        self.ends_within(END)?;
        self.ns.run(|| std::fs::remove_dir_all(PINS)).with_context(|| format!("remove {PINS}"))
    }

    fn ends_within(&mut self, limit: Duration) -> Result<()> {
        let mut proc = self.proc.take().context("the agent was killed")?;
        proc.signal(Signal::SIGTERM)?;
        proc.wait(limit).map(drop)
    }
}
