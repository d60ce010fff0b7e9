//! Services as kube-proxy sees them: virtual addresses, ports, policies, endpoints.

use std::{
    collections::BTreeSet,
    net::{IpAddr, SocketAddr},
    sync::Arc,
    time::Duration,
};

use serde::{Deserialize, Serialize};

use super::{
    node::{NodeIx, NodeName},
    protocol::Protocol,
};
use crate::Family;

/// How long a client keeps its endpoint where a Service has affinity and says no time
/// (`DefaultClientIPServiceAffinitySeconds`, pkg/apis/core/types.go).
pub(crate) const DEFAULT_AFFINITY: Duration = Duration::from_secs(10_800);

/// A Service: a name for endpoints, and the addresses under which they are reached.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Service {
    /// As in `default/web`.
    pub name: String,
    /// At most one of each family. kube-proxy leaves a Service alone in a family in which it has none
    /// (`serviceToServiceMap`, pkg/proxy/servicechangetracker.go), whatever other addresses it has.
    pub cluster_ips: Vec<IpAddr>,
    /// Addresses that others route to the nodes.
    pub external_ips: Vec<IpAddr>,
    /// Addresses of load balancers that leave the destination as it is (`ipMode: VIP`).
    pub load_balancer_ips: Vec<IpAddr>,
    /// Affinity by client address, and how long it lasts after the last packet; `None` for none.
    pub affinity: Option<Duration>,
    /// Which endpoints traffic to the cluster IPs may use.
    pub internal: TrafficPolicy,
    /// Which endpoints traffic to all other virtual addresses may use.
    pub external: TrafficPolicy,
    /// Whether its endpoints are cut.
    pub mode: ServiceMode,
    /// In the order of their names.
    pub ports: Vec<ServicePort>,
    /// In the order of their addresses. No two have the same address and target at one port.
    pub endpoints: Vec<Endpoint>,
}

impl Service {
    /// The endpoint's own port for traffic to the service port with this index in `ports`; `None` where it has none.
    pub fn target(&self, port: usize, endpoint: &Endpoint) -> Option<u16> {
        let target = match endpoint.targets() {
            Some(targets) => *targets.get(port)?,
            None => self.ports.get(port)?.target,
        };
        (target != 0).then_some(target)
    }

    /// Where the endpoint takes traffic to the service port with this index in `ports`.
    pub fn socket(&self, port: usize, endpoint: &Endpoint) -> Option<SocketAddr> {
        Some(SocketAddr::new(endpoint.address, self.target(port, endpoint)?))
    }

    /// Whether the Service has no cluster IP: its clients find its endpoints by DNS.
    pub const fn is_headless(&self) -> bool {
        self.cluster_ips.is_empty()
    }

    /// Whether kube-proxy serves it in that family at all.
    pub fn proxied(&self, family: Family) -> bool {
        self.cluster_ips.iter().any(|ip| Family::of(*ip) == family)
    }

    /// Whether the port is reached otherwise than by a cluster IP (`ExternallyAccessible`, pkg/proxy/serviceport.go).
    pub fn external(&self, port: &ServicePort, family: Family) -> bool {
        let outside = self.external_ips.iter().chain(&self.load_balancer_ips);
        port.node_port.is_some() || outside.into_iter().any(|ip| Family::of(*ip) == family)
    }
}

/// Which endpoints of a Service a virtual address may use.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum TrafficPolicy {
    /// All.
    #[default]
    Cluster,
    /// Those on the node that the traffic enters.
    Local,
}

/// Whether the endpoints of a Service are cut.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ServiceMode {
    /// Those on flagged nodes.
    #[default]
    Cut,
    /// None.
    Observe,
    /// None.
    Off,
    /// None: this is no mode that there is. When in doubt, traffic flows.
    Unknown(Arc<str>),
}

