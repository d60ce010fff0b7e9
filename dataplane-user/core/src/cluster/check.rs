use std::{
    collections::{HashMap, HashSet, hash_map::Entry},
    net::IpAddr,
    sync::Arc,
};

use nodefence_common::MAX_NODES;

use super::{
    error::Problem,
    node::{NodeIx, NodeName},
    place::{Place, Placed},
    protocol::Protocol,
    raw::RawBackend,
    service::Service,
    taken::ServiceNames,
    values::{check_node_name, parse_address, parse_port, parse_time},
    view::{Backend, ClusterView, FileFlag, Node, Scope},
};

/// Who holds a backend address, and where the file says so.
struct Owner {
    node: usize,
    line: u32,
    port_scoped: bool,
}

/// Takes a file's values one by one and holds each against all before it.
#[derive(Default)]
pub(super) struct Checker {
    pub(super) nodes: Vec<Node>,
    /// Index and line of each node.
    pub(super) names: HashMap<NodeName, (usize, u32)>,
    pub(super) addresses: HashMap<IpAddr, (usize, u32)>,
    owners: HashMap<IpAddr, Owner>,
    backends: HashMap<Backend, u32>,
    pub(super) services: Option<Vec<Service>>,
    pub(super) taken: ServiceNames,
    texts: HashSet<Arc<str>>,
    flags: Vec<FileFlag>,
    flagged: HashMap<NodeName, u32>,
}

impl Checker {
    pub(super) fn node(
        &mut self,
        n: usize,
        name: &Placed,
        address: &Placed,
        zone: Option<String>,
    ) -> Result<(), Problem> {
        let field = |what: &str| format!("nodes[{n}].{what}");
        if n >= MAX_NODES as usize {
            return Err(name.at.refused(field("name"), format_args!("more than {MAX_NODES} nodes")));
        }
        check_node_name(&name.value).map_err(|why| name.at.refused(field("name"), why))?;
        let (name, at) = (NodeName::from(name.value.as_str()), name.at);
        if let Some((_, line)) = self.names.insert(name.clone(), (n, at.line)) {
            let message = format!("node `{name}` stands on line {line} already");
            return Err(at.refused(field("name"), message));
        }
        let ip = parse_address(&address.value).map_err(|why| address.at.refused(field("address"), why))?;
        if let Some((other, line)) = self.addresses.insert(ip, (n, address.at.line)) {
            let message =
                format!("{ip} is the address of `{}` (line {line}) already", self.nodes[other].name);
            return Err(address.at.refused(field("address"), message));
        }
        self.nodes.push(Node { name, address: ip, zone, backends: Vec::new() });
        Ok(())
    }

    pub(super) fn backend(&mut self, n: usize, b: usize, raw: &RawBackend) -> Result<(), Problem> {
        let field = |what: &str| format!("nodes[{n}].backends[{b}].{what}");
        let at = raw.address.at;
        let ip = parse_address(&raw.address.value).map_err(|why| at.refused(field("address"), why))?;
        let scope = if raw.host_network {
            Scope::Port(port(raw, &field)?, protocol(raw, &field)?)
        } else {
            for (value, what) in [(&raw.port, "port"), (&raw.protocol, "protocol")] {
                if let Some(value) = value {
                    return Err(value.at.refused(
                        field(what),
                        "only a hostNetwork backend has one; a pod's address is its own, whatever the port",
                    ));
                }
            }
            if let Some((owner, _)) = self.addresses.get(&ip) {
                let message = format!(
                    "{ip} is the address of node `{}`; a backend that shares it needs hostNetwork: true, \
                     port and protocol",
                    self.nodes[*owner].name
                );
                return Err(at.refused(field("address"), message));
            }
            Scope::Address
        };
        let backend = Backend { address: ip, scope };
        self.own(n, backend, at, &field)?;
        if let Some(line) = self.backends.insert(backend, at.line) {
            let message = format!("backend {backend} stands on line {line} already");
            return Err(at.refused(field("address"), message));
        }
        self.nodes[n].backends.push(backend);
        Ok(())
    }

    /// A backend that follows from an endpoint; it may be listed, or follow from another endpoint, already.
    pub(super) fn implied(
        &mut self,
        n: usize,
        backend: Backend,
        at: Place,
        field: &impl Fn(&str) -> String,
    ) -> Result<(), Problem> {
        self.own(n, backend, at, field)?;
        if let Entry::Vacant(free) = self.backends.entry(backend) {
            free.insert(at.line);
            self.nodes[n].backends.push(backend);
        }
        Ok(())
    }

    /// Whether the address is known to be shared with its node: it is a node's, or is listed with `hostNetwork`.
    pub(super) fn shared(&self, ip: IpAddr) -> bool {
        self.addresses.contains_key(&ip) || self.owners.get(&ip).is_some_and(|owner| owner.port_scoped)
    }

