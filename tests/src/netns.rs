//! A network namespace and a mount namespace, held by a thread.

use std::{
    fs::File,
    io::Write as _,
    panic::{AssertUnwindSafe, catch_unwind, resume_unwind},
    path::PathBuf,
    process::{Command, Stdio},
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
        mpsc::{Sender, channel},
    },
    thread::JoinHandle,
};

use anyhow::{Context as _, Result, bail};
use nix::{
    mount::{MsFlags, mount},
    sched::{CloneFlags, setns, unshare},
    unistd::{Pid, gettid},
};

use crate::watch::Watch;

type Job = Box<dyn FnOnce() + Send>;

static COUNT: AtomicU32 = AtomicU32::new(0);

/// A network namespace. It has no name in the file system. The thread that holds it is the only way to it, and it ends with that thread. `/sys` inside shows
/// its own devices, and `/sys/fs/bpf` is a BPF filesystem of its own.
#[derive(Debug)]
pub struct Netns {
    name: String,
    tid: Pid,
    jobs: Option<Sender<Job>>,
    thread: Option<JoinHandle<()>>,
    _watch: Arc<Watch>,
}

impl Netns {
    /// Makes a namespace with the loopback device up. `label` is only for error messages.
    ///
    /// # Errors
    /// Fails without root, or if the kernel refuses a namespace or a mount.
    pub fn new(label: &str) -> Result<Self> {
        let this = Self::with_lo_down(label)?;
        this.ip("link set lo up")?;
        Ok(this)
    }

    /// Same as [`Netns::new`], with the loopback device down. It is for callers that set up more devices by one start of `ip`, which takes long on an emulated
    /// processor.
    ///
    /// # Errors
    /// Fails as [`Netns::new`] does.
    pub fn with_lo_down(label: &str) -> Result<Self> {
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let name = format!("{label}-{}-{count}", std::process::id());
        let (jobs, inbox) = channel::<Job>();
        let (ready, started) = channel();
        let thread = std::thread::Builder::new().name(name.clone()).spawn(move || {
            let entered = enter();
            let failed = entered.is_err();
            let _ = ready.send(entered);
            if failed {
                return;
            }
            for job in inbox {
                job();
            }
        })?;
        let tid = started.recv().context("namespace thread ended")?.context("these tests need root")?;
        Ok(Self { name, tid, jobs: Some(jobs), thread: Some(thread), _watch: Watch::here() })
    }

    /// The name for messages: the label, the process id and a counter.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The path of the namespace's file, for `ip link ... netns PATH`.
    pub fn path(&self) -> PathBuf {
        PathBuf::from(format!("/proc/{}/task/{}/ns/net", std::process::id(), self.tid))
    }

