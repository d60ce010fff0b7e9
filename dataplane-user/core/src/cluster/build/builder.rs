mod settle;

use std::{
    cell::LazyCell,
    collections::{BTreeMap, BTreeSet, HashMap},
    net::IpAddr,
    sync::Arc,
};

use foldhash::fast::RandomState;
use nodefence_common::MAX_NODES;

use super::{
    super::{
        node::{NodeIx, NodeName},
        object::{Conflict, NodeObject, ObjectName, ServiceObject, SliceObject},
        view::{ClusterView, Node},
    },
    change::{Change, Entry, Rules, relist},
    group::Group,
    member::Member,
    named_by::NamedBy,
    names::NameId,
    objects::KnownObjects,
    owners::{By, Kind, Owners, Unit},
    reached::Reached,
    slice::Slice,
};

/// All objects that a source delivered, and the nodes and Services that follow from them. The order in which objects came does not matter.
///
/// A change costs in proportion to the nodes and Services that it touches.
#[derive(Debug)]
pub struct Builder {
    rules: Rules,
    nodes: BTreeMap<NodeName, Box<Member>>,
    /// Whether the source says anything of Services.
    knows_services: bool,
    groups: BTreeMap<Arc<str>, Box<Group>>,
    /// The Service of each slice.
    service_of: HashMap<Arc<str>, NameId, RandomState>,
    owners: Owners,
    reached: Reached,
    named_by: NamedBy,
    /// Nodes beyond the most that there may be: the last by name.
    surplus: BTreeSet<NodeName>,
    /// Rises whenever nodes may have other positions in the view.
    order: u64,
    dirty: BTreeSet<Unit>,
    /// The conflicts of nodes that went since the last [`Self::settle`].
    left: Vec<Conflict>,
    /// The units that have conflicts.
    conflicting: BTreeSet<Unit>,
    /// The node of the machine on which the agent runs, and the machine's addresses.
    machine: (Option<NameId>, BTreeSet<IpAddr>),
    /// Whether the next view differs from the last one.
    is_changed: bool,
    /// Rises with each object that changes.
    revision: u64,
}

impl Builder {
    /// A builder without any object.
    pub fn new(rules: Rules) -> Self {
        Self {
            rules,
            nodes: BTreeMap::new(),
            knows_services: false,
            groups: BTreeMap::new(),
            service_of: HashMap::default(),
            owners: Owners::default(),
            reached: Reached::default(),
            named_by: NamedBy::default(),
            surplus: BTreeSet::new(),
            order: 1,
            dirty: BTreeSet::new(),
            left: Vec::new(),
            conflicting: BTreeSet::new(),
            machine: Default::default(),
            is_changed: false,
            revision: 0,
        }
    }

    /// As [`Builder::apply_all`], of one change.
    pub fn apply(&mut self, change: Change) -> Vec<Conflict> {
        self.apply_all([change])
    }

