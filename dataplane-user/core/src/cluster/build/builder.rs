use std::{
    cell::LazyCell,
    collections::{BTreeMap, BTreeSet, HashMap, HashSet},
    net::IpAddr,
    sync::Arc,
};

use foldhash::fast::RandomState;
use nodefence_common::MAX_NODES;

use super::{
    super::{
        node::{NodeIx, NodeName},
        object::{Conflict, NodeObject, ObjectName, ServiceObject, SliceObject},
        view::{Backend, ClusterView, Node},
    },
    change::{Change, Entry, Rules, relist},
    group::{Around, Group},
    member::Member,
    owners::{Kind, Owners, Unit},
    reached::Reached,
};

/// All objects that a source delivered, and what they come to. That follows from the objects alone: it does not matter in which order they came.
///
/// A change costs in proportion to the nodes and Services that it touches.
#[derive(Debug)]
pub struct Builder {
    rules: Rules,
    nodes: BTreeMap<NodeName, Member>,
    /// Whether the source says anything of Services.
    knows_services: bool,
    groups: BTreeMap<Arc<str>, Group>,
    /// The Service of each slice.
    service_of: HashMap<Arc<str>, Arc<str>, RandomState>,
    owners: Owners,
    reached: Reached,
    /// Backends of nodes because of endpoints, and how often.
    tied: HashMap<NodeName, HashMap<Backend, u32>, RandomState>,
    /// The Services whose endpoints name a node.
    named_by: HashMap<NodeName, BTreeSet<Arc<str>>, RandomState>,
    /// Nodes beyond as many as there may be, the last by name.
    surplus: BTreeSet<NodeName>,
    /// Rises whenever nodes may stand elsewhere in the view.
    order: u64,
    dirty: BTreeSet<Unit>,
    /// The conflicts of nodes that went since what was touched was last worked out.
    left: Vec<Conflict>,
    /// Who has conflicts.
    conflicting: BTreeSet<Unit>,
    /// Addresses of the machine that the agent runs on, and whose they are.
    machine: (NodeName, BTreeSet<IpAddr>),
    /// Something is in the next view that is not in the last one, or the other way round.
    is_changed: bool,
}

impl Builder {
    /// Without any object.
    pub fn new(rules: Rules) -> Self {
        Self {
            rules,
            nodes: BTreeMap::new(),
            knows_services: false,
            groups: BTreeMap::new(),
            service_of: HashMap::default(),
            owners: Owners::default(),
            reached: Reached::default(),
            tied: HashMap::default(),
            named_by: HashMap::default(),
            surplus: BTreeSet::new(),
            order: 1,
            dirty: BTreeSet::new(),
            left: Vec::new(),
            conflicting: BTreeSet::new(),
            machine: Default::default(),
            is_changed: false,
        }
    }

    /// As [`Builder::apply_all`], of one change.
    pub fn apply(&mut self, change: Change) -> Vec<Conflict> {
        self.apply_all([change])
    }

    /// Takes changes in this order, as if they came at once. Gives the conflicts that are there since, in the order of objects; under strict rules the first of
    /// them, and nothing is changed then.
    pub fn apply_all(&mut self, changes: impl IntoIterator<Item = Change>) -> Vec<Conflict> {
        let knew = self.knows_services;
        let mut undo = Vec::new();
        for change in changes {
            self.knows_services |= matches!(change, Change::Service(_) | Change::Services(_));
            for entry in self.entries(change) {
                let old = self.set(entry);
                if self.rules == Rules::Strict {
                    undo.push(old);
                }
            }
        }
        self.is_changed |= self.knows_services != knew;
        let mut brought = self.settle();
        if self.rules == Rules::Strict && !brought.is_empty() {
            for entry in undo.into_iter().rev() {
                self.set(entry);
            }
            self.settle();
            self.knows_services = knew;
            brought.truncate(1);
        }
        brought
    }

