use std::{
    collections::{BTreeMap, BTreeSet, HashMap, HashSet},
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
    group::{Around, Group},
    member::Member,
    owners::{Owners, Unit},
    reached::Reached,
};

/// What a source says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// This node is there, and so it is.
    Node(NodeObject),
    /// This Service is there, and so it is.
    Service(ServiceObject),
    /// This slice is there, and so it is.
    Slice(SliceObject),
    /// This object is there no more.
    Gone(ObjectName),
    /// These are all nodes.
    Nodes(Vec<NodeObject>),
    /// These are all Services.
    Services(Vec<ServiceObject>),
    /// These are all slices.
    Slices(Vec<SliceObject>),
}

/// What becomes of a change that brings a conflict.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rules {
    /// Nothing of it is taken.
    Strict,
    /// It is taken but for what conflicts.
    ///
    /// - A node or Service that is wrong by itself is as if it were not there. What endpoints of such a Service run at is cut for nobody: kube-proxy may use them,
    ///   and whether it has others is not known.
    /// - An address that two nodes claim is neither's, and cut for neither. Endpoints there count as tied to no node.
    /// - An endpoint that is wrong by itself or names an unknown node is left out, or counts as tied to no node.
    /// - A virtual address or node port of two Services leads to the first of them by name.
    Tolerant,
}

/// What an object is from now on; `None` where it is there no more.
enum Entry {
    Node(NodeName, Option<NodeObject>),
    Service(Arc<str>, Option<ServiceObject>),
    Slice(Arc<str>, Option<SliceObject>),
}

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
        }
    }

    /// Takes a change. Gives the conflicts that it brought, in the order of objects; under strict rules the first of them, and nothing is changed then.
    pub fn apply(&mut self, change: Change) -> Vec<Conflict> {
        let knew = self.knows_services;
        self.knows_services |= matches!(change, Change::Service(_) | Change::Services(_));
        let undo: Vec<Entry> = self.entries(change).into_iter().map(|entry| self.set(entry)).collect();
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

    /// All conflicts that there are.
    pub fn conflicts(&self) -> impl Iterator<Item = &Conflict> {
        let nodes = self.nodes.values().flat_map(|member| &member.conflicts);
        nodes.chain(self.groups.values().flat_map(|group| &group.outcome.conflicts))
    }

    /// The view that follows from all objects. It shares with the one before what did not change since.
    pub fn view(&mut self) -> ClusterView {
        let nodes: Vec<Arc<Node>> = self.nodes.values().filter_map(|member| member.node.clone()).collect();
        let places: HashMap<&NodeName, NodeIx, RandomState> =
            nodes.iter().map(|node| &node.name).zip((0..).map(NodeIx::new)).collect();
        let mut services = Vec::new();
        for group in self.groups.values_mut() {
            group.outcome.place(self.order, |node| places.get(node).copied());
            services.extend(group.outcome.service.clone());
        }
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
            None => self.order += u64::from(node.is_some()),
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
        let before: HashSet<Conflict> =
            dirty.iter().flat_map(|unit| self.conflicts_of(unit)).cloned().collect();
        let mut brought = Vec::new();
        // Units are in the order of their kinds: what Services come to is needed first, and is seen by the nodes that they have endpoints on.
        let mut nodes: BTreeSet<NodeName> = BTreeSet::new();
        for unit in dirty {
            match unit {
                Unit::Node(name) => {
                    nodes.insert(name);
                }
                Unit::Service(name) => self.settle_group(&name, &mut nodes, &mut brought),
            }
        }
        for name in nodes {
            let surplus = self.surplus.contains(&name).then(|| format!("more than {MAX_NODES} nodes"));
            let Some(member) = self.nodes.get_mut(&name) else { continue };
            // It may be here because of its backends alone.
            let had = std::mem::take(&mut member.conflicts);
            let was_there = member.node.is_some();
            member.evaluate(&self.owners, self.tied.get(&name), surplus);
            self.order += u64::from(was_there != member.node.is_some());
            brought.extend(member.conflicts.iter().filter(|conflict| !had.contains(conflict)).cloned());
        }
        brought.retain(|conflict| !before.contains(conflict));
        brought.sort_by(|a, b| a.object.cmp(&b.object));
        brought
    }

    /// What was last found of a unit.
    fn conflicts_of(&self, unit: &Unit) -> &[Conflict] {
        match unit {
            Unit::Node(name) => self.nodes.get(name).map_or(&[][..], |member| &member.conflicts),
            Unit::Service(name) => self.groups.get(name).map_or(&[][..], |group| &group.outcome.conflicts),
        }
    }

    fn settle_group(&mut self, name: &Arc<str>, nodes: &mut BTreeSet<NodeName>, brought: &mut Vec<Conflict>) {
        let Some(group) = self.groups.get(name) else { return };
        let is_node =
            |name: &str| self.nodes.get(name).is_some_and(Member::is_valid) && !self.surplus.contains(name);
        let around = Around { owners: &self.owners, reached: &self.reached, is_node: &is_node };
        let outcome = group.evaluate(&around);
        brought.extend(outcome.conflicts.iter().cloned());
        for (node, backend) in &outcome.tied {
            let tied = self.tied.entry(node.clone()).or_default();
            *tied.entry(*backend).or_default() += 1;
            nodes.insert(node.clone());
        }
        for (node, backend) in &group.outcome.tied {
            nodes.insert(node.clone());
            let Some(tied) = self.tied.get_mut(node) else { continue };
            if let Some(times) = tied.get_mut(backend) {
                *times -= 1;
                if *times == 0 {
                    tied.remove(backend);
                }
            }
            if tied.is_empty() {
                self.tied.remove(node);
            }
        }
        let is_empty = group.is_empty();
        match self.groups.get_mut(name) {
            Some(group) if !is_empty => group.outcome = outcome,
            _ => {
                self.groups.remove(name);
            }
        }
    }
}

/// Those that are not listed are gone. Of two of one name the last one counts.
fn relist<K: Ord, T>(
    all: impl Iterator<Item = K>,
    listed: impl Iterator<Item = (K, T)>,
) -> BTreeMap<K, Option<T>> {
    let mut next: BTreeMap<K, Option<T>> = all.map(|name| (name, None)).collect();
    next.extend(listed.map(|(name, object)| (name, Some(object))));
    next
}
