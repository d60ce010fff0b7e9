//! From the file's shape to single objects. Finds the errors that only a file can have.

use std::{
    collections::{HashMap, HashSet},
    net::IpAddr,
    sync::Arc,
};

use super::{
    super::{
        node::NodeName,
        object::{Conflict, EndpointObject, NodeObject, ObjectName, ServiceObject, SliceObject},
        protocol::Protocol,
        service::{DEFAULT_AFFINITY, Hints, ServiceMode, ServicePort},
        view::{Backend, FileFlag, Scope, reason_fits},
    },
    raw::{RawBackend, RawEndpoint, RawFlag, RawMode, RawNode, RawPort, RawService},
    values::{Address, Affinity, ClusterIp},
};

/// Why a field of the file is refused.
#[derive(Debug)]
pub(super) struct Refused {
    /// The field, as in `nodes[0].backends[2].address`.
    pub(super) field: String,
    /// What is wrong and what was expected.
    pub(super) message: String,
}

impl Refused {
    fn new(field: String, message: impl Into<String>) -> Self {
        Self { field, message: message.into() }
    }
}

/// Takes the objects that a file lists, and then knows where each stands in the file.
#[derive(Default)]
pub(super) struct Reader {
    /// Index of each node, and whether it has `address` in place of `addresses`.
    nodes: HashMap<NodeName, (usize, bool)>,
    services: HashMap<Arc<str>, usize>,
    /// One copy of a text that many endpoints share.
    texts: HashSet<Arc<str>>,
}

impl Reader {
    pub(super) fn node(&mut self, n: usize, raw: RawNode) -> Result<NodeObject, Refused> {
        let field = |what: &str| format!("nodes[{n}].{what}");
        let name = NodeName::from(self.shared(&raw.name));
        if let Some((other, _)) = self.nodes.insert(name.clone(), (n, raw.address.is_some())) {
            return Err(Refused::new(
                field("name"),
                format!("`{name}` is the name of nodes[{other}] already"),
            ));
        }
        let addresses = match (raw.address, raw.addresses) {
            (Some(Address(address)), None) => vec![address],
            (None, Some(addresses)) if !addresses.is_empty() => ips(Some(addresses)),
            (None, Some(_)) => return Err(Refused::new(field("addresses"), "empty; a node has an address")),
            (Some(_), Some(_)) => {
                return Err(Refused::new(
                    field("addresses"),
                    "stands beside `address`: expected one of them",
                ));
            }
            (None, None) => return Err(Refused::new(format!("nodes[{n}]"), "missing field `address`")),
        };
        let backends = raw.backends.into_iter().flatten().enumerate();
        Ok(NodeObject {
            name,
            uid: None,
            addresses,
            zone: raw.zone.map(|zone| self.shared(&zone)),
            pool: raw.pool.map(|pool| self.shared(&pool)),
            backends: backends.map(|(position, raw)| backend(n, position, &raw)).collect::<Result<_, _>>()?,
        })
    }

    pub(super) fn service(
        &mut self,
        s: usize,
        raw: RawService,
    ) -> Result<(ServiceObject, SliceObject), Refused> {
        let field = |what: &str| format!("services[{s}].{what}");
        let name = self.shared(&raw.name);
        if let Some(other) = self.services.insert(Arc::clone(&name), s) {
            return Err(Refused::new(
                field("name"),
                format!("`{name}` is the name of services[{other}] already"),
            ));
        }
        let affinity = match (raw.session_affinity.unwrap_or(Affinity::None), raw.affinity_seconds) {
            (Affinity::None, None) => None,
            (Affinity::ClientIp, seconds) => Some(seconds.map_or(DEFAULT_AFFINITY, |seconds| seconds.0)),
            (Affinity::None, Some(_)) => {
                let message = "only a Service with `sessionAffinity: ClientIP` has one";
                return Err(Refused::new(field("sessionAffinityTimeoutSeconds"), message));
            }
        };
        let service = ServiceObject {
            name: Arc::clone(&name),
            cluster_ips: cluster_ips(raw.cluster_ips.unwrap_or_default(), s)?,
            external_ips: ips(raw.external_ips),
            load_balancer_ips: ips(raw.load_balancer_ips),
            affinity,
            internal: raw.internal.unwrap_or_default(),
            external: raw.external.unwrap_or_default(),
            mode: match raw.mode {
                None => ServiceMode::Cut,
                Some(RawMode::Observe) => ServiceMode::Observe,
                Some(RawMode::Off) => ServiceMode::Off,
            },
            ports: raw.ports.into_iter().map(port).collect(),
        };
        let endpoints = raw.endpoints.into_iter().flatten();
        let endpoints = endpoints.map(|endpoint| self.endpoint(endpoint)).collect();
        Ok((service, SliceObject { name: Arc::clone(&name), service: name, endpoints }))
    }

