//! A Service with all of its slices, and the Service of the view that follows from them.

use std::{
    collections::{BTreeMap, BTreeSet, HashSet},
    net::{IpAddr, SocketAddr},
    sync::Arc,
};

use super::{
    super::{
        node::{NodeIx, NodeName},
        object::{Conflict, ObjectName, ServiceObject},
        service::{Endpoint, More, SaidNode, Service, ServiceMode, ServicePort},
        view::{Backend, Scope},
    },
    check::{Fault, service as check_service},
    names::{Marked, NameId},
    owners::{AddressOwner, By, Kind, Owners},
    reached::Reached,
    slice::{Alike, ListedEndpoint, Slice},
    values::check_address,
};

/// A Service and its slices, as delivered. Slices may come before their Service: until then they have no effect.
#[derive(Debug)]
pub(super) struct Group {
    /// The Service's name.
    pub(super) id: NameId,
    pub(super) service: Option<Arc<ServiceObject>>,
    /// What is wrong with the Service by itself. If anything is, the Service is as if it were not there, and its endpoints are cut for no node.
    pub(super) faults: Vec<Fault>,
    /// The Service exists and cannot be read ([`super::Change::LeftOut`]). Its endpoints are cut for no node.
    is_unreadable: bool,
    /// In the order of their names.
    slices: Vec<Arc<Slice>>,
    pub(super) outcome: GroupResult,
}

/// The result for a Service and its slices.
#[derive(Debug, Default)]
pub(super) struct GroupResult {
    /// The Service. Its endpoints have their nodes' positions in the order of `placed`.
    pub(super) service: Option<Arc<Service>>,
    placed: u64,
    /// For each endpoint the node to which it is tied ([`Kind`]).
    ties: Box<[Option<Marked>]>,
    /// The owners of the addresses of endpoints that name no node, each once.
    pub(super) followed: BTreeSet<NameId>,
    pub(super) conflicts: Vec<Conflict>,
}

impl GroupResult {
    /// Sets the endpoints' positions of nodes, in this order of nodes.
    pub(super) fn place(&mut self, order: u64, of: impl Fn(NameId) -> Option<NodeIx>) {
        let Some(service) = self.service.as_mut().filter(|_| self.placed != order) else { return };
        self.placed = order;
        let places: Vec<Option<NodeIx>> = self.ties.iter().map(|tie| of((*tie)?.id())).collect();
        if !service.endpoints.iter().map(|endpoint| endpoint.node).eq(places.iter().copied()) {
            for (endpoint, place) in Arc::make_mut(service).endpoints.iter_mut().zip(places) {
                endpoint.node = place;
            }
        }
    }

    /// The backends that follow from the Service, each with its node. The same may come twice.
    pub(super) fn tied(&self) -> impl Iterator<Item = (NameId, Backend)> + '_ {
        self.service.iter().flat_map(move |service| {
            let ties = service.endpoints.iter().zip(self.ties.iter());
            let ties = ties.filter_map(|(endpoint, tie)| Some((endpoint, (*tie)?)));
            ties.flat_map(move |(endpoint, tie)| {
                let is_shared = tie.mark() == Kind::Shared as u8;
                let ports = service.ports.iter().enumerate().take(if is_shared { usize::MAX } else { 0 });
                let ports = ports.filter_map(move |(position, port)| {
                    Some(Scope::Port(service.target(position, endpoint)?, port.protocol))
                });
                let scopes = (!is_shared).then_some(Scope::Address).into_iter().chain(ports);
                scopes.map(move |scope| (tie.id(), Backend { address: endpoint.address, scope }))
            })
        })
    }

    fn nodes(&self) -> impl Iterator<Item = Option<NameId>> + '_ {
        self.ties.iter().map(|tie| tie.map(Marked::id))
    }
}

impl GroupResult {
    /// Shares with the result before what is the same, so that followers that compare pointers need not look into it. Whether all is the same, conflicts apart.
    pub(super) fn follow(&mut self, before: &Self) -> bool {
        if !self.nodes().eq(before.nodes()) {
            return false;
        }
        let (Some(service), Some(last)) = (&mut self.service, &before.service) else {
            return self.service.is_none() && before.service.is_none();
        };
        // The shared Service has the positions of the order before.
        self.placed = before.placed;
        for (endpoint, old) in Arc::make_mut(service).endpoints.iter_mut().zip(&last.endpoints) {
            endpoint.node = old.node;
        }
        if service != last {
            return false;
        }
        *service = Arc::clone(last);
        true
    }
}