    /// One address has one node and one kind of backend.
    fn own(
        &mut self,
        n: usize,
        backend: Backend,
        at: Place,
        field: &impl Fn(&str) -> String,
    ) -> Result<(), Problem> {
        let ip = backend.address;
        if let Some((owner, _)) = self.addresses.get(&ip).filter(|(owner, _)| *owner != n) {
            let message = format!(
                "{ip} is the address of `{}`, not of `{}`",
                self.nodes[*owner].name, self.nodes[n].name
            );
            return Err(at.refused(field("address"), message));
        }
        let port_scoped = matches!(backend.scope, Scope::Port(..));
        let owner = match self.owners.entry(ip) {
            Entry::Vacant(free) => {
                free.insert(Owner { node: n, line: at.line, port_scoped });
                return Ok(());
            }
            Entry::Occupied(owner) => owner.into_mut(),
        };
        if owner.node != n {
            let message = format!(
                "{ip} is a backend of `{}` (line {}) and of `{}`",
                self.nodes[owner.node].name, owner.line, self.nodes[n].name
            );
            return Err(at.refused(field("address"), message));
        }
        if owner.port_scoped != port_scoped {
            let message = format!("{ip} stands with and without hostNetwork (line {})", owner.line);
            return Err(at.refused(field("address"), message));
        }
        Ok(())
    }

    pub(super) fn flag(
        &mut self,
        f: usize,
        node: &Placed,
        until: Option<&Placed>,
        reason: String,
    ) -> Result<(), Problem> {
        let field = |what: &str| format!("flags[{f}].{what}");
        let name = self.nodes[self.node_named(node, &field)?].name.clone();
        if let Some(line) = self.flagged.insert(name.clone(), node.at.line) {
            let message = format!("`{name}` is flagged on line {line} already");
            return Err(node.at.refused(field("node"), message));
        }
        let until = match until {
            None => None,
            Some(text) => Some(parse_time(&text.value).ok_or_else(|| {
                let message =
                    format!("`{}` is no time: expected RFC 3339 as in 2026-12-01T00:00:00Z", text.value);
                text.at.refused(field("until"), message)
            })?),
        };
        self.flags.push(FileFlag { node: name, until, reason });
        Ok(())
    }

    /// The index that the node with this name has in the file.
    pub(super) fn node_named(
        &self,
        node: &Placed,
        field: &impl Fn(&str) -> String,
    ) -> Result<usize, Problem> {
        match self.names.get(node.value.as_str()) {
            Some((n, _)) => Ok(*n),
            None => {
                Err(node.at.refused(field("node"), format_args!("`{}` is not among the nodes", node.value)))
            }
        }
    }

    /// One copy of a text that many endpoints share.
    pub(super) fn shared_text(&mut self, text: &str) -> Arc<str> {
        if let Some(known) = self.texts.get(text) {
            return Arc::clone(known);
        }
        let new: Arc<str> = text.into();
        self.texts.insert(Arc::clone(&new));
        new
    }

    pub(super) fn finish(mut self) -> ClusterView {
        let mut order: Vec<usize> = (0..self.nodes.len()).collect();
        order.sort_unstable_by(|a, b| self.nodes[*a].name.cmp(&self.nodes[*b].name));
        // Where each node of the file stands in the view.
        let mut place = vec![NodeIx::new(0); order.len()];
        for (sorted, n) in (0..).map(NodeIx::new).zip(order) {
            place[n] = sorted;
        }
        self.nodes.sort_unstable_by(|a, b| a.name.cmp(&b.name));
        for node in &mut self.nodes {
            node.backends.sort_unstable();
            node.backends.shrink_to_fit();
        }
        if let Some(services) = &mut self.services {
            services.sort_unstable_by(|a, b| a.name.cmp(&b.name));
            let endpoints = services.iter_mut().flat_map(|service| &mut service.endpoints);
            for node in endpoints.filter_map(|endpoint| endpoint.node.as_mut()) {
                *node = place[node.position()];
            }
        }
        self.flags.sort_by(|a, b| a.node.cmp(&b.node));
        ClusterView {
            nodes: self.nodes.into_iter().map(Arc::new).collect(),
            services: self.services.map(|services| services.into_iter().map(Arc::new).collect()),
            flags: self.flags,
        }
    }
}

fn port(raw: &RawBackend, field: &impl Fn(&str) -> String) -> Result<u16, Problem> {
    match &raw.port {
        Some(port) => parse_port(&port.value).map_err(|why| port.at.refused(field("port"), why)),
        None => {
            let message = "missing; a hostNetwork backend is cut by its port";
            Err(raw.address.at.refused(field("port"), message))
        }
    }
}

fn protocol(raw: &RawBackend, field: &impl Fn(&str) -> String) -> Result<Protocol, Problem> {
    match &raw.protocol {
        Some(protocol) => protocol_of(protocol, field),
        None => {
            let message = "missing; a hostNetwork backend needs tcp, udp or sctp";
            Err(raw.address.at.refused(field("protocol"), message))
        }
    }
}

/// A protocol that is spelled out.
pub(super) fn protocol_of(text: &Placed, field: &impl Fn(&str) -> String) -> Result<Protocol, Problem> {
    text.value.parse().map_err(|why: String| text.at.refused(field("protocol"), why))
}
