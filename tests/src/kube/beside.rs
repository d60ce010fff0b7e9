//! The agent beside a real kube-proxy on node A of the small cluster. Both get the same Services.

use std::{
    sync::Arc,
    time::{Duration, SystemTime},
};

use anyhow::{Result, bail, ensure};
use serde_json::{Value, json};

use super::{
    ControlPlane, KubeProxy, Mode,
    control::{SERVICES, SLICES},
    forwards::{endpoint, object, slice},
    members::MEMBERS,
    objects,
    proxy::SYNC_PERIOD,
    rights::AGENT,
};
use crate::{Agent, Cluster, Family, Netns, Node, Options, Proxy, audit::BOTH, kernel, topology::Service};

/// Where the agent gets nodes, Services and endpoints from.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Source {
    /// A cluster file that says the same as the API server.
    File,
    /// The API server.
    ApiServer,
}

/// The options of the network, the Services, kube-proxy and the agent.
#[derive(Clone, Copy, Debug)]
pub struct Setup<'a> {
    /// The network.
    pub options: Options,
    /// The IP versions of the Services.
    pub families: &'static [Family],
    /// Whether the Services have affinity (`sessionAffinity: ClientIP`).
    pub affinity: bool,
    /// Whether Web and Dns have `externalTrafficPolicy: Local`.
    pub local: bool,
    /// kube-proxy's `syncPeriod`.
    pub sync_period: Duration,
    /// The agent's source.
    pub source: Source,
    /// More arguments for the agent.
    pub extra: &'a [&'a str],
}

impl Default for Setup<'_> {
    /// The default Services have both IP versions, and policies Cluster.
    fn default() -> Self {
        Self {
            options: Options::default(),
            families: &BOTH,
            affinity: false,
            local: false,
            sync_period: SYNC_PERIOD,
            source: Source::File,
            extra: &[],
        }
    }
}

impl Setup<'_> {
    fn service(&self, service: Service) -> objects::Service {
        let external_local = self.local && service != Service::Host;
        objects::Service { affinity: self.affinity, external_local, ..object(service, self.families) }
    }
}

/// A cluster with an API server that has the cluster's Services, a kube-proxy and an agent. All of it ends when this is dropped.
#[derive(Debug)]
pub struct Beside {
    /// The agent, on node A.
    pub agent: Agent,
    /// kube-proxy, on node A.
    pub proxy: KubeProxy,
    /// The API server, in node A's namespace.
    pub control: ControlPlane,
    /// The cluster. Web and Dns are two ports of one Service. Both they and Host have endpoints on B and C.
    pub cluster: Cluster,
    setup: Setup<'static>,
}

impl Beside {
    /// Builds the cluster and starts the API server, kube-proxy and the agent.
    ///
    /// # Errors
    /// Fails if a program does not come up. The error includes the program's log.
    pub fn new(mode: Mode, setup: Setup<'_>) -> Result<Self> {
        let cluster = Cluster::new(Options { proxy: Proxy::Nobody, ..setup.options })?;
        let extra = [&["--proxy", "auto"], setup.extra].concat();
        let setup = Setup { extra: &[], ..setup };
        let control = ControlPlane::start(&cluster.a.ns)?;
        control.nodes(&cluster)?;
        let both = [&cluster.b, &cluster.c];
        for service in [Service::Web, Service::Host] {
            control.service(&setup.service(service))?;
            slices(&control, &setup, service, &both)?;
        }
        let proxy = KubeProxy::start_with(&control, &cluster.a.ns, cluster.a.name, mode, setup.sync_period)?;
        let interfaces = cluster.interfaces();
        let agent = match setup.source {
            Source::File => {
                let file = file(&cluster, &setup, &both).to_string();
                Agent::start_with(&cluster.a.ns, cluster.a.name, &interfaces, &file, &extra)?
            }
            Source::ApiServer => {
                control.crds()?;
                control.enforce()?;
                control.members(&cluster)?;
                control.rights()?;
                let kubeconfig = control.kubeconfig_as(AGENT)?;
                let mut agent =
                    Agent::begin_kubernetes(&cluster.a.ns, cluster.a.name, &interfaces, &kubeconfig, &extra)?;
                agent.ready()?;
                agent
            }
        };
        Ok(Self { agent, proxy, control, cluster, setup })
    }