/// What a Service is checked against.
pub(super) struct Around<'a> {
    pub(super) owners: &'a Owners,
    pub(super) reached: &'a Reached,
    pub(super) is_node: &'a dyn Fn(&str) -> bool,
}

impl Group {
    /// A group without Service and slices, as yet.
    pub(super) fn new(id: NameId) -> Self {
        Self {
            id,
            service: None,
            faults: Vec::new(),
            is_unreadable: false,
            slices: Vec::new(),
            outcome: GroupResult::default(),
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.service.is_none() && !self.is_unreadable && self.slices.is_empty()
    }

    /// Whether a Service exists, readable or not.
    pub(super) fn has_service(&self) -> bool {
        self.service.is_some() || self.is_unreadable
    }

    pub(super) const fn is_unreadable(&self) -> bool {
        self.is_unreadable
    }

    /// Whether the endpoints are cut for no node: what else the Service could use is not known. A Service without ports has no exemption, since
    /// an exemption is one of ports.
    fn withholds(&self) -> bool {
        let has_no_port = self.service.as_ref().is_some_and(|service| service.ports.is_empty());
        self.is_unreadable || has_no_port || !self.faults.is_empty()
    }

    /// The Service, where it is there and has no fault.
    pub(super) fn valid(&self) -> Option<&ServiceObject> {
        self.service.as_deref().filter(|_| self.faults.is_empty())
    }

    /// Replaces the Service's object, or removes it. Returns the one before.
    pub(super) fn set_service(&mut self, service: Option<ServiceObject>) -> Option<Arc<ServiceObject>> {
        self.faults = service.as_ref().map(check_service).unwrap_or_default();
        self.is_unreadable = false;
        std::mem::replace(&mut self.service, service.map(Arc::new))
    }

    /// The Service exists, and cannot be read. Returns its object before.
    pub(super) fn leave_service_out(&mut self) -> Option<Arc<ServiceObject>> {
        let before = self.set_service(None);
        self.is_unreadable = true;
        before
    }

    /// Its slice of that name.
    pub(super) fn slice(&self, name: &str) -> Option<&Slice> {
        self.slices.get(self.place_of(name).ok()?).map(|slice| &**slice)
    }

    /// Its slices, in the order of their names.
    pub(super) fn slices(&self) -> &[Arc<Slice>] {
        &self.slices
    }

    /// Replaces the slice of this name, or removes it. Returns the one before.
    pub(super) fn set_slice(&mut self, name: &str, slice: Option<Slice>) -> Option<Arc<Slice>> {
        match (self.place_of(name), slice.map(Arc::new)) {
            (Ok(at), Some(slice)) => Some(std::mem::replace(&mut self.slices[at], slice)),
            (Ok(at), None) => Some(self.slices.remove(at)),
            (Err(at), Some(slice)) => {
                // Most Services have one slice for good.
                self.slices.reserve_exact(1);
                self.slices.insert(at, slice);
                None
            }
            (Err(_), None) => None,
        }
    }

    fn place_of(&self, slice: &str) -> Result<usize, usize> {
        self.slices.binary_search_by(|known| (*known.name).cmp(slice))
    }

    fn listed(&self) -> impl Iterator<Item = ListedEndpoint<'_>> {
        self.slices.iter().flat_map(|slice| slice.endpoints())
    }

    /// The addresses that its slices claim, as whom, and for which node ([`Kind`]); `None` for no node.
    pub(super) fn claims(&self) -> impl Iterator<Item = (IpAddr, Marked, Option<Marked>)> {
        let withheld = self.withholds();
        let endpoints = self.listed().filter(|endpoint| check_address(endpoint.address).is_ok());
        endpoints.map(move |endpoint| {
            let kind = if endpoint.host_network() { Kind::Shared } else { Kind::Pod };
            let of = endpoint.node.filter(|_| !withheld).map(|node| kind.of(node));
            let by = if withheld || of.is_some() { By::Service } else { By::Follower };
            (endpoint.address, by.named(self.id), of)
        })
    }

