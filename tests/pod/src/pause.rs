//! The first process of a pod's sandbox: it holds the namespaces, and takes in processes that lost their parent.

use anyhow::Result;
use nix::{
    sys::{
        signal::{SigSet, Signal},
        wait::{WaitPidFlag, WaitStatus, waitpid},
    },
    unistd::Pid,
};

/// Returns at SIGTERM or SIGINT. The kernel ignores both for the first process of a namespace that neither handles nor awaits them (signal(7),
/// pid_namespaces(7)).
pub(crate) fn run() -> Result<()> {
    let awaited: SigSet = [Signal::SIGTERM, Signal::SIGINT, Signal::SIGCHLD].into_iter().collect();
    awaited.thread_block()?;
    loop {
        match awaited.wait()? {
            Signal::SIGCHLD => take_in(),
            _ => return Ok(()),
        }
    }
}

/// Takes in all processes that have ended. One signal may stand for several.
fn take_in() {
    let none = None::<Pid>;
    while waitpid(none, Some(WaitPidFlag::WNOHANG)).is_ok_and(|status| status != WaitStatus::StillAlive) {}
}
