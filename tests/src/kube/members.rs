//! The kind NodeMember and its objects in a real API server. No controller runs that would write them.

use std::{net::IpAddr, process::Stdio, time::Duration};

use anyhow::{Context as _, Result, ensure};

use super::{
    ControlPlane, objects,
    orders::{FLAGS, SETTINGS},
};
use crate::{Cluster, Node, audit::BOTH, client::wait_until, nodefence_command};

/// How long a kind may take until the server serves it. On an idle machine it takes milliseconds.
const READY: Duration = Duration::from_secs(60);

/// The collection of NodeMembers.
pub const MEMBERS: &str = "/apis/nodefence.io/v1alpha1/nodemembers";

impl ControlPlane {
    /// Creates nodefence's CRDs by `nodefence crds --apply`, which waits until the server serves them.
    ///
    /// # Errors
    /// Fails if the command fails. The error includes its output.
    pub fn crds(&self) -> Result<()> {
        let mut command = nodefence_command()?;
        command.args(["crds", "--apply", "--kubeconfig"]).arg(self.kubeconfig()?);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        // The wait is outside of the namespace's thread, since others need that thread meanwhile.
        let child = self.ns.run(move || command.spawn()).context("start nodefence crds")?;
        let output = child.wait_with_output()?;
        let text = [output.stdout, output.stderr].map(|text| String::from_utf8_lossy(&text).into_owned());
        ensure!(output.status.success(), "nodefence crds --apply: {}\n{}", output.status, text.concat());
        // The server may say that a kind is established a moment before it takes requests for the kind.
        let all = || [MEMBERS, FLAGS, SETTINGS].iter().all(|kind| self.api.get(kind).is_ok());
        wait_until("the server serves all kinds", READY, all).map(drop)
    }

    /// Creates a NodeMember, or changes it to these addresses.
    ///
    /// # Errors
    /// Fails with the server's error.
    pub fn member(&self, name: &str, addresses: &[IpAddr]) -> Result<()> {
        self.object(MEMBERS, &objects::member(name, addresses))
    }

    /// Creates the NodeMember of a node of the small cluster, with an address of each IP version.
    ///
    /// # Errors
    /// Fails with the server's error.
    pub fn member_of(&self, node: &Node) -> Result<()> {
        self.member(node.name, &BOTH.map(|family| node.address(family)))
    }

    /// Creates the NodeMembers of the small cluster.
    ///
    /// # Errors
    /// Fails with the server's error.
    pub fn members(&self, cluster: &Cluster) -> Result<()> {
        [&cluster.a, &cluster.b, &cluster.c].into_iter().try_for_each(|node| self.member_of(node))
    }

    /// Deletes a NodeMember.
    ///
    /// # Errors
    /// Fails with the server's error.
    pub fn delete_member(&self, name: &str) -> Result<()> {
        self.api.delete(&format!("{MEMBERS}/{name}"))
    }
}