    /// The nodes that its endpoints name.
    pub(super) fn named(&self) -> impl Iterator<Item = NameId> {
        self.listed().filter_map(|endpoint| endpoint.node)
    }

    /// Works out the result.
    pub(super) fn evaluate(&self, around: &Around<'_>) -> GroupResult {
        let mut outcome = GroupResult::default();
        let Some(object) = &self.service else { return outcome };
        let others = if self.faults.is_empty() { around.reached.faults(object) } else { Vec::new() };
        for (field, message) in self.faults.iter().cloned().chain(others) {
            let object = ObjectName::Service(Arc::clone(&object.name));
            outcome.conflicts.push(Conflict { object, field, message, is_usual: false });
        }
        if !self.faults.is_empty() {
            return outcome;
        }
        if let ServiceMode::Unknown(name) = &object.mode {
            let message = format!("`{name}` is no mode: expected observe or off; its endpoints are not cut");
            let object = ObjectName::Service(Arc::clone(&object.name));
            let field = "mode".to_owned();
            outcome.conflicts.push(Conflict { object, field, message, is_usual: false });
        }
        let mut service = without_endpoints(object);
        let mut endpoints = Endpoints {
            service: &service,
            around,
            sockets: HashSet::new(),
            taken: Vec::new(),
            followed: BTreeSet::new(),
            more: Alike::default(),
        };
        for slice in &self.slices {
            for (e, endpoint) in slice.endpoints().enumerate() {
                for EndpointFault { what, message, is_usual } in endpoints.take(&endpoint) {
                    let object = ObjectName::Slice(Arc::clone(&slice.name));
                    let field = format!("endpoints[{e}].{what}");
                    outcome.conflicts.push(Conflict { object, field, message, is_usual });
                }
            }
        }
        outcome.followed = endpoints.followed;
        let mut taken = endpoints.taken;
        taken.sort_by(|(a, _), (b, _)| (a.address, a.targets()).cmp(&(b.address, b.targets())));
        outcome.ties = taken.iter().map(|(_, tie)| *tie).collect();
        service.endpoints = Vec::with_capacity(taken.len());
        service.endpoints.extend(taken.into_iter().map(|(endpoint, _)| endpoint));
        outcome.service = Some(Arc::new(service));
        outcome
    }
}

fn without_endpoints(object: &ServiceObject) -> Service {
    let sorted = |ips: &[IpAddr]| {
        let mut ips = ips.to_vec();
        ips.sort_unstable();
        ips.dedup();
        ips
    };
    let mut ports = object.ports.clone();
    ports.sort_unstable();
    Service {
        name: object.name.to_string(),
        cluster_ips: sorted(&object.cluster_ips),
        external_ips: sorted(&object.external_ips),
        load_balancer_ips: sorted(&object.load_balancer_ips),
        affinity: object.affinity,
        internal: object.internal,
        external: object.external,
        mode: object.mode.clone(),
        ports,
        endpoints: Vec::new(),
    }
}

/// Takes endpoints one by one, in the order of their slices.
struct Endpoints<'a> {
    service: &'a Service,
    around: &'a Around<'a>,
    /// Address, index of the port and target of the endpoints that were taken.
    sockets: HashSet<(IpAddr, usize, u16)>,
    taken: Vec<(Endpoint, Option<Marked>)>,
    followed: BTreeSet<NameId>,
    more: Alike<More>,
}

/// What is wrong with an endpoint.
struct EndpointFault {
    what: String,
    message: String,
    /// See [`Conflict::is_usual`].
    is_usual: bool,
}

impl EndpointFault {
    fn new(what: &str, message: String) -> Self {
        Self { what: what.to_owned(), message, is_usual: false }
    }

    fn usual(what: &str, message: String) -> Self {
        Self { is_usual: true, ..Self::new(what, message) }
    }
}

