//! Two pods of one node during a rollout: the new pod's agent announces itself and takes over, and the old pod's agent stands by. Both have the run folder,
//! the socket and the HTTP port of the node.

use std::{
    fs::{self, File, read_to_string},
    io::{ErrorKind, PipeWriter, Read as _, Write as _},
    net::{SocketAddr, TcpStream},
    path::PathBuf,
    process::Output,
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, ensure};
use nix::sys::signal::Signal;
use nodefence::{
    flags::monotonic_ns,
    report::{Client, NodeRow, Request},
};
use nodefence_tests::{
    Netns, Outcome, Proc,
    agent::verdict_until,
    bin,
    bin_path::command,
    client::{Conn, wait_until},
    four_nodes, nodefence_command,
    promises::LAPSED,
    watch::{held, missed, wait_within},
};
use serde_json::Value;
use tempfile::TempDir;

const ADDRESS: &str = "127.0.0.1:9478";
const OBJECTS: &str = "nodes node-a=10.9.0.1 node-b=10.9.0.12 node-c=10.9.0.13 node-d=10.9.0.14
services default/web=10.96.0.10:80
slices web-1=default/web:10.9.1.1@node-b,10.9.2.1@node-c
";
const BACKEND: &str = "10.9.1.1:8080";
/// The limit of waits that have no promised time.
const LIMIT: Duration = Duration::from_secs(60);
/// The promised time in which an agent that stands by has ended, once it is told to.
const ENDED: Duration = Duration::from_secs(1);
/// The promised time in which the old agent opens its port again, once the newcomer is gone.
const OPEN_AGAIN: Duration = Duration::from_secs(6);
/// For how long nobody must have had the node before an agent that stands by takes it again.
const VACANT: Duration = Duration::from_secs(10);
/// How much longer it may take until that agent starts anew: it looks four times a second.
const LOOKS: Duration = Duration::from_secs(1);

/// The node of both pods.
struct Node {
    ns: Arc<Netns>,
    folder: TempDir,
}

impl Node {
    fn new() -> Result<Self> {
        let ns = four_nodes::namespace("surge")?;
        ns.ip("neigh add 10.9.1.1 lladdr 02:00:00:00:00:01 nud permanent dev v0")?;
        Ok(Self { ns, folder: TempDir::with_prefix("nodefence-surge-")? })
    }

    fn socket(&self) -> PathBuf {
        self.folder.path().join("run/agent.sock")
    }

    /// Starts the agent of a pod with these options. It waits for its objects.
    fn start(&self, name: &str, options: &[&str]) -> Result<Pod> {
        let log = self.folder.path().join(format!("{name}.log"));
        let file = File::options().create(true).append(true).open(&log)?;
        let (input, objects) = std::io::pipe()?;
        let mut command = command(&bin("nodefence-objects")?);
        command.args(["agent", "--node", "node-a", "--interface", "v0", "--proxy", "none", "--take-over"]);
        command.args(["--http", ADDRESS, "--guard", "external"]).args(options);
        command.arg("--run-dir").arg(self.folder.path().join("run"));
        command.stdin(input).stdout(file.try_clone()?).stderr(file);
        Ok(Pod { proc: Proc::spawn(&self.ns, command)?, objects, log })
    }

    /// As [`Node::start`], in the pod with this UID.
    fn pod(&self, uid: &str) -> Result<Pod> {
        self.start(uid, &["--pod-uid", uid])
    }

    fn cli(&self, args: &[&str], pod: Option<&str>) -> Result<Output> {
        let mut command = nodefence_command()?;
        command.args(args).arg("--run-dir").arg(self.folder.path().join("run"));
        if let Some(uid) = pod {
            command.env("NODEFENCE_POD_UID", uid);
        }
        Ok(self.ns.run(move || command.output())?)
    }

    /// The readiness probe in the pod with this UID. The reason where the pod is not ready.
    fn ready(&self, uid: &str) -> Result<Result<(), String>> {
        let output = self.cli(&["status", "--ready"], Some(uid))?;
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        match output.status.code() {
            Some(0) => {
                ensure!(said.is_empty() && output.stdout.is_empty(), "{output:?}");
                Ok(Ok(()))
            }
            Some(1 | 3) => Ok(Err(said)),
            _ => anyhow::bail!("{output:?}"),
        }
    }

    fn is_ready(&self, uid: &str) -> bool {
        matches!(self.ready(uid), Ok(Ok(())))
    }

    /// As [`Node::pod`], once the pod is ready.
    fn ready_pod(&self, uid: &str) -> Result<Pod> {
        let mut pod = self.pod(uid)?;
        pod.tell()?;
        self.await_ready(&pod, uid)?;
        Ok(pod)
    }

