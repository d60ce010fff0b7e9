//! One guest: QEMU, and the way to what runs inside.

use std::{
    path::{Path, PathBuf},
    process::{Command, Stdio},
    sync::Arc,
    time::Duration,
};

use anyhow::{Context as _, Result, bail};

use super::{
    guest,
    message::{Guest, Request},
    plan::Plan,
    waiting::Waiting,
    wire,
};
use crate::{Netns, Proc, kube::control::tail};

/// From the start of QEMU until the guest serves the host, on a machine that is busy with other guests.
const BOOT: Duration = Duration::from_secs(300);

/// How long a request to a guest may take that only starts something.
const SHORT: Duration = Duration::from_secs(60);

/// A guest. It ends when this is dropped.
#[derive(Debug)]
pub(super) struct Machine {
    /// The number of its node.
    pub(super) node: u8,
    ns: Arc<Netns>,
    qemu: Proc,
    guest: Guest,
    console: PathBuf,
}

impl Machine {
    /// Starts a guest. Does not wait for it.
    pub(super) fn start(ns: &Arc<Netns>, plan: &Plan, node: u8) -> Result<Self> {
        let console = plan.out.join(format!("{}.console", wire::name(node)));
        let (program, options) = plan.qemu.split_first().context("the plan names no QEMU")?;
        let mut command = Command::new(program);
        command.args(options).args(["-m", &plan.memory.to_string()]);
        command.args(["-nodefaults", "-no-user-config", "-no-reboot", "-display", "none"]);
        command.arg("-chardev").arg(format!("file,id=console,path={}", console.display()));
        command.args(["-serial", "chardev:console"]);
        command.args(["-object", "rng-random,id=rng,filename=/dev/urandom"]);
        command.args(["-device", "virtio-rng-pci,rng=rng"]);
        command.arg("-netdev").arg(format!("tap,id=wire,ifname={},script=no,downscript=no", wire::tap(node)));
        command.arg("-device").arg(format!("virtio-net-pci,netdev=wire,mac={}", wire::mac(node)));
        command.arg("-kernel").arg(&plan.kernel).arg("-initrd").arg(&plan.initramfs);
        command.arg("-append").arg(format!("{} {}={node}", plan.parameters, guest::NODE));
        command.stdin(Stdio::null()).stdout(Stdio::null());
        let qemu = Proc::spawn(ns, command)?;
        let guest = Guest { address: wire::address(node) };
        Ok(Self { node, ns: Arc::clone(ns), qemu, guest, console })
    }

    /// Waits until the guest serves the host.
    pub(super) fn until_up(&mut self, waiting: &Waiting) -> Result<()> {
        let what = format!("{} serves the host", wire::name(self.node));
        waiting
            .until(&what, BOOT, || {
                if let Some(status) = self.qemu.ended()? {
                    bail!(
                        "QEMU of {} ended with {status}; the console:\n{}",
                        wire::name(self.node),
                        self.log()
                    );
                }
                let line = "true".to_owned();
                Ok(self.guest.ask(&self.ns, &Request::Run { line }, SHORT).map(drop))
            })
            .with_context(|| format!("the console of {}:\n{}", wire::name(self.node), self.log()))
    }

    /// The way to the guest.
    pub(super) const fn guest(&self) -> Guest {
        self.guest
    }

    /// The last lines of the guest's console.
    fn log(&self) -> String {
        tail(&self.console)
    }

    /// Writes a file in the guest.
    pub(super) fn put(&self, path: &str, text: &str) -> Result<()> {
        let (path, text) = (path.to_owned(), text.to_owned());
        self.guest.ask(&self.ns, &Request::Put { path, text }, SHORT).map(drop)
    }

    /// Starts a program in the guest that goes on running.
    pub(super) fn begin(&self, name: &str, words: &[&str]) -> Result<()> {
        let (name, words) = (name.to_owned(), words.iter().map(|word| (*word).to_owned()).collect());
        self.guest.ask(&self.ns, &Request::Start { name, words }, SHORT).map(drop)
    }

    /// Runs a line of `sh` in the guest.
    pub(super) fn run(&self, line: &str, limit: Duration) -> Result<String> {
        self.guest.ask(&self.ns, &Request::Run { line: line.to_owned() }, limit)
    }

    /// Freezes all processes of the guest, or lets them go on.
    pub(super) fn freeze(&self, is_frozen: bool) -> Result<()> {
        let request = if is_frozen { Request::Freeze } else { Request::Thaw };
        self.guest.ask(&self.ns, &request, SHORT).map(drop)
    }

    /// Copies the logs of the guest's programs into a folder of the host.
    pub(super) fn save_logs(&self, out: &Path) {
        for name in ["containerd", "kubelet", "kube-proxy"] {
            // A guest that is frozen or gone has no more to tell than its console.
            let Ok(log) = self.run(&format!("cat /var/log/{name}"), SHORT) else { continue };
            let _unwritten = std::fs::write(out.join(format!("{}.{name}.log", wire::name(self.node))), log);
        }
        // Those of pods that were deleted are gone.
        if let Ok(log) = self.run("tail -n +1 /var/log/pods/nodefence_*/*/*.log", SHORT) {
            let _unwritten = std::fs::write(out.join(format!("{}.pods.log", wire::name(self.node))), log);
        }
    }
}
