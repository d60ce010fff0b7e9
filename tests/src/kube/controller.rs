//! `nodefence controller` beside a real API server, with exactly the rights that the manifests give it.

use std::{path::PathBuf, process::Stdio, time::Duration};

use anyhow::{Context as _, Result, ensure};
use nix::sys::signal::Signal;
use serde_json::Value;

use super::{ControlPlane, control::spawn, rights::CONTROLLER};
use crate::{Proc, client::wait_until, nodefence_command};

/// A generous limit, since the machine may be busy.
const LIMIT: Duration = Duration::from_secs(120);
/// The path of the Lease.
const LEASE: &str = "/apis/coordination.k8s.io/v1/namespaces/nodefence/leases/nodefence-controller";

/// A controller. Its process ends when this is dropped.
#[derive(Debug)]
pub struct Controller {
    proc: Proc,
    log: PathBuf,
}

impl Controller {
    /// Starts a controller. Does not wait for it.
    ///
    /// # Errors
    /// Fails if the binary is missing, or if it cannot be started.
    pub fn start(control: &ControlPlane, identity: &str) -> Result<Self> {
        let kubeconfig = control.kubeconfig_as(CONTROLLER)?;
        let log = kubeconfig.with_file_name(format!("controller-{identity}.log"));
        let mut command = nodefence_command()?;
        command.args(["controller", "--identity", identity, "--pool-label", "example.com/pool"]);
        command.arg("--kubeconfig").arg(&kubeconfig).stdin(Stdio::null());
        let proc = spawn(&control.ns, command, &log)?;
        Ok(Self { proc, log })
    }

    /// What it has logged.
    pub fn log(&self) -> String {
        std::fs::read_to_string(&self.log).unwrap_or_default()
    }

    /// Waits until it has logged an event.
    ///
    /// # Errors
    /// Fails if it ends, or does not log the event in time. The error includes the log.
    pub fn wait_for(&mut self, event: &str) -> Result<()> {
        let event = format!("event=\"{event}\"");
        let proc = &mut self.proc;
        let log = || std::fs::read_to_string(&self.log).unwrap_or_default();
        wait_until(&event, LIMIT, || log().contains(&event) || proc.ended().is_ok_and(|end| end.is_some()))
            .with_context(log)?;
        ensure!(log().contains(&event), "the controller ended:\n{}", log());
        Ok(())
    }

    /// Ends it with a signal. With SIGTERM it must end with 0.
    ///
    /// # Errors
    /// Fails if it does not end, or ends with another code. The error includes its log.
    pub fn end(mut self, signal: Signal) -> Result<()> {
        self.proc.signal(signal)?;
        let status = self.proc.wait(LIMIT).with_context(|| self.log())?;
        ensure!(signal != Signal::SIGTERM || status.success(), "{status}\n{}", self.log());
        self.lacks_no_right()
    }

    /// Checks that it lacked no right.
    ///
    /// # Errors
    /// The error includes its log.
    pub fn lacks_no_right(&self) -> Result<()> {
        let log = self.log();
        ensure!(!log.contains("forbidden") && !log.contains("panicked"), "{log}");
        Ok(())
    }

    /// Who holds the Lease. `None`: nobody.
    ///
    /// # Errors
    /// Fails with the server's error.
    pub fn holder(control: &ControlPlane) -> Result<Option<String>> {
        let lease: Value = control.api.get(LEASE)?;
        Ok(lease["spec"]["holderIdentity"].as_str().map(str::to_owned))
    }
}
