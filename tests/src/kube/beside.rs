//! The agent beside a real kube-proxy on node A of the small cluster, both told of the same Services.

use anyhow::{Result, bail, ensure};
use serde_json::{Value, json};

use super::{
    ControlPlane, KubeProxy, Mode,
    forwards::{endpoint, object, slice},
    objects::{Endpoint, Slice},
};
use crate::{Agent, Cluster, Family, Node, Options, Proxy, topology::Service};

/// A cluster with an API server that has its Services, kube-proxy and agent. Ends with everything in it.
#[derive(Debug)]
pub struct Beside {
    /// The agent, on node A.
    pub agent: Agent,
    /// kube-proxy, on node A.
    pub proxy: KubeProxy,
    /// The API server, in node A's namespace.
    pub control: ControlPlane,
    /// The cluster: Web and Dns (one Service, two ports) and Host have endpoints on B and C.
    pub cluster: Cluster,
    affinity: bool,
}

impl Beside {
    /// Builds it all. `affinity`: clients keep their endpoints (`sessionAffinity: ClientIP`). `extra`: more arguments for the agent.
    ///
    /// # Errors
    /// Where one of them does not come up; with its log.
    pub fn new(mode: Mode, affinity: bool, extra: &[&str]) -> Result<Self> {
        Self::with(Options::default(), mode, affinity, extra)
    }

    /// As [`Beside::new`], in another network.
    ///
    /// # Errors
    /// As [`Beside::new`].
    pub fn with(options: Options, mode: Mode, affinity: bool, extra: &[&str]) -> Result<Self> {
        let cluster = Cluster::new(Options { proxy: Proxy::Nobody, ..options })?;
        let control = ControlPlane::start(&cluster.a.ns)?;
        for node in [&cluster.a, &cluster.b, &cluster.c] {
            let std::net::IpAddr::V4(address) = node.address(Family::V4) else { unreachable!() };
            control.node(node.name, address, None)?;
        }
        let both = [&cluster.b, &cluster.c];
        for service in [Service::Web, Service::Host] {
            create(&control, service, affinity)?;
            slice(&control, service, &both)?;
        }
        let proxy = KubeProxy::start(&control, &cluster.a.ns, cluster.a.name, mode)?;
        let file = file(&cluster, affinity, &both).to_string();
        let extra = [&["--proxy", "auto"], extra].concat();
        let agent = Agent::start_with(&cluster.a.ns, cluster.a.name, &cluster.interfaces(), &file, &extra)?;
        Ok(Self { agent, proxy, control, cluster, affinity })
    }

    /// Tells both of other endpoints for Web and Dns.
    ///
    /// # Errors
    /// Where the API server refuses them.
    pub fn set_endpoints(&self, nodes: &[&Node]) -> Result<()> {
        slice(&self.control, Service::Web, nodes)?;
        self.agent.rewrite_cluster_file(&file(&self.cluster, self.affinity, nodes).to_string())
    }

    /// Tells both that the endpoint of Web and Dns on a node is about to end. It still answers.
    ///
    /// # Errors
    /// Where the API server refuses it.
    pub fn end_endpoint(&self, node: &Node) -> Result<()> {
        let both = [&self.cluster.b, &self.cluster.c];
        let endpoints = both.map(|other| {
            let ends = other.name == node.name;
            let (ready, serving, terminating) = (Some(!ends), Some(true), Some(ends));
            Endpoint { ready, serving, terminating, ..endpoint(Service::Web, other) }
        });
        self.control.slice(&Slice::new(&object(Service::Web), endpoints.into()))?;
        let mut file = file(&self.cluster, self.affinity, &both);
        let endpoints = file["services"][0]["endpoints"].as_array_mut();
        for endpoint in endpoints.into_iter().flatten().filter(|endpoint| endpoint["node"] == node.name) {
            (endpoint["ready"], endpoint["terminating"]) = (json!(false), json!(true));
        }
        self.agent.rewrite_cluster_file(&file.to_string())
    }