    /// Takes changes in this order, as if they came at once. Returns the conflicts that they brought, in the order of objects. Under strict rules it returns the
    /// first of them, and nothing is changed then.
    pub fn apply_all(&mut self, changes: impl IntoIterator<Item = Change>) -> Vec<Conflict> {
        let knew = self.knows_services;
        let mut undo = Vec::new();
        for change in changes {
            if let Change::LeftOut(Conflict { object: ObjectName::Service(name), .. }) = &change {
                // Sources with strict rules have no such objects.
                self.change_group(name, Group::leave_service_out);
                continue;
            }
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

    /// Sets the node of the machine on which the agent runs, and all of the machine's addresses, whether the node's object names them or not. The machine's own
    /// sockets have these addresses, so only ports of them can be cut. One that another node claims is neither's. Returns the conflicts that this brought.
    pub fn set_machine(&mut self, own: &NodeName, addresses: BTreeSet<IpAddr>) -> Vec<Conflict> {
        let own = self.owners.names.take(own.text());
        let (last, known) = std::mem::replace(&mut self.machine, (Some(own), addresses));
        let (_, addresses) = &self.machine;
        let is_same = last == Some(own);
        if let Some(last) = last {
            for ip in known.iter().filter(|ip| !is_same || !addresses.contains(ip)) {
                self.owners.release(*ip, By::Machine.named(last));
            }
            self.owners.names.give_back(last);
        }
        for ip in addresses.iter().filter(|ip| !is_same || !known.contains(ip)) {
            self.owners.claim(*ip, By::Machine.named(own), Some(Kind::Shared.of(own)));
        }
        self.settle()
    }

    /// All conflicts that there are, in the order of nodes and Services.
    pub fn conflicts(&self) -> impl Iterator<Item = &Conflict> {
        self.conflicting.iter().flat_map(|unit| self.conflicts_of(unit))
    }

    /// Whether the view changed since it was last taken.
    pub fn is_changed(&self) -> bool {
        self.is_changed
    }

    /// A number that rises whenever an object changes, comes or goes.
    pub fn revision(&self) -> u64 {
        self.revision
    }

    /// All objects as they are now. That copies no object: it costs some bytes for each, and has what is replaced meanwhile outlive its replacement.
    pub fn objects(&self) -> KnownObjects {
        let names = &self.owners.names;
        let slices = self
            .groups
            .values()
            .flat_map(|group| group.slices().iter().map(|slice| (group.id, Arc::clone(slice))));
        KnownObjects {
            nodes: self.nodes.values().map(|member| Arc::clone(&member.object)).collect(),
            services: self.groups.values().filter_map(|group| group.service.clone()).collect(),
            slices: slices.collect(),
            names: names.texts(),
        }
    }

    /// The view that follows from all objects. It shares unchanged nodes and Services with the view before.
    pub fn view(&mut self) -> ClusterView {
        let nodes: Vec<Arc<Node>> = self.nodes.values().filter_map(|member| member.node.clone()).collect();
        // Most changes move no endpoint to another node.
        let places = LazyCell::new(|| {
            let ids = nodes.iter().map(|node| self.owners.names.find(&node.name));
            let places = ids.zip((0..).map(NodeIx::new)).filter_map(|(id, at)| Some((id?, at)));
            places.collect::<HashMap<NameId, NodeIx, RandomState>>()
        });
        let mut services = Vec::with_capacity(self.groups.len());
        for group in self.groups.values_mut() {
            group.outcome.place(self.order, |node| places.get(&node).copied());
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
            Change::Gone(name) | Change::LeftOut(Conflict { object: name, .. }) => vec![match name {
                ObjectName::Node(name) => Entry::Node(name, None),
                ObjectName::Service(name) => Entry::Service(name, None),
                ObjectName::Slice(name) => Entry::Slice(name, None),
            }],
            Change::Nodes(nodes) => {
                let listed = nodes.into_iter().map(|node| (node.name.clone(), node));
                let all = relist(self.nodes.keys().cloned(), listed);
                all.into_iter().map(|(name, node)| Entry::Node(name, node)).collect()
            }
            Change::Services(services) => {
                let listed = services.into_iter().map(|service| (Arc::clone(&service.name), service));
                let all = self.groups.iter().filter(|(_, group)| group.has_service());
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

    /// Replaces the object of this name, or removes it. Returns the entry that undoes this.
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
        if self.nodes.get(name).map(|member| &*member.object) == object.as_ref() {
            return object;
        }
        self.revision += 1;
        let id = self.owners.names.take(name.text());
        let by = By::Node.named(id);
        let mut was_valid = false;
        let mut is_valid = false;
        let mut old = None;
        let mut node = None;
        let mut conflicts = Vec::new();
        if let Some(last) = self.nodes.remove(name) {
            for (ip, _) in last.claims() {
                self.owners.release(ip, by);
            }
            self.owners.names.give_back(id);
            was_valid = last.is_valid();
            old = Some(Arc::unwrap_or_clone(last.object));
            node = last.node;
            conflicts = last.conflicts;
        }
        match object {
            Some(object) => {
                // The node as it was is what the new one is compared with.
                let member = Member::new(id, object, node, conflicts);
                is_valid = member.is_valid();
                for (ip, kind) in member.claims() {
                    self.owners.claim(ip, by, Some(kind.of(id)));
                }
                self.nodes.insert(name.clone(), Box::new(member));
            }
            None => {
                self.order += u64::from(node.is_some());
                self.is_changed |= node.is_some();
                self.left.extend(conflicts);
                self.owners.names.give_back(id);
            }
        }
        self.dirty.insert(Unit::Node(name.clone()));
        if was_valid != is_valid {
            self.number_of_nodes_changed(name);
        }
        old
    }

    /// Has the units that name the node looked at again, and updates which nodes are surplus.
    fn number_of_nodes_changed(&mut self, name: &NodeName) {
        let naming = self.naming(name);
        self.dirty.extend(naming);
        let valid = || self.nodes.iter().filter(|(_, member)| member.is_valid()).map(|(name, _)| name);
        if self.nodes.len() <= MAX_NODES as usize && self.surplus.is_empty() {
            return;
        }
        let surplus: BTreeSet<NodeName> = valid().skip(MAX_NODES as usize).cloned().collect();
        for name in surplus.symmetric_difference(&self.surplus) {
            self.dirty.insert(Unit::Node(name.clone()));
            let naming = self.naming(name);
            self.dirty.extend(naming);
        }
        self.surplus = surplus;
    }

    /// The Services whose endpoints name a node.
    fn naming(&self, node: &NodeName) -> Vec<Unit> {
        let names = &self.owners.names;
        let by = names.find(node).map_or(&[][..], |node| self.named_by.of(node));
        by.iter().map(|by| Unit::Service(Arc::clone(names.text(*by)))).collect()
    }

    fn set_service(&mut self, name: &Arc<str>, object: Option<ServiceObject>) -> Option<ServiceObject> {
        let group = self.groups.get(name);
        let is_same = group.and_then(|group| group.service.as_deref()) == object.as_ref();
        if is_same && !group.is_some_and(|group| group.is_unreadable()) {
            return object;
        }
        self.change_group(name, |group| group.set_service(object)).map(Arc::unwrap_or_clone)
    }

    fn set_slice(&mut self, name: &Arc<str>, object: Option<SliceObject>) -> Option<SliceObject> {
        let names = &self.owners.names;
        let service = self.service_of.get(name).map(|service| Arc::clone(names.text(*service)));
        let known = service.and_then(|service| Some((self.groups.get(&service)?.slice(name)?, service)));
        let is_same = match (&known, &object) {
            (Some((slice, service)), Some(object)) => *service == object.service && slice.is(object, names),
            (known, object) => known.is_none() && object.is_none(),
        };
        if is_same {
            return object;
        }
        let was_in = known.map(|(_, service)| service);
        let is_in = object.as_ref().map(|object| Arc::clone(&object.service));
        let slice = object.map(|object| Slice::new(object, &mut self.owners.names));
        let mut old = None;
        if let Some(service) = was_in.as_ref().filter(|service| is_in.as_ref() != Some(*service)) {
            self.service_of.remove(name);
            old = self.change_group(service, |group| group.set_slice(name, None));
        }
        if let Some(service) = &is_in {
            let (replaced, id) = self.change_group(service, |group| (group.set_slice(name, slice), group.id));
            old = old.or(replaced);
            self.service_of.insert(Arc::clone(name), id);
        }
        let (old, service) = old.zip(was_in)?;
        let names = &self.owners.names;
        let object = old.object(service, |name| names.text(name));
        old.give_back(&mut self.owners.names);
        Some(object)
    }

    /// Changes a Service or its slices, and what they claim.
    fn change_group<T>(&mut self, name: &Arc<str>, change: impl FnOnce(&mut Group) -> T) -> T {
        let (name, mut group) = self.groups.remove_entry(name).unwrap_or_else(|| {
            let id = self.owners.names.take(name);
            (Arc::clone(name), Box::new(Group::new(id)))
        });
        for (ip, by, _) in group.claims() {
            self.owners.release(ip, by);
        }
        for node in group.named() {
            self.named_by.remove(node, group.id);
        }
        if let Some(service) = group.valid() {
            self.reached.release(service, &mut self.dirty);
        }
        self.revision += 1;
        let changed = change(&mut group);
        for (ip, by, of) in group.claims() {
            self.owners.claim(ip, by, of);
        }
        for node in group.named() {
            self.named_by.add(node, group.id);
        }
        if let Some(service) = group.valid() {
            self.reached.claim(service, &mut self.dirty);
        }
        self.dirty.insert(Unit::Service(Arc::clone(&name)));
        self.groups.insert(name, group);
        changed
    }

    /// How much is stored beside the objects and their results.
    #[cfg(test)]
    pub(super) fn kept(&self) -> [usize; 3] {
        [self.owners.names.len(), self.owners.len(), self.service_of.len()]
    }
}