impl Endpoints<'_> {
    fn take(&mut self, object: &ListedEndpoint<'_>) -> Vec<EndpointFault> {
        let mut faults = Vec::new();
        let address = object.address;
        if let Err(why) = check_address(address) {
            return vec![EndpointFault::new("address", why)];
        }
        let targets = object.ports().map(|own| self.targets(own, &mut faults));
        let target = |(place, port): (usize, &ServicePort)| {
            let target = targets.as_ref().map_or(port.target, |own| own[place]);
            (target != 0).then_some((address, place, target))
        };
        let sockets: Vec<(IpAddr, usize, u16)> =
            self.service.ports.iter().enumerate().filter_map(target).collect();
        if let Some((_, port, target)) = sockets.iter().find(|socket| self.sockets.contains(socket)) {
            let socket = SocketAddr::new(address, *target);
            let port = &self.service.ports[*port].name;
            let message = format!("{socket} stands there already for port `{port}`");
            faults.push(EndpointFault::usual("address", message));
            return faults;
        }
        self.sockets.extend(sockets);
        let tie = self.tie(object, &mut faults);
        let said = match (object.node, tie) {
            (None, _) => SaidNode::Nobody,
            (Some(_), Some(_)) => SaidNode::Tied,
            (Some(node), None) => {
                SaidNode::Other(NodeName::from(Arc::clone(self.around.owners.names.text(node))))
            }
        };
        let zone = object.zone().cloned();
        let hints = object.hints().cloned().map(Box::new);
        let endpoint = Endpoint {
            address,
            node: None,
            ready: object.ready(),
            serving: object.serving(),
            terminating: object.terminating(),
            more: self.more.of(More { zone, targets, hints, said }),
        };
        self.taken.push((endpoint, tie));
        faults
    }

    /// The node on which an endpoint runs, and whether that node has the address too ([`Kind`]). `None`: the endpoint is tied to no node, and never cut.
    fn tie(&mut self, object: &ListedEndpoint<'_>, faults: &mut Vec<EndpointFault>) -> Option<Marked> {
        let owners = self.around.owners;
        let Some(node) = object.node else {
            if object.host_network() {
                let message = "missing; a hostNetwork endpoint has its node's address".to_owned();
                faults.push(EndpointFault::new("node", message));
                return None;
            }
            return self.tie_by_address(object.address);
        };
        let name = owners.names.text(node);
        if !(self.around.is_node)(name) {
            faults.push(EndpointFault::usual("node", format!("`{name}` is not among the nodes")));
            return None;
        }
        match owners.of(object.address)? {
            AddressOwner::Node { name, shared, withheld, .. } => {
                let kind = if shared { Kind::Shared } else { Kind::Pod };
                (!withheld && name == node).then(|| kind.of(node))
            }
            owner @ AddressOwner::Disputed(..) => {
                let message = owners.dispute(owner, object.address)?;
                faults.push(EndpointFault::new("address", message));
                None
            }
        }
    }

    /// The node whose own address this is. An endpoint there that names no node shares that node's network: Services without selector have such
    /// endpoints, and the Service `kubernetes` of the API server.
    fn tie_by_address(&mut self, address: IpAddr) -> Option<Marked> {
        let owners = self.around.owners;
        let AddressOwner::Node { name, named: true, withheld, .. } = owners.of(address)? else { return None };
        self.followed.insert(name);
        let is_there = (self.around.is_node)(owners.names.text(name));
        (is_there && !withheld).then(|| Kind::Shared.of(name))
    }

    /// An endpoint's own ports, in the order of the Service's; 0 for those that it does not name.
    fn targets(&self, own: &BTreeMap<String, u16>, faults: &mut Vec<EndpointFault>) -> Box<[u16]> {
        let mut targets = vec![0; self.service.ports.len()].into_boxed_slice();
        for (name, target) in own {
            match self.service.ports.iter().position(|port| port.name == *name) {
                Some(p) => targets[p] = *target,
                None => {
                    let why = format!("`{}` has no port `{name}`", self.service.name);
                    faults.push(EndpointFault::new(&format!("ports.{name}"), why));
                }
            }
        }
        if own.is_empty() && !self.service.ports.is_empty() {
            let why = "empty; leave it out for the Service's own target ports";
            faults.push(EndpointFault::new("ports", why.to_owned()));
        }
        targets
    }
}
