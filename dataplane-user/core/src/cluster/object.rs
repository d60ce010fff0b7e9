//! Single objects as sources deliver them. The builder decides which of them are consistent with each other.

use std::{collections::BTreeMap, fmt, net::IpAddr, sync::Arc, time::Duration};

use super::{
    node::NodeName,
    service::{Hints, ServiceMode, ServicePort, TrafficPolicy},
    view::Backend,
};

/// A node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeObject {
    /// A DNS-1123 subdomain.
    pub name: NodeName,
    /// What tells it from another machine that gets the same name later, where the source says so.
    pub uid: Option<Arc<str>>,
    /// All addresses of its own: the first is the one by which the other nodes reach it.
    pub addresses: Vec<IpAddr>,
    /// Where it stands.
    pub zone: Option<Arc<str>>,
    /// Which pool it belongs to.
    pub pool: Option<Arc<str>>,
    /// What runs on it, beside the endpoints that name it.
    pub backends: Vec<Backend>,
}

impl NodeObject {
    /// A node with nothing but addresses.
    pub fn new(name: impl Into<NodeName>, addresses: Vec<IpAddr>) -> Self {
        Self { name: name.into(), uid: None, addresses, zone: None, pool: None, backends: Vec::new() }
    }
}

/// A Service, without its endpoints.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServiceObject {
    /// As in `default/web`.
    pub name: Arc<str>,
    /// At most one of each family.
    pub cluster_ips: Vec<IpAddr>,
    /// Addresses that others route to the nodes.
    pub external_ips: Vec<IpAddr>,
    /// Addresses of load balancers that leave the destination as it is.
    pub load_balancer_ips: Vec<IpAddr>,
    /// Affinity by client address, and how long it lasts after the last packet.
    pub affinity: Option<Duration>,
    /// Which endpoints traffic to the cluster IPs may use.
    pub internal: TrafficPolicy,
    /// Which endpoints traffic to all other virtual addresses may use.
    pub external: TrafficPolicy,
    /// Whether its endpoints are cut.
    pub mode: ServiceMode,
    /// One at least, unless the Service has no cluster IP.
    pub ports: Vec<ServicePort>,
}

impl ServiceObject {
    /// A Service that is reached at cluster IPs alone, with all of its endpoints.
    pub fn new(name: impl Into<Arc<str>>, cluster_ips: Vec<IpAddr>, ports: Vec<ServicePort>) -> Self {
        Self {
            name: name.into(),
            cluster_ips,
            external_ips: Vec::new(),
            load_balancer_ips: Vec::new(),
            affinity: None,
            internal: TrafficPolicy::Cluster,
            external: TrafficPolicy::Cluster,
            mode: ServiceMode::Cut,
            ports,
        }
    }
}

/// Some endpoints of a Service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SliceObject {
    /// Unique among all slices. Where slices of a Service have the same endpoint, that of the first by name counts (`addEndpoints`,
    /// pkg/proxy/endpointslicecache.go).
    pub name: Arc<str>,
    /// The Service's name.
    pub service: Arc<str>,
    /// The endpoints that it lists.
    pub endpoints: Vec<EndpointObject>,
}

/// An endpoint.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EndpointObject {
    /// The pod's address, or the node's for a host-network pod.
    pub address: IpAddr,
    /// The node it runs on. Without one it belongs to the node that has the address as its own, if there is such a node.
    pub node: Option<NodeName>,
    /// Whether its source says that it shares its node's network, or names a node and does not say that it is a pod. Only its ports are cut.
    pub host_network: bool,
    /// Where it stands.
    pub zone: Option<Arc<str>>,
    /// Its own ports by the names of the Service's, which all endpoints of a slice may share; `None` where they are the Service's targets.
    pub ports: Option<Arc<BTreeMap<String, u16>>>,
    /// Whether it takes new flows, or its Service has `publishNotReadyAddresses`.
    pub ready: bool,
    /// Whether it answers, even if it is about to end.
    pub serving: bool,
    /// Whether it is about to end.
    pub terminating: bool,
    /// The zones and nodes for which it is meant.
    pub hints: Option<Box<Hints>>,
}

impl EndpointObject {
    /// An endpoint that takes new flows, at the Service's target ports.
    pub fn ready(address: IpAddr, node: Option<NodeName>) -> Self {
        Self {
            address,
            node,
            host_network: false,
            zone: None,
            ports: None,
            ready: true,
            serving: true,
            terminating: false,
            hints: None,
        }
    }
}

/// The kind and name of an object.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ObjectName {
    /// A node by its name.
    Node(NodeName),
    /// A Service by its name.
    Service(Arc<str>),
    /// A slice by its name.
    Slice(Arc<str>),
}

impl fmt::Display for ObjectName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Node(name) => write!(f, "node `{name}`"),
            Self::Service(name) => write!(f, "Service `{name}`"),
            Self::Slice(name) => write!(f, "slice `{name}`"),
        }
    }
}

/// An inconsistency of an object, in itself or with others.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, thiserror::Error)]
#[error("{object}, {field}: {message}")]
pub struct Conflict {
    /// Which object.
    pub object: ObjectName,
    /// Which of its fields, as in `addresses[1]`.
    pub field: String,
    /// What is wrong, and what was expected.
    pub message: String,
    /// A sound cluster has such things too: an endpoint on a node that is no member, or one that is in two slices for a moment.
    pub is_usual: bool,
}