    fn await_ready(&self, pod: &Pod, uid: &str) -> Result<()> {
        wait_until(&format!("pod {uid} is ready"), LIMIT, || self.is_ready(uid))
            .map(drop)
            .with_context(|| format!("{:?}\n{}", self.ready(uid), pod.log()))
    }

    /// The process that answers at the socket.
    fn holder(&self) -> Result<i64> {
        let status: Value = Client::connect(&self.socket())?.ask(&Request::Status)?;
        status["pid"].as_i64().context("no pid")
    }

    /// The process that answers at the HTTP port. `None` while the port is closed.
    fn port(&self) -> Result<Option<i64>> {
        let to: SocketAddr = ADDRESS.parse()?;
        let mut stream = match self.ns.run(move || TcpStream::connect_timeout(&to, LIMIT)) {
            Err(error) if error.kind() == ErrorKind::ConnectionRefused => return Ok(None),
            stream => stream?,
        };
        stream.set_read_timeout(Some(LIMIT))?;
        stream.write_all(b"GET /v1/status HTTP/1.1\r\nHost: agent\r\n\r\n")?;
        let mut text = String::new();
        stream.read_to_string(&mut text)?;
        let (head, body) = text.split_once("\r\n\r\n").context("no answer")?;
        ensure!(head.starts_with("HTTP/1.1 200"), "{head}");
        Ok(serde_json::from_str::<Value>(body)?["pid"].as_i64())
    }

    fn await_port(&self, of: Option<&Pod>) -> Result<Duration> {
        let wanted = of.map(Pod::pid);
        wait_until(&format!("the port is that of {wanted:?}"), LIMIT, || {
            self.port().is_ok_and(|pid| pid == wanted)
        })
        .with_context(|| format!("{:?}", self.port()))
    }

    fn flag(&self) -> Result<u32> {
        let output = self.cli(&["flag", "node-b", "--reason", "test"], None)?;
        ensure!(output.status.success(), "{output:?}");
        let rows: Vec<NodeRow> = Client::connect(&self.socket())?.ask(&Request::Nodes)?;
        let row = rows.into_iter().find(|row| row.name == "node-b").context("no node-b")?;
        Ok(row.index)
    }

    fn is_cut(&self) -> Result<()> {
        let outcome = Conn::attempt(&self.ns, BACKEND.parse()?, Duration::from_secs(1)).conn;
        let outcome = outcome.map(drop).map_err(|error| Outcome::of(&error));
        ensure!(outcome == Err(Outcome::Refused), "{outcome:?}");
        Ok(())
    }
}

/// The agent of a pod.
struct Pod {
    proc: Proc,
    objects: PipeWriter,
    log: PathBuf,
}

impl Pod {
    fn tell(&mut self) -> Result<()> {
        Ok(self.objects.write_all(OBJECTS.as_bytes())?)
    }

    fn pid(&self) -> i64 {
        self.proc.pid().as_raw().into()
    }

    fn log(&self) -> String {
        read_to_string(&self.log).unwrap_or_default()
    }

    fn says(&self, event: &str) -> Result<()> {
        self.says_times(event, 1)
    }

    /// As [`Pod::says`], with the number of its lines.
    fn says_times(&self, event: &str, times: usize) -> Result<()> {
        let said = wait_until(event, LIMIT, || self.count(event) >= times);
        said.map(drop).with_context(|| self.log())
    }

    fn count(&self, event: &str) -> usize {
        self.log().matches(&format!("event=\"{event}\"")).count()
    }

    fn kill(&mut self) -> Result<()> {
        self.proc.signal(Signal::SIGKILL)?;
        self.proc.wait(LIMIT).map(drop)
    }

    /// What the process has open of BPF, and in the run folder.
    fn open(&self) -> Result<Vec<String>> {
        let mut found = Vec::new();
        for entry in fs::read_dir(format!("/proc/{}/fd", self.proc.pid()))? {
            // A descriptor may be closed meanwhile.
            if let Ok(target) = fs::read_link(entry?.path()) {
                found.push(target.to_string_lossy().into_owned());
            }
        }
        found.retain(|target| target.contains("bpf") || target.contains("/run/"));
        Ok(found)
    }

    fn stands_by(&mut self) -> Result<()> {
        self.says("stands-by")?;
        wait_until("nothing is open", LIMIT, || self.open().is_ok_and(|open| open.is_empty()))
            .with_context(|| format!("{:?}", self.open()))?;
        ensure!(self.proc.ended()?.is_none(), "it has ended: {}", self.log());
        Ok(())
    }

    /// Ends the agent that stands by.
    fn end(mut self) -> Result<()> {
        let begun = Instant::now();
        self.proc.signal(Signal::SIGTERM)?;
        let code = self.proc.wait(LIMIT)?.code();
        held("the end of an agent that stands by", ENDED, begun, begun.elapsed())?;
        ensure!(code == Some(0), "{code:?}: {}", self.log());
        Ok(())
    }
}