    /// The machine that the agent runs on is this node, and these are all of its addresses, whether the node's object names them or not: its own sockets have them,
    /// so that only ports of them can be cut. What another node claims of them is neither's. Gives the conflicts that this brought.
    pub fn set_machine(&mut self, own: &NodeName, addresses: BTreeSet<IpAddr>) -> Vec<Conflict> {
        let (last, known) = std::mem::replace(&mut self.machine, (own.clone(), addresses));
        let (_, addresses) = &self.machine;
        for ip in known.iter().filter(|ip| last != *own || !addresses.contains(ip)) {
            self.owners.release(*ip, &Unit::Machine);
        }
        for ip in addresses.iter().filter(|ip| last != *own || !known.contains(ip)) {
            self.owners.claim(*ip, Unit::Machine, Some((own.clone(), Kind::Shared)));
        }
        self.settle()
    }

    /// All conflicts that there are, in the order of nodes and Services.
    pub fn conflicts(&self) -> impl Iterator<Item = &Conflict> {
        self.conflicting.iter().flat_map(|unit| self.conflicts_of(unit))
    }

    /// Whether the view is another one than when it was last taken.
    pub fn is_changed(&self) -> bool {
        self.is_changed
    }

    /// The view that follows from all objects. It shares with the one before what did not change since.
    pub fn view(&mut self) -> ClusterView {
        let nodes: Vec<Arc<Node>> = self.nodes.values().filter_map(|member| member.node.clone()).collect();
        // Most changes move no endpoint to another node.
        let places = LazyCell::new(|| {
            let places = nodes.iter().map(|node| &node.name).zip((0..).map(NodeIx::new));
            places.collect::<HashMap<&NodeName, NodeIx, RandomState>>()
        });
        let mut services = Vec::with_capacity(self.groups.len());
        for group in self.groups.values_mut() {
            group.outcome.place(self.order, |node| places.get(node).copied());
            services.extend(group.outcome.service.clone());
        }
        drop(places);
        self.is_changed = false;
        ClusterView { services: self.knows_services.then_some(services), nodes, ..ClusterView::default() }
    }

    fn entries(&self, change: Change) -> Vec<Entry> {
        match change {
            Change::Node(node) => vec![Entry::Node(node.name.clone(), Some(node))],
            Change::Service(service) => vec![Entry::Service(Arc::clone(&service.name), Some(service))],
            Change::Slice(slice) => vec![Entry::Slice(Arc::clone(&slice.name), Some(slice))],
            Change::Gone(ObjectName::Node(name)) => vec![Entry::Node(name, None)],
            Change::Gone(ObjectName::Service(name)) => vec![Entry::Service(name, None)],
            Change::Gone(ObjectName::Slice(name)) => vec![Entry::Slice(name, None)],
            Change::Nodes(nodes) => {
                let listed = nodes.into_iter().map(|node| (node.name.clone(), node));
                let all = relist(self.nodes.keys().cloned(), listed);
                all.into_iter().map(|(name, node)| Entry::Node(name, node)).collect()
            }
            Change::Services(services) => {
                let listed = services.into_iter().map(|service| (Arc::clone(&service.name), service));
                let all = self.groups.iter().filter(|(_, group)| group.service.is_some());
                let all = relist(all.map(|(name, _)| Arc::clone(name)), listed);
                all.into_iter().map(|(name, service)| Entry::Service(name, service)).collect()
            }
            Change::Slices(slices) => {
                let listed = slices.into_iter().map(|slice| (Arc::clone(&slice.name), slice));
                let all = relist(self.service_of.keys().cloned(), listed);
                all.into_iter().map(|(name, slice)| Entry::Slice(name, slice)).collect()
            }
        }
    }

    /// Takes an object, or none, in the place of what has its name. Gives what puts that back.
    fn set(&mut self, entry: Entry) -> Entry {
        match entry {
            Entry::Node(name, node) => {
                let old = self.set_node(&name, node);
                Entry::Node(name, old)
            }
            Entry::Service(name, service) => {
                let old = self.set_service(&name, service);
                Entry::Service(name, old)
            }
            Entry::Slice(name, slice) => {
                let old = self.set_slice(&name, slice);
                Entry::Slice(name, old)
            }
        }
    }

