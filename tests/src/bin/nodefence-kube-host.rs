//! Runs a program in a network namespace of its own, with an API server on loopback. The program is QEMU, whose guest reaches that server at its host's
//! address.
//!
//! `nodefence-kube-host PROGRAM [ARGUMENT...]`: the streams are the program's. The exit code says whether the program succeeded.

use std::{process::Command, sync::Arc, time::Duration};

use anyhow::{Context as _, Result};
use nodefence_tests::{Netns, Proc, kube::ControlPlane};

fn main() -> Result<std::process::ExitCode> {
    let mut arguments = std::env::args_os().skip(1);
    let mut command = Command::new(arguments.next().context("which program?")?);
    command.args(arguments);
    let ns = Arc::new(Netns::new("kube-host")?);
    let _control = ControlPlane::start(&ns)?;
    let mut program = Proc::spawn(&ns, command)?;
    let status = program.wait(Duration::MAX)?;
    Ok(if status.success() { std::process::ExitCode::SUCCESS } else { std::process::ExitCode::FAILURE })
}