#[test]
fn the_new_pods_agent_takes_over_and_the_old_pods_stands_by() -> Result<()> {
    let node = Node::new()?;
    let mut old = node.ready_pod("old")?;
    node.await_port(Some(&old))?;
    let index = node.flag()?;
    node.is_cut()?;
    ensure!(old.open()?.len() > 5, "what is open is not seen: {:?}", old.open()?);

    let mut new = node.pod("new")?;
    // It has no view yet.
    node.await_port(None)?;
    ensure!(node.holder()? == old.pid() && node.is_ready("old"), "{}", old.log());
    let why = node.ready("new")?.err().context("the new pod is ready, and the old agent runs")?;
    ensure!(why.contains("pod old") && why.contains("pod new"), "{why}");
    node.is_cut()?;
    old.says("newcomer")?;

    new.tell()?;
    let mut lapsed = 0;
    wait_until("the new pod is ready", LIMIT, || {
        // The clock is read first, so that a stand-still between the two is no lapse.
        let now = monotonic_ns();
        lapsed += usize::from(verdict_until(&node.ns, index).is_ok_and(|until| until <= now));
        node.is_ready("new")
    })
    .with_context(|| new.log())?;
    if lapsed > 0 {
        // Where the machine stood still for so long, no agent could renew the verdict.
        return Err(missed(LAPSED, format!("the verdict lapsed while the agents changed\n{}", new.log())));
    }
    node.is_cut()?;
    node.await_port(Some(&new))?;
    let why = node.ready("old")?.err().context("the old pod is ready, and the new agent runs")?;
    ensure!(why.contains("pod new"), "{why}");
    old.stands_by()?;
    ensure!(node.holder()? == new.pid());
    old.end()?;

    // The kubelet starts the old pod's container again.
    let mut again = node.pod("old")?;
    again.tell()?;
    again.stands_by()?;
    ensure!(node.holder()? == new.pid() && node.port()? == Some(new.pid()) && node.is_ready("new"));
    node.is_cut()?;
    again.end()?;
    // The new pod's own container may be started again.
    new.proc.signal(Signal::SIGKILL)?;
    new.proc.wait(LIMIT)?;
    let _new = node.ready_pod("new")?;
    node.is_cut()
}

#[test]
fn the_old_agent_opens_its_port_again_where_the_newcomer_is_gone() -> Result<()> {
    let node = Node::new()?;
    let mut old = node.pod("old")?;
    old.tell()?;
    node.await_port(Some(&old))?;
    let index = node.flag()?;
    let mut new = node.pod("new")?;
    node.await_port(None)?;
    let killed = Instant::now();
    new.proc.signal(Signal::SIGKILL)?;
    new.proc.wait(LIMIT)?;
    let gone = Instant::now();
    wait_within("the old agent's port is open again", OPEN_AGAIN, gone, || {
        node.port().is_ok_and(|pid| pid == Some(old.pid()))
    })?;
    // Counted from before the signal, since the newcomer may be gone long before this test goes on.
    let closed = killed.elapsed();
    // A container that ended is soon started again, and the port would be opened for a moment.
    ensure!(closed > Duration::from_secs(4), "{closed:?}");
    ensure!(node.holder()? == old.pid() && node.is_ready("old"), "{}", old.log());
    ensure!(verdict_until(&node.ns, index)? > monotonic_ns());
    node.is_cut()
}

/// Nobody could ask this agent to hand over.
#[test]
fn a_pod_whose_agent_was_killed_is_taken_over_from_too() -> Result<()> {
    let node = Node::new()?;
    let mut old = node.ready_pod("old")?;
    old.proc.signal(Signal::SIGKILL)?;
    old.proc.wait(LIMIT)?;
    let new = node.ready_pod("new")?;
    let mut again = node.pod("old")?;
    again.stands_by()?;
    ensure!(node.holder()? == new.pid() && node.is_ready("new"), "{}", new.log());
    again.end()
}

#[test]
fn an_agent_that_is_off_hands_over_and_stands_by() -> Result<()> {
    let node = Node::new()?;
    let mut old = node.ready_pod("old")?;
    ensure!(node.cli(&["off"], None)?.status.success());
    node.await_ready(&old, "old")?;
    let new = node.ready_pod("new")?;
    node.await_port(Some(&new))?;
    old.stands_by()?;
    old.end()?;
    ensure!(node.cli(&["on"], None)?.status.success(), "{}", new.log());
    Ok(())
}