    fn endpoint(&mut self, raw: RawEndpoint) -> EndpointObject {
        let own = |ports: std::collections::BTreeMap<_, super::values::Port>| {
            Arc::new(ports.into_iter().map(|(name, port)| (name, port.0)).collect())
        };
        EndpointObject {
            address: raw.address.0,
            node: raw.node.map(|node| NodeName::from(self.shared(&node))),
            host_network: raw.host_network,
            zone: raw.zone.map(|zone| self.shared(&zone)),
            ports: raw.ports.map(own),
            ready: raw.ready.unwrap_or(true),
            serving: raw.serving.unwrap_or(true),
            terminating: raw.terminating.unwrap_or(false),
            hints: raw.hints.and_then(|hints| {
                let zones = hints.zones.iter().flatten().map(|zone| self.shared(zone)).collect();
                let nodes = hints.nodes.iter().flatten().map(|node| self.shared(node).into()).collect();
                let hints = Hints { zones, nodes };
                // Empty lists are no hints, as in kube-proxy.
                (hints != Hints::default()).then(|| Box::new(hints))
            }),
        }
    }

    /// `before`: the flags that stand before this one.
    pub(super) fn flag(&self, f: usize, raw: RawFlag, before: &[FileFlag]) -> Result<FileFlag, Refused> {
        let refused = |message: String| Err(Refused::new(format!("flags[{f}].node"), message));
        let Some((name, _)) = self.nodes.get_key_value(raw.node.as_str()) else {
            return refused(format!("`{}` is not among the nodes", raw.node));
        };
        if let Some(other) = before.iter().position(|flag| flag.node == *name) {
            return refused(format!("`{name}` is flagged by flags[{other}] already"));
        }
        let reason = raw.reason.unwrap_or_default();
        reason_fits(&reason).map_err(|message| Refused::new(format!("flags[{f}].reason"), message))?;
        Ok(FileFlag { node: name.clone(), until: raw.until.map(|until| until.0), reason })
    }

    /// The field of the file that a conflict is about.
    pub(super) fn field(&self, conflict: &Conflict) -> String {
        let Conflict { object, field, .. } = conflict;
        let (list, place) = match object {
            ObjectName::Node(name) => ("nodes", self.nodes.get(name).copied()),
            ObjectName::Service(name) | ObjectName::Slice(name) => {
                ("services", self.services.get(name).map(|position| (*position, false)))
            }
        };
        let Some((at, short)) = place else { return list.to_owned() };
        let field = if short { field.replace("addresses[0]", "address") } else { field.clone() };
        format!("{list}[{at}].{field}")
    }

    fn shared(&mut self, text: &str) -> Arc<str> {
        if let Some(known) = self.texts.get(text) {
            return Arc::clone(known);
        }
        let new: Arc<str> = text.into();
        self.texts.insert(Arc::clone(&new));
        new
    }
}

fn ips(addresses: Option<Vec<Address>>) -> Vec<IpAddr> {
    addresses.into_iter().flatten().map(|address| address.0).collect()
}

fn cluster_ips(listed: Vec<ClusterIp>, s: usize) -> Result<Vec<IpAddr>, Refused> {
    if let [ClusterIp(None)] = listed[..] {
        return Ok(Vec::new());
    }
    let ip = |(position, ip): (usize, ClusterIp)| {
        ip.0.ok_or_else(|| {
            let message = "`None` stands beside others: expected it alone, or addresses";
            Refused::new(format!("services[{s}].clusterIPs[{position}]"), message)
        })
    };
    listed.into_iter().enumerate().map(ip).collect()
}

fn backend(n: usize, b: usize, raw: &RawBackend) -> Result<Backend, Refused> {
    let refused =
        |what: &str, message: &str| Err(Refused::new(format!("nodes[{n}].backends[{b}].{what}"), message));
    let scope = match (raw.host_network, raw.port, raw.protocol) {
        (true, Some(port), Some(protocol)) => Scope::Port(port.0, protocol.0),
        (true, None, _) => return refused("port", "missing; a hostNetwork backend is cut by its port"),
        (true, _, None) => {
            return refused("protocol", "missing; a hostNetwork backend needs tcp, udp or sctp");
        }
        (false, None, None) => Scope::Address,
        (false, port, _) => {
            let what = if port.is_some() { "port" } else { "protocol" };
            let message = "only a hostNetwork backend has one; a pod's address is its own, whatever the port";
            return refused(what, message);
        }
    };
    Ok(Backend { address: raw.address.0, scope })
}

fn port(raw: RawPort) -> ServicePort {
    ServicePort {
        name: raw.name.unwrap_or_default(),
        protocol: raw.protocol.map_or(Protocol::Tcp, |protocol| protocol.0),
        port: raw.port.0,
        target: raw.target_port.map_or(raw.port.0, |port| port.0),
        node_port: raw.node_port.map(|port| port.0),
    }
}