    /// Has the cluster file flag these nodes. `nodes`: as last told by [`Self::set_endpoints`].
    ///
    /// # Errors
    /// Where it cannot be written.
    pub fn flag_in_file(&self, nodes: &[&Node], flagged: &[&Node]) -> Result<()> {
        let mut file = file(&self.cluster, self.affinity, nodes);
        file["flags"] = flagged.iter().map(|node| json!({"node": node.name})).collect();
        self.agent.rewrite_cluster_file(&file.to_string())
    }

    /// Deletes a Service from the API server, and makes it anew.
    ///
    /// # Errors
    /// Where the API server refuses.
    pub fn recreate(&self, service: Service, meanwhile: impl FnOnce() -> Result<()>) -> Result<()> {
        self.control.delete_service(&object(service).name)?;
        meanwhile()?;
        create(&self.control, service, self.affinity)
    }

    /// Ends kube-proxy and starts another one in its place. Returns once that has synced.
    ///
    /// # Errors
    /// Where it does not end or does not come up.
    pub fn restart_proxy(self) -> Result<Self> {
        let Self { agent, proxy, control, cluster, affinity } = self;
        let mode = proxy.mode;
        proxy.stop()?;
        let proxy = KubeProxy::start(&control, &cluster.a.ns, cluster.a.name, mode)?;
        Ok(Self { agent, proxy, control, cluster, affinity })
    }

    /// What the agent says of itself.
    ///
    /// # Errors
    /// Where it does not answer.
    pub fn status(&self) -> Result<Value> {
        self.agent.status()
    }
}

fn create(control: &ControlPlane, service: Service, affinity: bool) -> Result<()> {
    control.service(&super::objects::Service { affinity, ..object(service) })
}

/// The cluster file: nodes, and the Services as kube-proxy has them, Web and Dns with endpoints on `nodes`.
fn file(cluster: &Cluster, affinity: bool, nodes: &[&Node]) -> Value {
    let all = [&cluster.a, &cluster.b, &cluster.c];
    let nodes_of = all.map(|node| json!({"name": node.name, "address": node.address(Family::V4)}));
    let both = [&cluster.b, &cluster.c];
    let services = [(Service::Web, nodes), (Service::Host, &both[..])].map(|(service, nodes)| {
        let object = object(service);
        let ports = object.ports.iter().map(|port| {
            json!({"name": port.name, "port": port.port, "targetPort": port.target, "protocol": port.protocol.to_lowercase(),
                "nodePort": port.node_port})
        });
        let endpoints = nodes.iter().map(|node| {
            let address = endpoint(service, node).address;
            json!({"address": address, "node": node.name, "hostNetwork": service == Service::Host})
        });
        json!({
            "name": format!("default/{}", object.name),
            "clusterIPs": object.cluster_ips,
            "sessionAffinity": if affinity { "ClientIP" } else { "None" },
            "ports": ports.collect::<Vec<_>>(),
            "endpoints": endpoints.collect::<Vec<_>>(),
        })
    });
    json!({"nodes": nodes_of, "services": services})
}

/// Runs a test beside kube-proxy's nftables mode, which wants Linux 5.13 (pkg/proxy/nftables/proxier.go, v1.36). On 5.10 it must say so.
///
/// # Errors
/// The test's; where kube-proxy runs on a kernel that it does not run on.
pub fn in_nftables_mode(test: impl Fn(Mode) -> Result<()>) -> Result<()> {
    let release = nix::sys::utsname::uname()?.release().to_string_lossy().into_owned();
    if !release.starts_with("5.10.") {
        return test(Mode::Nftables);
    }
    let Err(error) = Beside::new(Mode::Nftables, false, &[]) else { bail!("it runs on {release}") };
    let error = format!("{error:#}");
    ensure!(error.contains("kernel"), "{error}");
    Ok(())
}
