//! The agent on node A of the small cluster beside an API server, without kube-proxy.

use std::{collections::BTreeSet, net::Ipv4Addr, path::Path, sync::Arc, time::Instant};

use anyhow::{Context as _, Result};
use serde_json::Value;

use super::{
    ControlPlane,
    forwards::{endpoint, object, slice},
    rights::AGENT,
};
use crate::{
    Agent, Cluster, Family, Netns, Node, Options, Proxy, audit::BOTH, long, promises::WATCHED,
    topology::Service, watch::wait_within,
};

/// How many times faster than by default agents of tests find out that a watch is dead, and begin it anew. Runs with the default periods are [`long`].
pub fn faster() -> u32 {
    if long() { 1 } else { 5 }
}

/// A cluster with an API server that has the cluster's Services, and an agent that follows the API server. All of it ends when this is dropped.
#[derive(Debug)]
pub struct Alone {
    /// The agent, on node A.
    pub agent: Agent,
    /// The API server, in node A's namespace. Web and Dns are two ports of one Service. Both they and Host have endpoints on B and C.
    pub control: ControlPlane,
    /// The cluster.
    pub cluster: Cluster,
}

impl Alone {
    /// Builds the cluster and starts the API server and the agent. Each node has a member.
    ///
    /// # Errors
    /// Fails if a program does not come up. The error includes the program's log.
    pub fn new() -> Result<Self> {
        Self::with(|control, cluster| control.members(cluster))
    }

    /// Same as [`Alone::new`], but `members` creates the members. Node A must have one.
    ///
    /// # Errors
    /// Fails as [`Alone::new`] does, or as `members` does.
    pub fn with(members: impl FnOnce(&ControlPlane, &Cluster) -> Result<()>) -> Result<Self> {
        Self::begin(members, &[])
    }

    /// Same as [`Alone::new`], with more arguments of the agent.
    ///
    /// # Errors
    /// Fails as [`Alone::new`] does.
    pub fn with_arguments(extra: &[&str]) -> Result<Self> {
        Self::begin(|control, cluster| control.members(cluster), extra)
    }

    fn begin(members: impl FnOnce(&ControlPlane, &Cluster) -> Result<()>, extra: &[&str]) -> Result<Self> {
        let (control, cluster) = services(ControlPlane::start)?;
        control.crds()?;
        control.enforce()?;
        members(&control, &cluster)?;
        let mut this = Self::follow(control, cluster, extra)?;
        this.agent.ready()?;
        Ok(this)
    }

    /// Same as [`Alone::new`], but the API server does not have the kind NodeMember. So the agent waits, and this function does not wait for the agent.
    ///
    /// # Errors
    /// Fails if the API server does not come up, or if the agent cannot be started.
    pub fn without_members() -> Result<Self> {
        let (control, cluster) = services(ControlPlane::start)?;
        Self::follow(control, cluster, &[])
    }

    /// Same as [`Alone::new`], but the API server has these further options, the agent finds faults of its watches so many times faster, and `way` makes the agent's way to it: it returns the URL and what stands between.
    /// This function does not wait for the agent.
    ///
    /// # Errors
    /// Fails as [`Alone::new`] does, or as `way` does.
    pub fn behind<T>(
        options: &[&str],
        faster: u32,
        way: impl FnOnce(&ControlPlane) -> Result<(String, T)>,
    ) -> Result<(Self, T)> {
        let (control, cluster) = services(|ns| ControlPlane::start_with(ns, Ipv4Addr::LOCALHOST, options))?;
        control.crds()?;
        control.members(&cluster)?;
        let (server, between) = way(&control)?;
        control.rights()?;
        let kubeconfig = control.kubeconfig_as_at(AGENT, &server)?;
        let faster = faster.to_string();
        Ok((Self::follow_by(&kubeconfig, control, cluster, &["--watch-faster", &faster])?, between))
    }

    fn follow(control: ControlPlane, cluster: Cluster, extra: &[&str]) -> Result<Self> {
        control.rights()?;
        let kubeconfig = control.kubeconfig_as(AGENT)?;
        Self::follow_by(&kubeconfig, control, cluster, extra)
    }

    fn follow_by(kubeconfig: &Path, control: ControlPlane, cluster: Cluster, extra: &[&str]) -> Result<Self> {
        let interfaces = cluster.interfaces();
        let agent = Agent::begin_kubernetes(&cluster.a.ns, cluster.a.name, &interfaces, kubeconfig, extra)?;
        Ok(Self { agent, control, cluster })
    }
}

/// A cluster, and an API server with its Services.
fn services(start: impl FnOnce(&Arc<Netns>) -> Result<ControlPlane>) -> Result<(ControlPlane, Cluster)> {
    let cluster = Cluster::new(Options { proxy: Proxy::Nobody, ..Options::default() })?;
    let control = start(&cluster.a.ns)?;
    for service in [Service::Web, Service::Host] {
        control.service(&object(service, &BOTH))?;
        for family in BOTH {
            let endpoints = [&cluster.b, &cluster.c].map(|node| endpoint(service, node, family));
            slice(&control, service, endpoints.into())?;
        }
    }
    Ok((control, cluster))
}

/// The backend that a node has of a Service, as [`backends`] returns it.
pub fn backend(node: &Node, service: Service, family: Family) -> String {
    let endpoint = node.endpoint(service, family);
    match service {
        Service::Host => format!("{} at {} port {}", node.name, endpoint.ip(), endpoint.port()),
        Service::Web | Service::Dns => format!("{} at {}", node.name, endpoint.ip()),
    }
}

/// The backends that these nodes have of these Services.
pub fn backends_on(nodes: &[&Node], services: &[Service]) -> BTreeSet<String> {
    let mut all = BTreeSet::new();
    for node in nodes {
        for service in services {
            all.extend(BOTH.map(|family| backend(node, *service, family)));
        }
    }
    all
}

/// The backends that the agent lists, each with its node.
///
/// # Errors
/// Fails if the agent does not answer.
pub fn backends(agent: &Agent) -> Result<BTreeSet<String>> {
    let list = agent.json(&["backends"])?;
    let rows = list["items"].as_array().context("no backends")?;
    let text = |row: &Value| -> Result<String> {
        let node = row["node"].as_str().context("no node")?;
        let address = row["address"].as_str().context("no address")?;
        let port = row["port"].as_u64().map(|port| format!(" port {port}")).unwrap_or_default();
        Ok(format!("{node} at {address}{port}"))
    };
    rows.iter().map(text).collect()
}

/// Waits until the agent lists exactly these backends, within the promised time from now on.
///
/// # Errors
/// Fails if the agent lists others. The error includes these and the agent's log.
pub fn lists(agent: &Agent, wanted: &BTreeSet<String>) -> Result<()> {
    let same = || backends(agent).is_ok_and(|found| found == *wanted);
    wait_within("the backends are these", WATCHED, Instant::now(), same)
        .map(drop)
        .with_context(|| format!("wanted {wanted:#?}, found {:#?}\n{}", backends(agent), agent.log()))
}
