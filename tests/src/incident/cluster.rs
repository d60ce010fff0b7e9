//! What the incident needs of a cluster. The cluster of real kubelets has it, and a test has one made of processes and namespaces.

use std::net::Ipv4Addr;

use anyhow::Result;
use serde::{Deserialize, Serialize};

use super::scenario::Scenario;
use crate::Netns;

/// A cluster in which a node can be frozen and flagged.
pub trait Cluster {
    /// Runs `kubectl` with these arguments and returns its standard output.
    ///
    /// # Errors
    /// Fails if kubectl fails. The error has its standard error.
    fn kubectl(&self, args: &[&str], stdin: Option<&str>) -> Result<String>;

    /// Starts a node that is off, and waits until it is ready. Does nothing to a node that runs.
    ///
    /// # Errors
    /// Fails if the node does not start.
    fn start(&self, node: &str) -> Result<()>;

    /// Makes happen to a node what the scenario has: freezes it, for example. Returns once it has happened.
    ///
    /// # Errors
    /// Fails if it does not happen.
    fn freeze(&self, scenario: Scenario, node: &str) -> Result<()>;

    /// Lets the node go on. Is not called where the scenario has no way back.
    ///
    /// # Errors
    /// Fails if the node does not go on.
    fn thaw(&self, scenario: Scenario, node: &str) -> Result<()>;

    /// Flags a node, in the way that the scenario leaves. Returns once the flag exists, the last one of several: promised times begin at that moment. So what takes time before (a start of kubectl) belongs before the
    /// creation, and nothing that takes time may follow it.
    ///
    /// # Errors
    /// Fails if the flag was not created.
    fn flag(&self, scenario: Scenario, node: &str) -> Result<()>;

    /// Deletes the flag of a node.
    ///
    /// # Errors
    /// Fails if the flag still exists.
    fn unflag(&self, scenario: Scenario, node: &str) -> Result<()>;

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
