//! Runs the benchmark in mount, PID and network namespaces of its own. The benchmark changes nothing of the machine. However it ends (also by
//! Ctrl-C and SIGKILL), the kernel removes its processes, namespaces, devices, maps and pins.
#![expect(unsafe_code, reason = "a signal handler")]

use std::{os::unix::process::CommandExt as _, path::Path, process::Command};

use anyhow::{Context as _, bail};
use nix::{
    mount::{MsFlags, mount},
    sys::signal::{SaFlags, SigAction, SigHandler, SigSet, Signal, sigaction},
    unistd::write,
};
use nodefence_tests::netns::own_mounts;

/// The variable that marks the process inside the sandbox.
const INSIDE: &str = "NODEFENCE_BENCH_INSIDE";

/// Outside the sandbox: starts this program again inside it. Inside: sets up the rest of the sandbox.
pub(crate) fn enter() -> anyhow::Result<()> {
    if !nix::unistd::geteuid().is_root() {
        bail!("benchmarks make network namespaces and load BPF programs: run as root (or through sudo)");
    }
    if std::env::var_os(INSIDE).is_none() {
        let error = Command::new("unshare")
            .args(["--mount", "--pid", "--net", "--fork", "--kill-child=KILL", "--mount-proc", "--"])
            .arg(std::env::current_exe().context("cannot find this program")?)
            .args(std::env::args_os().skip(1))
            .env(INSIDE, "1")
            .exec();
        return Err(error).context("cannot start unshare (package util-linux)");
    }
    end_on_signals()?;
    own_mounts()?;
    mount(Some("run"), "/run", Some("tmpfs"), MsFlags::empty(), None::<&str>).context("cannot mount /run")?;
    // Agents write their files there too.
    if tempfile::env::override_temp_dir(Path::new("/run")).is_err() {
        bail!("the folder for temporary files was chosen already");
    }
    Ok(())
}

/// Ends this process on the usual signals. The first process of a PID namespace ignores signals for which it has no handler. The signals are
/// handled, not masked: children inherit a mask, and an agent that has SIGTERM blocked would not end when it is told to.
fn end_on_signals() -> anyhow::Result<()> {
    let action = SigAction::new(SigHandler::Handler(end), SaFlags::empty(), SigSet::empty());
    for signal in [Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP] {
        // SAFETY: the handler makes two system calls that are async-signal-safe (signal-safety(7)), and ends the process.
        unsafe { sigaction(signal, &action) }.with_context(|| format!("cannot handle {signal}"))?;
    }
    Ok(())
}

extern "C" fn end(_signal: nix::libc::c_int) {
    // An error is ignored: nothing depends on the line.
    let _ = write(std::io::stderr(), b"\nstopped; everything of the benchmark goes with it\n");
    // SAFETY: `_exit` is async-signal-safe and does not return.
    unsafe { nix::libc::_exit(130) }
}
