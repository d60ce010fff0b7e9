//! The real agent, started in a namespace, and its command line.
use std::{
    net::Ipv4Addr,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

use anyhow::{Context as _, bail};
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use nodefence::report::{Client, Request};
use serde_json::{Value, json};

use crate::netns::{self, Netns};

/// One node of the cluster file.
pub(crate) struct Node {
    pub(crate) name: &'static str,
    pub(crate) address: Ipv4Addr,
    pub(crate) backends: Vec<Ipv4Addr>,
}

/// A running agent; ended when dropped, and what it left in the sandbox removed.
pub(crate) struct Agent {
    child: Child,
    program: PathBuf,
    folder: tempfile::TempDir,
}

/// How long the agent may take to answer on its socket: where it is emulated the verifier alone takes many seconds.
const PATIENCE: Duration = Duration::from_secs(180);

/// How long it may take to end.
const LAST_WORDS: Duration = Duration::from_secs(30);

impl Agent {
    /// Starts the agent in `netns` on these interfaces and waits until it answers.
    pub(crate) fn start(
        program: &Path,
        netns: &Netns,
        interfaces: &[&str],
        own: &str,
        nodes: &[Node],
    ) -> anyhow::Result<Self> {
        let nodes: Vec<Value> = nodes
            .iter()
            .map(|node| {
                let backends: Vec<Value> = node.backends.iter().map(|a| json!({ "address": a })).collect();
                json!({ "name": node.name, "address": node.address, "backends": backends })
            })
            .collect();
        Self::start_beside(program, netns, interfaces, own, &json!({ "nodes": nodes }), "none")
    }

    /// As [`Agent::start`], with all of the cluster file's content and kube-proxy's mode.
    pub(crate) fn start_beside(
        program: &Path,
        netns: &Netns,
        interfaces: &[&str],
        own: &str,
        content: &Value,
        proxy: &str,
    ) -> anyhow::Result<Self> {
        let folder = tempfile::tempdir_in("/run")?;
        let cluster = folder.path().join("cluster.json");
        std::fs::write(&cluster, content.to_string())?;
        let log = std::fs::File::create(folder.path().join("agent.log"))?;
        let mut command = Command::new(program);
        command.arg("agent").arg("--cluster-file").arg(&cluster).args(["--node", own, "--proxy", proxy]);
        for interface in interfaces {
            command.args(["--interface", interface]);
        }
        command.stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log);
        let child = netns
            .within(|| command.spawn().with_context(|| format!("cannot start {}", program.display())))?;
        let mut agent = Self { child, program: program.to_owned(), folder };
        let started = Instant::now();
        while agent.call(&["nodes", "-o", "json"]).is_err() {
            if let Some(status) = agent.child.try_wait()? {
                bail!("the agent ended with {status}:\n{}", agent.log());
            }
            if started.elapsed() > PATIENCE {
                bail!("the agent does not answer:\n{}", agent.log());
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        Ok(agent)
    }

    /// Flags a node through the command line; the agent's answer.
    pub(crate) fn flag(&self, node: &str) -> anyhow::Result<Value> {
        self.json(&["flag", node, "--for", "10m", "--reason", "bench", "--force", "-o", "json"])
    }

    /// As [`Agent::flag`]; the answer comes once the idle clients were asked, and says what came of it.
    pub(crate) fn flag_and_wait(&self, node: &str) -> anyhow::Result<Value> {
        self.json(&["flag", node, "--for", "10m", "--reason", "bench", "--force", "--wait", "-o", "json"])
    }

    /// Takes the flag back.
    pub(crate) fn unflag(&self, node: &str) -> anyhow::Result<Value> {
        self.json(&["unflag", node, "-o", "json"])
    }

    /// What it says of itself.
    pub(crate) fn status(&self) -> anyhow::Result<Value> {
        self.json(&["status", "-o", "json"])
    }

    /// Seconds of CPU that it has used so far, in its own code and in the kernel (where what it injects is carried on to
    /// the client and back).
    pub(crate) fn cpu(&self) -> anyhow::Result<[f64; 2]> {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.child.id()))?;
        let after_name = stat.rsplit_once(')').context("/proc/PID/stat names no command")?.1;
        let ticks = |field: usize| -> anyhow::Result<f64> {
            // The field after the name is the third (proc_pid_stat(5)); user space sees 100 ticks a second.
            let text = after_name.split_whitespace().nth(field - 3).context("/proc/PID/stat is short")?;
            Ok(text.parse::<f64>()? / 100.0)
        };
        Ok([ticks(14)?, ticks(15)?])
    }

    /// Asks it without a process in between. A connection of its own each time: the agent closes such as say nothing for a while.
    pub(crate) fn ask<T: serde::de::DeserializeOwned>(&self, request: &Request) -> anyhow::Result<T> {
        // Where it is by default, in the sandbox. Beside large tables an emulated processor may need long for an answer.
        let asked = Client::connect(Path::new("/run/nodefence/agent.sock")).and_then(|mut client| {
            client.set_patience(PATIENCE)?;
            client.ask(request)
        });
        asked.with_context(|| self.log())
    }

    /// A line of its /proc/PID/status that counts memory (`VmRSS`, `VmHWM`), in MiB.
    pub(crate) fn memory(&self, what: &str) -> anyhow::Result<f64> {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.child.id()))?;
        let line = status.lines().find_map(|line| line.strip_prefix(what)?.strip_prefix(':'));
        let text = line
            .and_then(|line| line.trim().strip_suffix(" kB"))
            .context("no such line in /proc/PID/status")?;
        Ok(text.trim().parse::<f64>()? / 1024.0)
    }

    fn json(&self, args: &[&str]) -> anyhow::Result<Value> {
        let printed = self.call(args).map_err(|error| error.context(self.log()))?;
        serde_json::from_str(&printed)
            .with_context(|| format!("nodefence {} printed no JSON: {printed}", args.join(" ")))
    }

    fn call(&self, args: &[&str]) -> anyhow::Result<String> {
        netns::run(Command::new(&self.program).args(args))
    }

    /// The end of what the agent logged.
    fn log(&self) -> String {
        let text = std::fs::read_to_string(self.folder.path().join("agent.log")).unwrap_or_default();
        let lines: Vec<&str> = text.lines().collect();
        lines[lines.len().saturating_sub(20)..].join("\n")
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        // By itself: one that is killed leaves a guard, which puts back what it remembers once the run folder is gone.
        let _ = kill(Pid::from_raw(self.child.id().cast_signed()), Signal::SIGTERM);
        let told = Instant::now();
        while told.elapsed() < LAST_WORDS && matches!(self.child.try_wait(), Ok(None)) {
            std::thread::sleep(Duration::from_millis(5));
        }
        // The sandbox removes whatever stays behind here.
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = std::fs::remove_dir_all("/sys/fs/bpf/nodefence");
        let _ = std::fs::remove_dir_all("/run/nodefence");
    }
}
