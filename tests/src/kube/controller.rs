//! `nodefence controller` beside a real API server, with exactly the rights that docs/kubernetes.md gives it.

use std::{path::PathBuf, process::Stdio, time::Duration};

use anyhow::{Context as _, Result, bail, ensure};
use nix::sys::signal::Signal;
use serde_json::{Value, json};

use super::{ControlPlane, control::spawn};
use crate::{Proc, client::wait_until, nodefence_command};

/// A generous limit, since the machine may be busy.
const LIMIT: Duration = Duration::from_secs(120);
/// The user that the controllers are at the API server.
const USER: &str = "nodefence-controller";
/// The namespace of the Lease.
const NAMESPACE: &str = "nodefence";
/// The path of the Lease.
const LEASE: &str = "/apis/coordination.k8s.io/v1/namespaces/nodefence/leases/nodefence-controller";
const ROLES: &str = "/apis/rbac.authorization.k8s.io/v1";
const PAGE: &str = include_str!("../../../docs/kubernetes.md");

/// A controller. Its process ends when this is dropped.
#[derive(Debug)]
pub struct Controller {
    proc: Proc,
    log: PathBuf,
}

impl Controller {
    /// Gives controllers the documented rights and a namespace for their Lease.
    ///
    /// # Errors
    /// Fails with the server's error, or if the page has no such roles.
    pub fn allow(control: &ControlPlane) -> Result<()> {
        let namespace = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}});
        control.object("/api/v1/namespaces", &namespace)?;
        let subjects = json!([{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": USER}]);
        for (kind, plural, folder) in [
            ("ClusterRole", "clusterroles", ROLES.to_owned()),
            ("Role", "roles", format!("{ROLES}/namespaces/{NAMESPACE}")),
        ] {
            control.api.apply_yaml(&format!("{folder}/{plural}/{USER}"), &documented(kind)?)?;
            let binding = json!({
                "apiVersion": "rbac.authorization.k8s.io/v1", "kind": format!("{kind}Binding"), "metadata": {"name": USER},
                "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": kind, "name": USER},
                "subjects": subjects,
            });
            let bindings = plural.replace("roles", "rolebindings");
            control.object(&format!("{folder}/{bindings}"), &binding)?;
        }
        Ok(())
    }

    /// Starts a controller. Does not wait for it.
    ///
    /// # Errors
    /// Fails if the binary is missing, or if it cannot be started.
    pub fn start(control: &ControlPlane, identity: &str) -> Result<Self> {
        let kubeconfig = control.kubeconfig_as(USER)?;
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

/// The role of this kind in the page's section on the controller.
fn documented(kind: &str) -> Result<String> {
    let wanted = format!("kind: {kind}\nmetadata: {{ name: {USER}");
    for block in PAGE.split("```yaml\n").skip(1).filter_map(|block| block.split("```").next()) {
        for document in block.split("---\n") {
            if document.contains(&wanted) {
                return Ok(document.to_owned());
            }
        }
    }
    bail!("docs/kubernetes.md has no {kind} {USER}")
}