    /// Changes the endpoints of Web and Dns, for kube-proxy and for the agent.
    ///
    /// # Errors
    /// Fails if the API server refuses the endpoints, or if the file cannot be written.
    pub fn set_endpoints(&self, nodes: &[&Node]) -> Result<()> {
        slices(&self.control, &self.setup, Service::Web, nodes)?;
        self.rewrite(|| file(&self.cluster, &self.setup, nodes))
    }

    /// Changes the endpoints of Web and Dns for kube-proxy alone.
    ///
    /// # Errors
    /// Fails if the API server refuses the endpoints, or if the agent follows the API server.
    pub fn tell_proxy(&self, nodes: &[&Node]) -> Result<()> {
        ensure!(self.setup.source == Source::File, "the agent follows the API server as kube-proxy does");
        slices(&self.control, &self.setup, Service::Web, nodes)
    }

    /// Makes the endpoint of Web and Dns on a node terminating, for kube-proxy and for the agent. The endpoint still answers.
    ///
    /// # Errors
    /// Fails if the API server refuses the endpoints.
    pub fn end_endpoint(&self, node: &Node) -> Result<()> {
        let both = [&self.cluster.b, &self.cluster.c];
        for family in self.setup.families {
            let endpoints = both.map(|other| {
                let ends = other.name == node.name;
                let ready = Some(!ends);
                let serving = Some(true);
                let terminating = Some(ends);
                objects::Endpoint { ready, serving, terminating, ..endpoint(Service::Web, other, *family) }
            });
            slice(&self.control, Service::Web, endpoints.into())?;
        }
        self.rewrite(|| {
            let mut file = file(&self.cluster, &self.setup, &both);
            let endpoints = file["services"][0]["endpoints"].as_array_mut();
            for endpoint in endpoints.into_iter().flatten().filter(|endpoint| endpoint["node"] == node.name) {
                endpoint["ready"] = json!(false);
                endpoint["terminating"] = json!(true);
            }
            file
        })
    }

    /// Replaces the cluster file, if the agent follows one.
    fn rewrite(&self, file: impl FnOnce() -> Value) -> Result<()> {
        match self.setup.source {
            Source::File => self.agent.rewrite_cluster_file(&file().to_string()),
            Source::ApiServer => Ok(()),
        }
    }

    /// Has the agent's source confirm its view.
    ///
    /// # Errors
    /// Fails if the file cannot be written, or if the API server refuses.
    pub fn confirm(&self) -> Result<()> {
        match self.setup.source {
            Source::File => self.agent.confirm_cluster_file(),
            // The view is confirmed once each watch has brought something. An annotation alters nothing in the view.
            Source::ApiServer => {
                let web = self.setup.service(Service::Web).name;
                let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH)?.as_nanos().to_string();
                let objects = [(SERVICES, &*web), (SLICES, &*web), (MEMBERS, self.cluster.a.name)];
                for (collection, name) in objects {
                    self.control.api.annotate(&format!("{collection}/{name}"), "nodefence.test/at", &now)?;
                }
                Ok(())
            }
        }
    }

    /// Writes a cluster file that flags the nodes `flagged`. `nodes` are the nodes with endpoints, as last set by [`Self::set_endpoints`].
    ///
    /// # Errors
    /// Fails if the file cannot be written, or if the agent follows no file.
    pub fn flag_in_file(&self, nodes: &[&Node], flagged: &[&Node]) -> Result<()> {
        ensure!(self.setup.source == Source::File, "the agent follows no cluster file");
        let mut file = file(&self.cluster, &self.setup, nodes);
        file["flags"] = flagged.iter().map(|node| json!({"node": node.name})).collect();
        self.agent.rewrite_cluster_file(&file.to_string())
    }

    /// Deletes a Service from the API server, does `meanwhile`, and creates the Service again.
    ///
    /// # Errors
    /// Fails if the API server refuses, or if `meanwhile` fails.
    pub fn recreate(&self, service: Service, meanwhile: impl FnOnce() -> Result<()>) -> Result<()> {
        self.control.delete_service(&self.setup.service(service).name)?;
        meanwhile()?;
        self.control.service(&self.setup.service(service))
    }

    /// Ends kube-proxy and starts a new one. Returns once the new one has synced.
    ///
    /// # Errors
    /// Fails if the old kube-proxy does not end, or if the new one does not come up.
    pub fn restart_proxy(self) -> Result<Self> {
        let mode = self.proxy.mode;
        self.switch_proxy(mode, |_| Ok(()))
    }

    /// Same as [`Self::restart_proxy`], but the new kube-proxy has another mode, and `meanwhile` does something in node A's namespace between the two.
    ///
    /// # Errors
    /// Fails as [`Self::restart_proxy`] does, or as `meanwhile` does.
    pub fn switch_proxy(self, mode: Mode, meanwhile: impl FnOnce(&Arc<Netns>) -> Result<()>) -> Result<Self> {
        let Self { agent, proxy, control, cluster, setup } = self;
        proxy.stop()?;
        meanwhile(&cluster.a.ns)?;
        let proxy = KubeProxy::start_with(&control, &cluster.a.ns, cluster.a.name, mode, setup.sync_period)?;
        Ok(Self { agent, proxy, control, cluster, setup })
    }

    /// The agent's `status`.
    ///
    /// # Errors
    /// Fails if the agent does not answer.
    pub fn status(&self) -> Result<Value> {
        self.agent.status()
    }
}