    fn set_node(&mut self, name: &NodeName, object: Option<NodeObject>) -> Option<NodeObject> {
        if self.nodes.get(name).map(|member| &member.object) == object.as_ref() {
            return object;
        }
        let unit = Unit::Node(name.clone());
        let old = self.nodes.remove(name);
        for (ip, _) in old.iter().flat_map(Member::claims) {
            self.owners.release(ip, &unit);
        }
        let (was_valid, mut is_valid) = (old.as_ref().is_some_and(Member::is_valid), false);
        let (object, last) = match old {
            Some(old) => (object, Some((old.object, old.node, old.conflicts))),
            None => (object, None),
        };
        let (old, node, conflicts) =
            last.map_or((None, None, Vec::new()), |(old, node, conflicts)| (Some(old), node, conflicts));
        match object {
            Some(object) => {
                // What it came to so far is what it is held against.
                let member = Member::new(object, node, conflicts);
                is_valid = member.is_valid();
                for (ip, kind) in member.claims() {
                    self.owners.claim(ip, unit.clone(), Some((name.clone(), kind)));
                }
                self.nodes.insert(name.clone(), member);
            }
            None => {
                self.order += u64::from(node.is_some());
                self.is_changed |= node.is_some();
                self.left.extend(conflicts);
            }
        }
        self.dirty.insert(unit);
        if was_valid != is_valid {
            self.number_of_nodes_changed(name);
        }
        old
    }

    /// Those who name the node are to be looked at again, and so is who is surplus.
    fn number_of_nodes_changed(&mut self, name: &NodeName) {
        let by = self.named_by.get(name).into_iter().flatten().cloned();
        self.dirty.extend(by.map(Unit::Service));
        let valid = || self.nodes.iter().filter(|(_, member)| member.is_valid()).map(|(name, _)| name);
        if self.nodes.len() <= MAX_NODES as usize && self.surplus.is_empty() {
            return;
        }
        let surplus: BTreeSet<NodeName> = valid().skip(MAX_NODES as usize).cloned().collect();
        for name in surplus.symmetric_difference(&self.surplus) {
            self.dirty.insert(Unit::Node(name.clone()));
            let by = self.named_by.get(name).into_iter().flatten().cloned();
            self.dirty.extend(by.map(Unit::Service));
        }
        self.surplus = surplus;
    }

    fn set_service(&mut self, name: &Arc<str>, object: Option<ServiceObject>) -> Option<ServiceObject> {
        if self.groups.get(name).and_then(|group| group.service.as_ref()) == object.as_ref() {
            return object;
        }
        self.change_group(name, |group| group.set_service(object))
    }

    fn set_slice(&mut self, name: &Arc<str>, object: Option<SliceObject>) -> Option<SliceObject> {
        let group = self.service_of.get(name).and_then(|service| self.groups.get(service));
        if group.and_then(|group| group.slices.get(name)) == object.as_ref() {
            return object;
        }
        let old = self.service_of.remove(name);
        let old = old.and_then(|service| self.change_group(&service, |group| group.slices.remove(name)));
        if let Some(object) = object {
            let service = Arc::clone(&object.service);
            self.service_of.insert(Arc::clone(name), Arc::clone(&service));
            self.change_group(&service, |group| group.slices.insert(Arc::clone(name), object));
        }
        old
    }

    /// Changes a Service or its slices, and what they claim.
    fn change_group<T>(&mut self, name: &Arc<str>, change: impl FnOnce(&mut Group) -> T) -> T {
        let unit = Unit::Service(Arc::clone(name));
        let mut group = self.groups.remove(name).unwrap_or_default();
        for (ip, _) in group.claims() {
            self.owners.release(ip, &unit);
        }
        for node in group.named() {
            if let Some(by) = self.named_by.get_mut(node) {
                by.remove(name);
                if by.is_empty() {
                    self.named_by.remove(node);
                }
            }
        }
        if let Some(service) = group.valid() {
            self.reached.release(service, &mut self.dirty);
        }
        let changed = change(&mut group);
        for (ip, of) in group.claims() {
            self.owners.claim(ip, unit.clone(), of);
        }
        for node in group.named() {
            self.named_by.entry(node.clone()).or_default().insert(Arc::clone(name));
        }
        if let Some(service) = group.valid() {
            self.reached.claim(service, &mut self.dirty);
        }
        self.groups.insert(Arc::clone(name), group);
        self.dirty.insert(unit);
        changed
    }