    /// Runs a closure in the namespace's thread and waits for it. A panic goes on in the caller. Threads, sockets and processes that the closure makes belong
    /// to the namespace.
    pub fn run<T: Send + 'static>(&self, work: impl FnOnce() -> T + Send + 'static) -> T {
        let (done, result) = channel();
        let job = Box::new(move || {
            let _ = done.send(catch_unwind(AssertUnwindSafe(work)));
        });
        let sent = self.jobs.as_ref().is_some_and(|jobs| jobs.send(job).is_ok());
        assert!(sent, "namespace {} is gone", self.name);
        match result.recv() {
            Ok(Ok(value)) => value,
            Ok(Err(panic)) => resume_unwind(panic),
            Err(_) => panic!("the thread of namespace {} ended", self.name),
        }
    }

    /// Runs a closure in a new thread in the network namespace and waits for it. Changes that the closure makes to its thread (its processors, its table of
    /// files) end with that thread. The thread may use only the caller's processors. Mounts are the caller's.
    ///
    /// # Errors
    /// Fails with the closure's error, or if the namespace is gone.
    pub fn within<T: Send>(&self, work: impl FnOnce() -> Result<T> + Send) -> Result<T> {
        let net = File::open(self.path())?;
        std::thread::scope(|scope| {
            let inside = scope.spawn(|| {
                setns(net, CloneFlags::CLONE_NEWNET)?;
                work()
            });
            inside.join().unwrap_or_else(|panic| resume_unwind(panic))
        })
        .with_context(|| format!("in namespace {}", self.name))
    }

    /// Same as [`Netns::within`], but does not wait for the end of the thread.
    ///
    /// # Errors
    /// Fails if the namespace is gone, or if no thread can be started.
    pub fn spawn<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> Result<T> + Send + 'static,
    ) -> Result<JoinHandle<Result<T>>> {
        let net = File::open(self.path())?;
        let inside = move || {
            setns(net, CloneFlags::CLONE_NEWNET)?;
            work()
        };
        Ok(std::thread::Builder::new().name(self.name.clone()).spawn(inside)?)
    }

    /// Runs a command line, split at spaces. Returns its standard output.
    ///
    /// # Errors
    /// Fails if the command cannot be started or fails. The error includes the command's standard error.
    pub fn exec(&self, line: &str) -> Result<String> {
        self.feed(line, "")
    }

    /// Runs lines of `ip` commands (without the word `ip`) in one process.
    ///
    /// # Errors
    /// Fails at the first line that fails.
    pub fn ip(&self, script: &str) -> Result<()> {
        let lines: Vec<&str> = script.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
        self.feed("ip -batch -", &lines.join("\n")).with_context(|| lines.join("; ")).map(drop)
    }

    /// Applies an nftables script as one transaction.
    ///
    /// # Errors
    /// Fails with the error of `nft`.
    pub fn nft(&self, script: &str) -> Result<()> {
        self.feed("nft -f -", script).with_context(|| script.to_owned()).map(drop)
    }

    /// Writes a sysctl of the namespace. `key` is a path below `/proc/sys/net`, such as `ipv4/ip_forward`.
    ///
    /// # Errors
    /// Fails if there is no such sysctl, or if the kernel refuses the value.
    pub fn sysctl(&self, key: &str, value: &str) -> Result<()> {
        let path = format!("/proc/sys/net/{key}");
        let value = value.to_owned();
        self.run(move || std::fs::write(&path, value).with_context(|| path))
    }

    /// Makes a veth pair from this namespace to `peer`. Both ends are up and have no addresses.
    ///
    /// # Errors
    /// Fails with the error of `ip`.
    pub fn veth(&self, device: &str, peer: &Self, peer_device: &str) -> Result<()> {
        let path = peer.path();
        self.ip(&format!(
            "link add {device} type veth peer name {peer_device} netns {}
             link set {device} up",
            path.display()
        ))?;
        peer.ip(&format!("link set {peer_device} up"))
    }

    /// The Ethernet address of a device.
    ///
    /// # Errors
    /// Fails if there is no such device.
    pub fn mac(&self, device: &str) -> Result<String> {
        let path = format!("/sys/class/net/{device}/address");
        let text = self.run(move || std::fs::read_to_string(&path).with_context(|| path))?;
        Ok(text.trim().to_owned())
    }

    /// The index of a device.
    ///
    /// # Errors
    /// Fails if there is no such device.
    pub fn ifindex(&self, device: &str) -> Result<u32> {
        let name = device.to_owned();
        self.run(move || {
            nix::net::if_::if_nametoindex(name.as_str()).with_context(|| format!("device {name}"))
        })
    }

    /// Runs a command line with `input` as its standard input. Returns its standard output.
    ///
    /// # Errors
    /// Fails as [`Netns::exec`] does.
    pub fn feed(&self, line: &str, input: &str) -> Result<String> {
        let line = line.to_owned();
        let input = input.to_owned();
        let name = self.name.clone();
        self.run(move || feed(&line, &input).with_context(|| format!("`{line}` in namespace {name}")))
    }
}

impl Drop for Netns {
    fn drop(&mut self) {
        drop(self.jobs.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn enter() -> Result<Pid> {
    unshare(CloneFlags::CLONE_NEWNET | CloneFlags::CLONE_NEWNS)
        .context("unshare network and mount namespace")?;
    own_mounts()?;
    Ok(gettid())
}

/// Mounts `/sys` of the calling thread's network namespace, and a BPF filesystem in it, in the thread's mount namespace. No mount propagates out of that
/// namespace.
///
/// # Errors
/// Fails with the kernel's error.
pub fn own_mounts() -> Result<()> {
    let none: Option<&str> = None;
    mount(none, "/", none, MsFlags::MS_REC | MsFlags::MS_PRIVATE, none).context("make mounts private")?;
    // A sysfs shows the devices of the network namespace in which it was mounted.
    mount(Some("sysfs"), "/sys", Some("sysfs"), MsFlags::empty(), none).context("mount /sys")?;
    mount(Some("bpf"), "/sys/fs/bpf", Some("bpf"), MsFlags::empty(), none).context("mount /sys/fs/bpf")
}

fn feed(line: &str, input: &str) -> Result<String> {
    let mut words = line.split_whitespace();
    let program = words.next().context("empty command")?;
    let mut child = Command::new(program)
        .args(words)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .with_context(|| format!("start {program}; is it installed?"))?;
    if let Some(mut stdin) = child.stdin.take() {
        // An error is ignored: a program that reads nothing may have ended already, and its exit code shows a failure.
        let _ = stdin.write_all(input.as_bytes());
    }
    let output = child.wait_with_output()?;
    if !output.status.success() {
        bail!("{}: {}", output.status, String::from_utf8_lossy(&output.stderr).trim());
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}