/// As where a rollout is rolled back in its middle.
#[test]
fn a_pod_that_was_taken_from_takes_the_node_again_once_nobody_has_it() -> Result<()> {
    let node = Node::new()?;
    let mut old = node.ready_pod("old")?;
    node.flag()?;
    let mut new = node.ready_pod("new")?;
    old.stands_by()?;
    new.kill()?;
    let gone = Instant::now();
    let why = node.ready("old")?.err().context("the old pod is ready, and no agent runs")?;
    ensure!(why.contains("took over from pod old") && why.contains("had it for 10s"), "{why}");
    let why = node.ready("new")?.err().context("the new pod is ready, and no agent runs")?;
    ensure!(!why.contains("stands by"), "{why}");
    wait_within("an agent that stands by takes the node again", VACANT + LOOKS, gone, || {
        old.count("takes-again") > 0
    })
    .with_context(|| old.log())?;
    ensure!(gone.elapsed() > VACANT - LOOKS, "{:?}: {}", gone.elapsed(), old.log());
    // It is the same process, and reads what comes from now on.
    old.says_times("view-awaited", 2)?;
    old.tell()?;
    node.await_ready(&old, "old")?;
    ensure!(node.holder()? == old.pid());
    node.await_port(Some(&old))?;
    node.is_cut()?;
    let status = String::from_utf8(node.cli(&["status"], None)?.stdout)?;
    ensure!(status.contains("pod old took this node again at "), "{status}");

    // The pod that was gone is started again, and takes over as before.
    let _new = node.ready_pod("new")?;
    old.says_times("stands-by", 2)?;
    node.is_cut()?;
    let status = String::from_utf8(node.cli(&["status"], None)?.stdout)?;
    ensure!(!status.contains("took this node again"), "{status}");
    old.end()
}

/// The new pod's agent fails again and again, and its container is started again soon enough.
#[test]
fn a_new_pod_that_comes_back_in_time_finds_the_node_free() -> Result<()> {
    let node = Node::new()?;
    let mut old = node.ready_pod("old")?;
    let mut new = node.ready_pod("new")?;
    old.stands_by()?;
    new.kill()?;
    // Together longer than the old pod's agent waits. Each of these has the lock, and ends before it runs.
    let begun = Instant::now();
    let mut starts = new.count("view-awaited");
    while begun.elapsed() < VACANT + VACANT / 2 {
        let mut failing = node.pod("new")?;
        starts += 1;
        failing.says_times("view-awaited", starts)?;
        failing.kill()?;
        std::thread::sleep(Duration::from_secs(2));
    }
    let new = node.ready_pod("new")?;
    ensure!(node.holder()? == new.pid());
    ensure!(old.count("takes-again") == 0, "{}", old.log());
    old.end()
}

/// Two agents that live do not take over from each other in turn, however long the old one waits.
#[test]
fn an_agent_that_lives_is_never_taken_from_by_one_that_stands_by() -> Result<()> {
    let node = Node::new()?;
    let vacant = ["--vacant-for", "1s"];
    let mut old = node.start("old", &[&["--pod-uid", "old"], &vacant[..]].concat())?;
    old.tell()?;
    node.await_ready(&old, "old")?;
    // This one stands still for a while once it has the node: it has the lock all the same.
    let mut new = node.start("new", &[&["--pod-uid", "new"], &vacant[..]].concat())?;
    new.tell()?;
    node.await_ready(&new, "new")?;
    old.stands_by()?;
    new.proc.signal(Signal::SIGSTOP)?;
    std::thread::sleep(Duration::from_secs(3));
    new.proc.signal(Signal::SIGCONT)?;
    std::thread::sleep(Duration::from_secs(3));
    ensure!(old.count("takes-again") == 0 && new.count("stands-by") == 0, "{}\n{}", old.log(), new.log());
    // A newcomer that waits for its view is not disturbed either, though nobody has the lock.
    let newest = node.pod("newest")?;
    node.await_port(None)?;
    new.kill()?;
    std::thread::sleep(Duration::from_secs(3));
    ensure!(old.count("takes-again") == 0, "{}\n{}", old.log(), newest.log());
    old.end()
}

/// As an agent that a service manager runs.
#[test]
fn agents_in_no_pod_keep_their_port_and_end() -> Result<()> {
    let node = Node::new()?;
    let mut old = node.start("old", &[])?;
    old.tell()?;
    node.await_port(Some(&old))?;
    let output = node.cli(&["status", "--ready"], None)?;
    ensure!(output.status.code() == Some(0), "{output:?}");
    let mut new = node.start("new", &[])?;
    new.says("view-awaited")?;
    let waited = Instant::now();
    while waited.elapsed() < Duration::from_secs(1) {
        ensure!(node.port()? == Some(old.pid()), "the port was closed");
    }
    new.tell()?;
    ensure!(old.proc.wait(LIMIT)?.code() == Some(0), "{}", old.log());
    node.await_port(Some(&new))?;
    ensure!(!old.log().contains("stands-by"), "{}", old.log());
    ensure!(!node.folder.path().join("run/agent.pods.json").exists());
    Ok(())
}