/// Writes the slices of a Service, one for each IP version, with endpoints on these nodes.
fn slices(control: &ControlPlane, setup: &Setup<'_>, service: Service, nodes: &[&Node]) -> Result<()> {
    setup.families.iter().try_for_each(|family| {
        let endpoints = nodes.iter().map(|node| endpoint(service, node, *family));
        slice(control, service, endpoints.collect())
    })
}

/// The cluster file: all nodes, and the same Services as kube-proxy has. Web and Dns have endpoints on `nodes`.
fn file(cluster: &Cluster, setup: &Setup<'_>, nodes: &[&Node]) -> Value {
    let all = [&cluster.a, &cluster.b, &cluster.c];
    let nodes_of = all.map(
        |node| json!({"name": node.name, "addresses": [node.address(Family::V4), node.address(Family::V6)]}),
    );
    let both = [&cluster.b, &cluster.c];
    let services = [(Service::Web, nodes), (Service::Host, &both[..])].map(|(service, nodes)| {
        let object = setup.service(service);
        let ports = object.ports.iter().map(|port| {
            json!({"name": port.name, "port": port.port, "targetPort": port.target, "protocol": port.protocol.to_lowercase(),
                "nodePort": port.node_port})
        });
        let of_family = |family: &Family| {
            let family = *family;
            nodes.iter().map(move |node| {
                let address = endpoint(service, node, family).address;
                json!({"address": address, "node": node.name, "hostNetwork": service == Service::Host})
            })
        };
        json!({
            "name": format!("default/{}", object.name),
            "clusterIPs": object.cluster_ips,
            "sessionAffinity": if object.affinity { "ClientIP" } else { "None" },
            "externalTrafficPolicy": if object.external_local { "Local" } else { "Cluster" },
            "ports": ports.collect::<Vec<_>>(),
            "endpoints": setup.families.iter().flat_map(of_family).collect::<Vec<_>>(),
        })
    });
    json!({"nodes": nodes_of, "services": services})
}

/// Runs a test beside kube-proxy's nftables mode, which needs Linux 5.13 (pkg/proxy/nftables/proxier.go, v1.36). On 5.10 checks instead that kube-proxy refuses
/// to run because of the kernel.
///
/// # Errors
/// Fails as the test does. On 5.10 it fails if kube-proxy comes up, or if its error does not name the kernel.
pub fn in_nftables_mode(test: impl Fn(Mode) -> Result<()>) -> Result<()> {
    let release = kernel::release()?;
    if !release.starts_with("5.10.") {
        return test(Mode::Nftables);
    }
    let Err(error) = Beside::new(Mode::Nftables, Setup::default()) else { bail!("it runs on {release}") };
    let error = format!("{error:#}");
    ensure!(error.contains("kernel"), "{error}");
    Ok(())
}