impl ServiceMode {
    /// The mode that a source names.
    pub fn named(name: &str) -> Self {
        match name {
            "observe" => Self::Observe,
            "off" => Self::Off,
            other => Self::Unknown(other.into()),
        }
    }

    /// The mode as a source names it; `None` where it names none.
    pub fn name(&self) -> Option<&str> {
        match self {
            Self::Cut => None,
            Self::Observe => Some("observe"),
            Self::Off => Some("off"),
            Self::Unknown(name) => Some(name),
        }
    }

    /// Whether the Service is left out: its endpoints are cut on no node.
    pub fn is_left_out(&self) -> bool {
        *self != Self::Cut
    }
}

/// A port of a Service.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ServicePort {
    /// Unique within the Service; may be empty where it is the only one.
    pub name: String,
    /// The transport protocol.
    pub protocol: Protocol,
    /// The port at the virtual addresses.
    pub port: u16,
    /// The port at the endpoints that do not name one of their own.
    pub target: u16,
    /// The port at the nodes' own addresses.
    pub node_port: Option<u16>,
}

/// An endpoint of a Service, to which traffic is sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Endpoint {
    /// The pod's address, or the node's for a host-network pod.
    pub address: IpAddr,
    /// The node on which it runs, by its index in the endpoint's view. `None` for an endpoint that is tied to no node, as Services
    /// without selector may have them: such an endpoint is never cut.
    pub node: Option<NodeIx>,
    /// Whether it takes new flows. Unset counts as yes (`addEndpoints`, pkg/proxy/endpointslicecache.go).
    pub ready: bool,
    /// Whether it answers, even if it is about to end. Unset counts as yes, whatever `ready` says.
    pub serving: bool,
    /// Whether it is about to end. Unset counts as no.
    pub terminating: bool,
    /// Content that only some endpoints have; `None` where this one has none.
    pub(super) more: Option<Arc<More>>,
}

/// Content that only some endpoints have, and that is mostly equal within a Service: equal ones share it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct More {
    pub(super) zone: Option<Arc<str>>,
    pub(super) targets: Option<Box<[u16]>>,
    pub(super) hints: Option<Box<Hints>>,
    pub(super) said: SaidNode,
}

/// The node that an endpoint itself names. kube-proxy goes by it, whatever the endpoint is tied to.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(super) enum SaidNode {
    /// That to which it is tied.
    #[default]
    Tied,
    /// None: its address may give the node.
    Nobody,
    /// This one, to which it is not tied.
    Other(NodeName),
}

impl Endpoint {
    /// Where it stands.
    pub fn zone(&self) -> Option<&str> {
        self.more.as_ref()?.zone.as_deref()
    }

    /// Whether the endpoint is local to the kube-proxy of the node at this position and with this name. Only the name counts that the endpoint
    /// itself has (`addEndpoints`, pkg/proxy/endpointslicecache.go).
    pub fn is_local_to(&self, index: Option<NodeIx>, name: &str) -> bool {
        match self.more.as_ref().map(|more| &more.said) {
            None | Some(SaidNode::Tied) => self.node.is_some() && self.node == index,
            Some(SaidNode::Nobody) => false,
            Some(SaidNode::Other(said)) => said == name,
        }
    }

    /// The endpoint's own port for each port of the Service, 0 for none; `None` where they are the Service's targets.
    pub(super) fn targets(&self) -> Option<&[u16]> {
        self.more.as_ref()?.targets.as_deref()
    }

    /// The zones and nodes for which the endpoint is meant; `None` where it has no hints.
    pub fn hints(&self) -> Option<&Hints> {
        self.more.as_ref()?.hints.as_deref()
    }
}

/// The zones and nodes for which an endpoint is meant (`hints` of an EndpointSlice).
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Hints {
    /// Zones whose nodes should use it.
    pub zones: BTreeSet<Arc<str>>,
    /// Nodes that should use it.
    pub nodes: BTreeSet<NodeName>,
}
