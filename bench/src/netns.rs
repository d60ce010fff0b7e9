//! Network namespaces held by a file descriptor, and the devices between them.
use std::{fs::File, process::Command, thread::JoinHandle};

use anyhow::{Context as _, bail};
use nix::sched::{CloneFlags, setns, unshare};

/// A network namespace; gone with its last process, socket and descriptor.
pub(crate) struct Netns {
    file: File,
    name: String,
}

impl Netns {
    /// A fresh one with its loopback up.
    pub(crate) fn new(name: &str) -> anyhow::Result<Self> {
        let file = std::thread::spawn(|| -> anyhow::Result<File> {
            unshare(CloneFlags::CLONE_NEWNET)?;
            Ok(File::open("/proc/thread-self/ns/net")?)
        })
        .join()
        .map_err(|_| anyhow::anyhow!("the thread that makes a namespace panicked"))?
        .with_context(|| format!("cannot make network namespace {name}"))?;
        let made = Self { file, name: name.to_owned() };
        made.run("ip", &["link", "set", "lo", "up"])?;
        Ok(made)
    }

    /// Puts the calling thread inside, for good.
    pub(crate) fn enter(&self) -> anyhow::Result<()> {
        setns(&self.file, CloneFlags::CLONE_NEWNET)
            .with_context(|| format!("cannot enter network namespace {}", self.name))
    }

    /// Runs `work` on a thread inside; processes it starts are inside too.
    pub(crate) fn within<T: Send>(
        &self,
        work: impl FnOnce() -> anyhow::Result<T> + Send,
    ) -> anyhow::Result<T> {
        std::thread::scope(|scope| {
            scope
                .spawn(|| {
                    self.enter()?;
                    work()
                })
                .join()
                .map_err(|_| anyhow::anyhow!("a thread in network namespace {} panicked", self.name))?
        })
    }

    /// Starts a thread inside.
    pub(crate) fn spawn<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> anyhow::Result<T> + Send + 'static,
    ) -> anyhow::Result<JoinHandle<anyhow::Result<T>>> {
        let file = self.file.try_clone()?;
        Ok(std::thread::spawn(move || {
            setns(file, CloneFlags::CLONE_NEWNET).context("cannot enter a network namespace")?;
            work()
        }))
    }

    /// Runs a program inside; its output, or an error with what it wrote.
    pub(crate) fn run(&self, program: &str, args: &[&str]) -> anyhow::Result<String> {
        self.within(|| run(Command::new(program).args(args)))
    }

    /// Runs a line of `ip` inside.
    pub(crate) fn ip(&self, line: &str) -> anyhow::Result<String> {
        self.run("ip", &line.split_whitespace().collect::<Vec<_>>())
    }

    /// Sets a sysctl inside (`net/ipv4/ip_forward`).
    pub(crate) fn sysctl(&self, key: &str, value: &str) -> anyhow::Result<()> {
        let path = format!("/proc/sys/{key}");
        self.within(|| {
            std::fs::write(&path, value).with_context(|| format!("cannot write {value} to {path}"))
        })
    }

    /// The Ethernet address of a device inside.
    pub(crate) fn mac(&self, device: &str) -> anyhow::Result<String> {
        let link = self.ip(&format!("-o link show dev {device}"))?;
        link.split_whitespace()
            .skip_while(|word| *word != "link/ether")
            .nth(1)
            .map(str::to_owned)
            .with_context(|| format!("no Ethernet address on {device}: {link}"))
    }

    /// A veth pair from here to `peer`; both ends up, without addresses.
    pub(crate) fn veth(&self, device: &str, peer: &Netns, peer_device: &str) -> anyhow::Result<()> {
        self.ip(&format!("link add {device} type veth peer name {peer_device}"))?;
        // The other namespace has no name that ip could resolve, so the device moves by this process's descriptor.
        let fd = std::os::fd::AsRawFd::as_raw_fd(&peer.file);
        let path = format!("/proc/{}/fd/{fd}", std::process::id());
        self.run("ip", &["link", "set", peer_device, "netns", &path])?;
        self.ip(&format!("link set {device} up"))?;
        peer.ip(&format!("link set {peer_device} up"))?;
        Ok(())
    }
}

/// Runs a command to its end; its output, or an error with what it wrote.
pub(crate) fn run(command: &mut Command) -> anyhow::Result<String> {
    let output = command
        .output()
        .with_context(|| format!("cannot start {}", command.get_program().to_string_lossy()))?;
    if !output.status.success() {
        bail!("{command:?} failed: {}", String::from_utf8_lossy(&output.stderr).trim());
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}
