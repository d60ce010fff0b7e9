//! What the incident needs of a cluster. The cluster of real kubelets has it, and a test has one made of processes and namespaces.

use std::net::Ipv4Addr;

use anyhow::Result;
use serde::{Deserialize, Serialize};

use crate::Netns;

/// A cluster in which a node can be frozen and flagged.
pub trait Cluster {
    /// Runs `kubectl` with these arguments and returns its standard output.
    ///
    /// # Errors
    /// Fails if kubectl fails. The error has its standard error.
    fn kubectl(&self, args: &[&str], stdin: Option<&str>) -> Result<String>;

    /// Freezes a node. Returns once it is frozen.
    ///
    /// # Errors
    /// Fails if the node is not frozen.
    fn freeze(&self, node: &str) -> Result<()>;

    /// Lets a frozen node go on.
    ///
    /// # Errors
    /// Fails if the node stays frozen.
    fn thaw(&self, node: &str) -> Result<()>;

    /// Flags a node. Returns once the flag exists: promised times begin at that moment. So what takes time before (a start of kubectl) belongs before the
    /// creation, and nothing that takes time may follow it.
    ///
    /// # Errors
    /// Fails if the flag was not created.
    fn flag(&self, node: &str) -> Result<()>;

    /// Deletes the flag of a node.
    ///
    /// # Errors
    /// Fails if the flag still exists.
    fn unflag(&self, node: &str) -> Result<()>;

    /// The address by which clients reach a node's NodePorts.
    ///
    /// # Errors
    /// Fails if there is no such node.
    fn address(&self, node: &str) -> Result<Ipv4Addr>;

    /// The namespace of the clients.
    fn clients(&self) -> &Netns;

    /// IPVS's table of a node as `ipvsadm -Ln` prints it. `None` where kube-proxy does not use IPVS.
    ///
    /// # Errors
    /// Fails if the table cannot be read.
    fn ipvs(&self, node: &str) -> Result<Option<String>>;

    /// When guests stood still between these two moments, as a watchdog in each guest measured it. Moments are CLOCK_MONOTONIC of this machine, in
    /// nanoseconds. A frozen node does not count while it is frozen. The clients' own process measures this machine itself.
    ///
    /// # Errors
    /// Fails if a watchdog has ended.
    fn stood_still(&self, from_ns: u64, to_ns: u64) -> Result<Vec<Still>>;
}

/// A time in which a guest stood still.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Still {
    /// The name of the guest's node.
    pub at: String,
    /// CLOCK_MONOTONIC of this machine at the beginning, in nanoseconds.
    pub from_ns: u64,
    /// CLOCK_MONOTONIC of this machine at the end, in nanoseconds.
    pub to_ns: u64,
}
