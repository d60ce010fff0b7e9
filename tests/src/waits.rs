//! Measures how long clients of a flagged node wait until their own sockets report an end, over protocols that the small cluster's Services lack. A Service of
//! one port has a pod on node B and one on node C, behind rules like those of kube-proxy's nftables mode.

use std::{
    fmt::{Debug, Display},
    net::{IpAddr, SocketAddr},
    sync::Arc,
    thread::JoinHandle,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, anyhow, ensure};

use crate::{
    Agent, Cluster, Family, Netns, Node, Options, Proc, bin,
    checks::SOON,
    client::wait_until,
    watch::{bounded, figure},
};

/// The Service's ClusterIP.
const CLUSTER_IP: [u8; 4] = [10, 96, 0, 30];
/// The Service's address for the client outside.
const OUTSIDE: [u8; 4] = [192, 0, 2, 1];

/// A cluster with that Service, and an agent that knows the Service and rescues.
#[derive(Debug)]
pub struct Served {
    /// The cluster.
    pub cluster: Cluster,
    /// The agent on node A.
    pub agent: Agent,
    port: u16,
    _servers: Vec<Proc>,
}

impl Served {
    /// Builds the cluster. `protocol` is the name in the cluster file and in nftables. `server` is the protocol in the argument of `nodefence-peer`, or `None`
    /// if the test serves by itself.
    ///
    /// # Errors
    /// Fails if the kernel lacks the protocol, or if the agent does not come up.
    pub fn new(protocol: &str, port: u16, server: Option<&str>) -> Result<Self> {
        let cluster = Cluster::new(Options::default())?;
        let [b, c] = [&cluster.b, &cluster.c].map(|node| node.pod_address(Family::V4));
        let [inside, outside] = [CLUSTER_IP, OUTSIDE].map(IpAddr::from);
        // The rules come before the cluster's own rules. They pick backends in turn and not at random, so that a rescued client does not meet the same pod
        // again and again.
        cluster.a.ns.nft(&format!(
            "table ip served {{
                chain pick {{
                    type nat hook prerouting priority -110;
                    ip daddr {{ {inside}, {outside} }} {protocol} dport {port} dnat to numgen inc mod 2 map {{ 0 : {b}, 1 : {c} }}
                }}
                chain hide {{
                    type nat hook postrouting priority 90;
                    ip saddr 192.0.2.0/24 {protocol} dport {port} masquerade
                }}
            }}"
        ))?;
        let serve = |node: &Node, what: &str| {
            let mut command = std::process::Command::new(bin("nodefence-peer")?);
            command.arg(node.name).arg(format!("{what}={port}"));
            Proc::spawn_ready(&node.pod, command)
        };
        let servers = [&cluster.b, &cluster.c].into_iter().zip([server; 2]);
        let servers = servers.filter_map(|(node, what)| Some(serve(node, what?)));
        let servers = servers.collect::<Result<_>>()?;
        let file = format!(
            "{}services:
  - name: default/served
    clusterIPs: [{inside}]
    externalIPs: [{outside}]
    ports: [{{ port: {port}, targetPort: {port}, protocol: {protocol} }}]
    endpoints: [{{ address: {b}, node: node-b }}, {{ address: {c}, node: node-c }}]
",
            cluster.cluster_file()
        );
        let ns = Arc::clone(&cluster.a.ns);
        let devices = cluster.interfaces();
        let agent = Agent::start_with(&ns, "node-a", &devices, &file, &["--proxy", "nftables"])?;
        let ready = || agent.status().is_ok_and(|status| status["rescue"]["idle"].is_null());
        wait_until("an agent that rescues", SOON, ready).with_context(|| agent.log())?;
        Ok(Self { cluster, agent, port, _servers: servers })
    }

    /// The address of the pod on a node itself.
    pub fn pod(&self, node: &Node) -> SocketAddr {
        (node.pod_address(Family::V4), self.port).into()
    }

    /// The address of the Service, for a client in node A's pod.
    pub fn service(&self) -> SocketAddr {
        (CLUSTER_IP, self.port).into()
    }

    /// The address of the Service, for the client outside.
    pub fn outside(&self) -> SocketAddr {
        (OUTSIDE, self.port).into()
    }

    /// The namespace in which clients run.
    pub fn client(&self) -> &Netns {
        &self.cluster.a.pod
    }
}

/// A client that waits.
#[derive(Debug)]
pub struct Waiting<T> {
    what: String,
    thread: JoinHandle<(Instant, Instant, T)>,
}

impl<T: Debug + Send + 'static> Waiting<T> {
    /// Starts a client in a thread. `wait` waits and returns how the wait ended.
    ///
    /// # Errors
    /// Fails if no thread can be started.
    pub fn begin(what: impl Into<String>, wait: impl FnOnce() -> T + Send + 'static) -> Result<Self> {
        let what = what.into();
        let waits = move || {
            let began = Instant::now();
            let how = wait();
            (began, Instant::now(), how)
        };
        Ok(Self { what, thread: std::thread::Builder::new().spawn(waits)? })
    }

    /// Waits for the client's end. Prints and records how long the client waited.
    ///
    /// # Errors
    /// Fails if the client panicked.
    pub fn end(self) -> Result<Ended<T>> {
        let (began, ended, how) =
            self.thread.join().map_err(|_| anyhow!("{}: its thread panicked", self.what))?;
        let ended = Ended { what: self.what, began, took: ended - began, how };
        println!("{ended}");
        figure(&ended.what, ended.took.as_secs_f64(), "s");
        Ok(ended)
    }
}

/// How a wait ended.
#[derive(Debug)]
pub struct Ended<T> {
    what: String,
    began: Instant,
    /// How long the wait took.
    pub took: Duration,
    /// The error that the client got.
    pub how: T,
}

impl<T: Debug> Ended<T> {
    /// Checks that the wait took from `least` to `most`, plus the time that the machine stood still, and that it ended as `expected` says.
    ///
    /// # Errors
    /// Fails if the wait took another time, or if it ended otherwise.
    pub fn is(&self, least: Duration, most: Duration, expected: impl FnOnce(&T) -> bool) -> Result<()> {
        ensure!(expected(&self.how), "{self}");
        ensure!(self.took >= least, "{self}; {least:?} were expected at the least");
        bounded(&self.what, most, self.began, self.took)
    }
}

impl<T: Debug> Display for Ended<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}: {:?} after {:.1} s", self.what, self.how, self.took.as_secs_f64())
    }
}
