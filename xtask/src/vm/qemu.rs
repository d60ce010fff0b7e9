//! Boots one virtual machine.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};

use super::kernel::Prepared;
use crate::process;

/// Fails if this machine cannot boot the guests.
pub(crate) fn check_machine() -> Result<()> {
    if std::env::consts::ARCH != "x86_64" {
        bail!("VMs boot this machine's own programs, and kernels for amd64: they need an x86_64 machine");
    }
    Ok(())
}

/// A guest to boot.
#[derive(Debug)]
pub(crate) struct Guest<'a> {
    pub(crate) kernel: &'a Prepared,
    /// The parts of the initramfs, without the kernel's modules.
    pub(crate) parts: &'a [&'a Path],
    /// The folder for the joined initramfs and the logs.
    pub(crate) folder: &'a Path,
    /// The stem of the log files' names.
    pub(crate) name: &'a str,
    /// More kernel parameters. Init exports `nodefence.x=y` as `NODEFENCE_X=y`.
    pub(crate) parameters: &'a str,
    /// QEMU's options for network devices.
    pub(crate) network: &'a [String],
    /// The program that runs QEMU, and gets QEMU's command as its arguments. It needs root. `None`: QEMU is started directly.
    pub(crate) host: Option<&'a Path>,
}

/// Kernel parameters for an emulated processor. They switch off what costs it much and is not tested: retpolines, grace periods, the clearing of pages
/// and objects when they are allocated. Programs stay at the same addresses, so they are translated once and not at every start; each then takes a
/// quarter of the processor time. Timers are the HPET, whose rate is known. The rate of other timers is measured at boot, against a clock that stands still
/// while the host is busy. (Seen: a local APIC's timer at half its rate, with which an idle kernel slept through whole turns of the PM timer's 24 bits, found
/// that no time had passed, and so slept for ever.)
const QUICK: &str = "mitigations=off nokaslr norandmaps init_on_alloc=0 hardened_usercopy=off rcupdate.rcu_expedited=1 \
    nolapic_timer audit=0 apparmor=0 selinux=0";

/// Kernel parameters for the clock of an emulated machine: the HPET too, for the same reason. (Seen: a TSC four times too fast.)
pub(crate) const HPET: &str = "tsc=unstable clocksource=hpet";

/// The emulator.
pub(crate) const QEMU: &str = "qemu-system-x86_64";

/// QEMU's options for processors.
pub(crate) fn processors() -> [&'static str; 6] {
    // TCG is enough. KVM is faster.
    if has_kvm() {
        ["-accel", "kvm", "-cpu", "max", "-smp", "2"]
    } else {
        // Without cmpxchg16b (cx16): under TCG of QEMU 7.2.22 the packet fuzz on kernel 6.12 failed four times of four, with oopses (two
        // with stray bits in EFLAGS, one right after a cmpxchg16b of the slab allocator), heap corruption or wrong bytes. Without
        // the feature it passed three times of three. That the instruction is the cause is inferred from this.
        // Without ERMS and FSRM the kernel clears and copies by words. TCG executes `rep stosb` byte by byte.
        // With several processors TCG makes every locked instruction a locked one of the host, and each processor waits for the
        // other at every change of code. Starting programs took twice the processor time (QEMU 7.2).
        ["-accel", "tcg", "-cpu", "max,-cx16,-erms,-fsrm", "-smp", "1"]
    }
}

/// The kernel's parameters in every guest, with those for an emulated machine's clock. A panic ends the machine at once (-no-reboot). An oops is a panic, since tests must not go on in a broken kernel.
/// The check of timers is off: on a busy host an emulated timer may tick too late for that check, and the kernel would panic.
pub(crate) fn parameters(clock: &str) -> String {
    let more = if has_kvm() { String::new() } else { format!("{QUICK} {clock}") };
    format!("console=ttyS0 loglevel=5 panic=-1 oops=panic no_timer_check random.trust_cpu=on {more}")
}

/// How a boot ended.
#[derive(Debug)]
pub(crate) struct Ended {
    /// Whether the guest ended by itself. Otherwise it was killed at the limit.
    pub(crate) by_itself: bool,
    /// The kernel's log.
    pub(crate) console: PathBuf,
}

impl Guest<'_> {
    /// Boots the guest, passes each line of the second serial line to `on_line`, and waits for the guest's end.
    pub(crate) fn boot(&self, limit: Duration, on_line: impl FnMut(&str)) -> Result<Ended> {
        let console = self.folder.join(format!("{}.console", self.name));
        let initramfs = self.folder.join(format!("{}.initramfs", self.name));
        join(self.parts.iter().copied().chain([&*self.kernel.modules]), &initramfs)?;
        let ended = process::stream(&mut self.command(&console, &initramfs), limit, on_line);
        fs::remove_file(&initramfs)?;
        Ok(Ended { by_itself: ended?.is_some(), console })
    }

    fn command(&self, console: &Path, initramfs: &Path) -> Command {
        let mut command = match self.host {
            Some(host) => process::root_command(host),
            None => process::command(QEMU),
        };
        if self.host.is_some() {
            command.arg(QEMU);
        }
        command.args(processors()).args(["-m", "2048"]);
        command.args(["-nodefaults", "-no-user-config", "-no-reboot", "-display", "none"]);
        command.arg("-chardev").arg(format!("file,id=console,path={}", console.display()));
        command.args([
            "-serial",
            "chardev:console",
            "-chardev",
            "stdio,id=results,signal=off",
            "-serial",
            "chardev:results",
        ]);
        command.args([
            "-object",
            "rng-random,id=rng,filename=/dev/urandom",
            "-device",
            "virtio-rng-pci,rng=rng",
        ]);
        if self.network.is_empty() {
            command.args(["-nic", "none"]);
        }
        command.args(self.network);
        command.arg("-kernel").arg(&self.kernel.image).arg("-initrd").arg(initramfs);
        command.arg("-append").arg(format!("{} {}", parameters(HPET), self.parameters));
        command
    }
}

/// Whether KVM can be used. Some sandboxes have a /dev/kvm with which no guest starts. The processor flags there name no virtualisation, so the flags
/// are checked too.
fn has_kvm() -> bool {
    let flags = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let able = flags.split_whitespace().any(|flag| flag == "vmx" || flag == "svm");
    able && File::options().read(true).write(true).open("/dev/kvm").is_ok()
}

/// Joins the parts of an initramfs. The kernel reads archives that follow each other, if each is padded to four bytes.
pub(crate) fn join<'a>(parts: impl Iterator<Item = &'a Path>, whole: &Path) -> Result<()> {
    let mut out = File::create(whole).with_context(|| format!("cannot create {}", whole.display()))?;
    for part in parts {
        let mut part = File::open(part).with_context(|| format!("cannot open {}", part.display()))?;
        io::copy(&mut part, &mut out)?;
    }
    Ok(())
}
