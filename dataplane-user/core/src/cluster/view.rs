use std::{fmt, net::IpAddr, sync::Arc};

use jiff::Timestamp;
use nodefence_common::{Addr, PortKey};

use super::{
    node::{NodeIx, NodeName},
    protocol::Protocol,
    service::Service,
};

/// The name of the source of views.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SourceName {
    name: &'static str,
    key: &'static str,
}

impl SourceName {
    /// `name`: for texts, with its article. `key`: for programs.
    pub const fn new(name: &'static str, key: &'static str) -> Self {
        Self { name, key }
    }

    /// The name for programs.
    pub const fn key(self) -> &'static str {
        self.key
    }
}

/// The name while the source is not known yet.
impl Default for SourceName {
    fn default() -> Self {
        Self::new("the source of nodes", "source")
    }
}

impl fmt::Display for SourceName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name)
    }
}

/// The cluster, checked: names and addresses are unique, no backend belongs to two nodes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ClusterView {
    /// Sorted by name, so that two files that differ only in order give the same view. Views that follow each other share those that did not change
    /// ([`ClusterView::sharing`]).
    pub nodes: Vec<Arc<Node>>,
    /// Sorted by name, and shared as nodes are. `None` where the source says nothing of Services: then no other backends for a flow are known.
    pub services: Option<Vec<Arc<Service>>>,
    /// The flags of the source itself; every name is one of `nodes`.
    pub flags: Vec<FileFlag>,
    /// The name of the source.
    pub source: SourceName,
}

impl ClusterView {
    /// The node of that name.
    pub fn node(&self, name: &str) -> Option<&Node> {
        self.at(self.index(name)?)
    }

    /// This view, with the nodes and Services of an earlier view in place of equal ones: a follower of both finds changes by comparing pointers. Where a source does
    /// not call this, nodes and Services that differ by pointer may still be equal.
    #[must_use]
    pub fn sharing(mut self, before: &Self) -> Self {
        share(&mut self.nodes, &before.nodes, |node| &node.name);
        if let (Some(services), Some(before)) = (&mut self.services, &before.services) {
            share(services, before, |service| &service.name);
        }
        self
    }

    /// Nodes with backends that they did not have in an earlier view.
    pub(crate) fn grown_since(&self, before: &Self) -> impl Iterator<Item = &Node> {
        // Most nodes stand at the same position as before.
        let there = |at, node| before.nodes.get(at).is_some_and(|old| Arc::ptr_eq(old, node));
        let others = self.nodes.iter().enumerate().filter(move |(at, node)| !there(*at, *node));
        let others = others.map(|(_, node)| (node, before.shared(&node.name)));
        let others = others.filter(|(node, old)| !old.is_some_and(|old| Arc::ptr_eq(node, old)));
        let grown = others.filter(|(node, old)| {
            let old = old.map_or(&[][..], |old| &old.backends);
            // Both are in the order of `Backend`.
            node.backends.iter().any(|backend| old.binary_search(backend).is_err())
        });
        grown.map(|(node, _)| &**node)
    }

    /// Whether this view has this very node, by its pointer.
    pub fn shares(&self, node: &Arc<Node>) -> bool {
        self.shared(&node.name).is_some_and(|ours| Arc::ptr_eq(ours, node))
    }

    /// Whether the other has nodes of the same names.
    pub fn has_same_names(&self, other: &Self) -> bool {
        let same = |(one, other): (&Arc<Node>, &Arc<Node>)| Arc::ptr_eq(one, other) || one.name == other.name;
        self.nodes.len() == other.nodes.len() && self.nodes.iter().zip(&other.nodes).all(same)
    }

    fn shared(&self, name: &str) -> Option<&Arc<Node>> {
        self.nodes.get(self.index(name)?.position())
    }

    /// Where the node of that name stands.
    pub fn index(&self, name: &str) -> Option<NodeIx> {
        let found = self.nodes.binary_search_by(|node| node.name.as_str().cmp(name));
        found.ok().map(|at| NodeIx::new(at as u32))
    }

    /// The node that stands there. `None` for an index of another view that has more nodes.
    pub fn at(&self, node: NodeIx) -> Option<&Node> {
        self.nodes.get(node.position()).map(|node| &**node)
    }

    /// All nodes and where they stand.
    pub fn indexed(&self) -> impl Iterator<Item = (NodeIx, &Node)> {
        (0..).map(NodeIx::new).zip(self.nodes.iter().map(|node| &**node))
    }

    /// How many endpoints all Services have together; `None` where nothing is known of Services.
    pub fn endpoints(&self) -> Option<usize> {
        Some(self.services.as_ref()?.iter().map(|service| service.endpoints.len()).sum())
    }

    /// The addresses that are left out of the backends ([`Node::left_out`]), with their nodes.
    pub fn left_out(&self) -> impl Iterator<Item = (&Node, IpAddr)> {
        self.nodes.iter().flat_map(|node| node.left_out.iter().map(move |ip| (&**node, *ip)))
    }

    /// How many backends all nodes have together.
    pub fn backends(&self) -> usize {
        self.nodes.iter().map(|node| node.backends.len()).sum()
    }
}

/// Replaces elements by equal ones of `before`. Both lists are in the order of these names.
fn share<T: PartialEq>(all: &mut [Arc<T>], before: &[Arc<T>], name: impl Fn(&T) -> &str) {
    let mut before = before.iter().peekable();
    for one in all {
        while before.next_if(|old| name(old) < name(one)).is_some() {}
        if let Some(old) = before.next_if_eq(&&*one) {
            *one = Arc::clone(old);
        }
    }
}

/// A node and what runs on it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Node {
    /// A DNS-1123 subdomain, as Kubernetes names its nodes.
    pub name: NodeName,
    /// What tells it from another machine that gets the same name later, where the source says so.
    pub uid: Option<Arc<str>>,
    /// All known addresses of its own that no other node claims. The first is the one by which the other nodes reach it.
    pub addresses: Vec<IpAddr>,
    /// Where it stands.
    pub zone: Option<Arc<str>>,
    /// Which pool it belongs to.
    pub pool: Option<Arc<str>>,
    /// In the order of their addresses and ports.
    pub backends: Vec<Backend>,
    /// Addresses that would be backends as a whole, in a family in which no address of the node is named: such an address may be the node's own, and is never cut.
    /// In order.
    pub left_out: Vec<IpAddr>,
}

impl Node {
    /// Its own addresses, and those of its backends; some may come twice.
    pub fn all_addresses(&self) -> impl Iterator<Item = IpAddr> {
        self.addresses.iter().copied().chain(self.backends.iter().map(|backend| backend.address))
    }
}

/// An address, or a port of one, to which a Service may send a flow.
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
    pub(crate) fn port_key(&self) -> Option<PortKey> {
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

/// Longest reason of a flag, in characters: it stands in one row of a table, and in the file that outlives the agent.
const LONGEST_REASON: usize = 1_000;

/// Whether the reason of a flag is short enough.
///
/// # Errors
/// Where the reason is too long: what was expected, and how long it is.
pub fn reason_fits(reason: &str) -> Result<(), String> {
    let length = reason.chars().count();
    if length > LONGEST_REASON {
        return Err(format!("{LONGEST_REASON} characters at most, and these are {length}"));
    }
    Ok(())
}

/// A flag that comes with the view.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileFlag {
    /// Name of the node.
    pub node: NodeName,
    /// When it ends by the wall clock; `None` for as long as it stands there.
    pub until: Option<Timestamp>,
    /// Why, in the operator's words; may be empty.
    pub reason: String,
}