    /// Works out anew what was touched. Gives the conflicts that were not there before.
    fn settle(&mut self) -> Vec<Conflict> {
        let mut dirty = std::mem::take(&mut self.dirty);
        self.owners.settle(&mut dirty);
        // Before any of it is worked out: a slice may have gone from one Service to another.
        let mut before: HashSet<Conflict> =
            dirty.iter().flat_map(|unit| self.conflicts_of(unit)).cloned().collect();
        before.extend(std::mem::take(&mut self.left));
        let mut brought = Vec::new();
        // Units are in the order of their kinds: what Services come to is needed first, and is seen by the nodes that they have endpoints on.
        let mut nodes: BTreeSet<NodeName> = BTreeSet::new();
        for unit in dirty {
            match unit {
                Unit::Node(name) => {
                    nodes.insert(name);
                }
                Unit::Service(name) => self.settle_group(&name, &mut nodes, &mut brought),
                // What it claims shows in others.
                Unit::Machine => {}
            }
        }
        for name in nodes {
            let surplus = self.surplus.contains(&name).then(|| format!("more than {MAX_NODES} nodes"));
            let unit = Unit::Node(name.clone());
            let Some(member) = self.nodes.get_mut(&name) else {
                self.conflicting.remove(&unit);
                continue;
            };
            // It may be here because of its backends alone.
            let had = std::mem::take(&mut member.conflicts);
            let was_there = member.node.is_some();
            self.is_changed |= member.evaluate(&self.owners, self.tied.get(&name), surplus);
            self.order += u64::from(was_there != member.node.is_some());
            brought.extend(member.conflicts.iter().filter(|conflict| !had.contains(conflict)).cloned());
            let is_conflicting = !member.conflicts.is_empty();
            self.note(unit, is_conflicting);
        }
        brought.retain(|conflict| !before.contains(conflict));
        brought.sort_by(|a, b| a.object.cmp(&b.object));
        brought
    }

    fn note(&mut self, unit: Unit, is_conflicting: bool) {
        if is_conflicting {
            self.conflicting.insert(unit);
        } else {
            self.conflicting.remove(&unit);
        }
    }

    /// What was last found of a unit.
    fn conflicts_of(&self, unit: &Unit) -> &[Conflict] {
        match unit {
            Unit::Node(name) => self.nodes.get(name).map_or(&[][..], |member| &member.conflicts),
            Unit::Service(name) => self.groups.get(name).map_or(&[][..], |group| &group.outcome.conflicts),
            Unit::Machine => &[],
        }
    }

    fn settle_group(&mut self, name: &Arc<str>, nodes: &mut BTreeSet<NodeName>, brought: &mut Vec<Conflict>) {
        let Some(group) = self.groups.get(name) else { return };
        let is_node =
            |name: &str| self.nodes.get(name).is_some_and(Member::is_valid) && !self.surplus.contains(name);
        let around = Around { owners: &self.owners, reached: &self.reached, is_node: &is_node };
        let mut outcome = group.evaluate(&around);
        self.is_changed |= !outcome.follow(&group.outcome);
        brought.extend(outcome.conflicts.iter().cloned());
        // An endpoint that changes leaves most others as they are, and so their nodes.
        let mut times: HashMap<&(NodeName, Backend), i32, RandomState> = HashMap::default();
        for tied in &outcome.tied {
            *times.entry(tied).or_default() += 1;
        }
        for tied in &group.outcome.tied {
            *times.entry(tied).or_default() -= 1;
        }
        for ((node, backend), more) in times.into_iter().filter(|(_, more)| *more != 0) {
            nodes.insert(node.clone());
            let tied = self.tied.entry(node.clone()).or_default();
            let times = tied.entry(*backend).or_default();
            *times = times.saturating_add_signed(more);
            if *times == 0 {
                tied.remove(backend);
            }
            if tied.is_empty() {
                self.tied.remove(node);
            }
        }
        let is_empty = group.is_empty();
        let is_conflicting = !outcome.conflicts.is_empty();
        self.note(Unit::Service(Arc::clone(name)), is_conflicting);
        match self.groups.get_mut(name) {
            Some(group) if !is_empty => group.outcome = outcome,
            _ => {
                self.groups.remove(name);
            }
        }
    }
}
