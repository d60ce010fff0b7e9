use std::{fmt, net::IpAddr};

use jiff::Timestamp;
use nodefence_common::{Addr, PortKey};

use super::{
    node::{NodeIx, NodeName},
    protocol::Protocol,
    service::Service,
};

/// Everyone that exists, checked: names and addresses are unique, no backend belongs to two nodes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ClusterView {
    /// Sorted by name, so that two files that differ only in order give the same view.
    pub nodes: Vec<Node>,
    /// Sorted by name. `None` where the source says nothing of Services: what a flow may go to instead is not known then.
    pub services: Option<Vec<Service>>,
    /// What the file itself flags; every name is one of `nodes`.
    pub flags: Vec<FileFlag>,
}

impl ClusterView {
    /// The node of that name.
    pub fn node(&self, name: &str) -> Option<&Node> {
        self.at(self.index(name)?)
    }

    /// Nodes with backends that they did not have in an earlier view.
    pub fn grown_since(&self, before: &Self) -> impl Iterator<Item = &Node> {
        self.nodes.iter().filter(|node| {
            let old = before.node(&node.name).map_or(&[][..], |old| &old.backends);
            // Both are in the order of `Backend`.
            node.backends.iter().any(|backend| old.binary_search(backend).is_err())
        })
    }

    /// Where the node of that name stands.
    pub fn index(&self, name: &str) -> Option<NodeIx> {
        let found = self.nodes.binary_search_by(|node| node.name.as_str().cmp(name));
        found.ok().map(|at| NodeIx::new(at as u32))
    }

    /// The node that stands there. `None` for an index of another view that has more nodes.
    pub fn at(&self, node: NodeIx) -> Option<&Node> {
        self.nodes.get(node.position())
    }

    /// All nodes and where they stand.
    pub fn indexed(&self) -> impl Iterator<Item = (NodeIx, &Node)> {
        (0..).map(NodeIx::new).zip(&self.nodes)
    }

    /// How many endpoints all Services have together; `None` where nothing is known of Services.
    pub fn endpoints(&self) -> Option<usize> {
        Some(self.services.as_ref()?.iter().map(|service| service.endpoints.len()).sum())
    }

    /// How many backends all nodes have together.
    pub fn backends(&self) -> usize {
        self.nodes.iter().map(|node| node.backends.len()).sum()
    }
}

/// A node and what runs on it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Node {
    /// A DNS-1123 subdomain, as Kubernetes names its nodes.
    pub name: NodeName,
    /// The address by which the other nodes reach it.
    pub address: IpAddr,
    /// Where it stands, for whoever reads it.
    pub zone: Option<String>,
    /// In the order of their addresses and ports.
    pub backends: Vec<Backend>,
}

/// Where a Service may send a flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Backend {
    /// The pod's address, or the node's for a host-network pod.
    pub address: IpAddr,
    /// How much of the address is the backend's.
    pub scope: Scope,
}

/// How much of its address a backend owns.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Scope {
    /// All of it: a pod with a network of its own.
    Address,
    /// One port: a host-network pod, which shares the address with the kubelet, ssh and the tunnel.
    Port(u16, Protocol),
}

impl Backend {
    /// Its key in `backends`.
    pub fn addr(&self) -> Addr {
        self.address.into()
    }

    /// Its key in `ports`, where it has one.
    pub fn port_key(&self) -> Option<PortKey> {
        match self.scope {
            Scope::Address => None,
            Scope::Port(port, protocol) => Some(PortKey::endpoint(self.addr(), port, protocol.number())),
        }
    }
}

impl fmt::Display for Backend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.scope, self.address) {
            (Scope::Address, address) => write!(f, "{address}"),
            (Scope::Port(port, protocol), IpAddr::V4(v4)) => write!(f, "{v4}:{port}/{protocol}"),
            (Scope::Port(port, protocol), IpAddr::V6(v6)) => write!(f, "[{v6}]:{port}/{protocol}"),
        }
    }
}

/// A flag that stands in the cluster file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileFlag {
    /// Name of the node.
    pub node: NodeName,
    /// When it ends by the wall clock; `None` for as long as it stands in the file.
    pub until: Option<Timestamp>,
    /// Why, in the operator's words; may be empty.
    pub reason: String,
}
