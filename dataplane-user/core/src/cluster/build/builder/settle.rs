//! Works the touched units out anew.

use std::{
    collections::{BTreeSet, HashMap, HashSet},
    sync::Arc,
};

use foldhash::fast::RandomState;
use nodefence_common::MAX_NODES;

use super::{
    super::{
        super::{node::NodeName, object::Conflict, view::Backend},
        group::Around,
        names::NameId,
        owners::Unit,
    },
    Builder,
};

impl Builder {
    /// Works the touched units out anew. Returns the conflicts that were not there before.
    pub(super) fn settle(&mut self) -> Vec<Conflict> {
        let mut dirty = std::mem::take(&mut self.dirty);
        self.owners.settle(&mut dirty);
        // All conflicts are taken before any unit is worked out: a slice may have gone from one Service to another.
        let mut before: HashSet<Conflict> =
            dirty.iter().flat_map(|unit| self.conflicts_of(unit)).cloned().collect();
        before.extend(std::mem::take(&mut self.left));
        let mut brought = Vec::new();
        // Units are in the order of their kinds: Services come first, since their endpoints change the nodes' backends.
        let mut nodes: BTreeSet<NodeName> = BTreeSet::new();
        for unit in dirty {
            match unit {
                Unit::Node(name) => {
                    nodes.insert(name);
                }
                Unit::Service(name) => self.settle_group(&name, &mut nodes, &mut brought),
                // The machine's claims show in other units.
                Unit::Machine => {}
            }
        }
        let tied = self.tied(&nodes);
        for name in nodes {
            let surplus = self.surplus.contains(&name).then(|| format!("more than {MAX_NODES} nodes"));
            let unit = Unit::Node(name.clone());
            let Some(member) = self.nodes.get_mut(&name) else {
                self.conflicting.remove(&unit);
                continue;
            };
            // The node may be touched because of its backends alone.
            let had = std::mem::take(&mut member.conflicts);
            let was_there = member.node.is_some();
            let tied = tied.get(&member.id).map_or(&[][..], Vec::as_slice);
            self.is_changed |= member.evaluate(&self.owners, tied, surplus);
            self.order += u64::from(was_there != member.node.is_some());
            brought.extend(member.conflicts.iter().filter(|conflict| !had.contains(conflict)).cloned());
            let is_conflicting = !member.conflicts.is_empty();
            self.note(unit, is_conflicting);
        }
        // The result of each Service names only nodes that its endpoints name now.
        self.owners.names.sweep();
        brought.retain(|conflict| !before.contains(conflict));
        brought.sort_by(|a, b| a.object.cmp(&b.object));
        brought
    }

    /// The backends of these nodes that follow from endpoints; the same may come twice. They are not stored: they are needed seldom, and would be as many as
    /// endpoints.
    fn tied(&self, nodes: &BTreeSet<NodeName>) -> HashMap<NameId, Vec<Backend>, RandomState> {
        let names = &self.owners.names;
        let mut tied: HashMap<NameId, Vec<Backend>, RandomState> =
            nodes.iter().filter_map(|node| Some((names.find(node)?, Vec::new()))).collect();
        let naming = self.named_by.of_any(tied.keys().copied());
        for group in naming.into_iter().filter_map(|id| self.groups.get(names.text(id))) {
            for (node, backend) in group.outcome.tied() {
                if let Some(tied) = tied.get_mut(&node) {
                    tied.push(backend);
                }
            }
        }
        tied
    }

    fn note(&mut self, unit: Unit, is_conflicting: bool) {
        if is_conflicting {
            self.conflicting.insert(unit);
        } else {
            self.conflicting.remove(&unit);
        }
    }

    /// The conflicts that were last found of a unit.
    pub(super) fn conflicts_of(&self, unit: &Unit) -> &[Conflict] {
        match unit {
            Unit::Node(name) => self.nodes.get(name).map_or(&[][..], |member| &member.conflicts),
            Unit::Service(name) => self.groups.get(name).map_or(&[][..], |group| &group.outcome.conflicts),
            Unit::Machine => &[],
        }
    }

    fn settle_group(&mut self, name: &Arc<str>, nodes: &mut BTreeSet<NodeName>, brought: &mut Vec<Conflict>) {
        let Some(group) = self.groups.get(name) else { return };
        let is_node = |name: &str| {
            self.nodes.get(name).is_some_and(|node| node.is_valid()) && !self.surplus.contains(name)
        };
        let around = Around { owners: &self.owners, reached: &self.reached, is_node: &is_node };
        let mut outcome = group.evaluate(&around);
        self.is_changed |= !outcome.follow(&group.outcome);
        brought.extend(outcome.conflicts.iter().cloned());
        // An endpoint that changes leaves most others as they are, and so their nodes.
        let mut times: HashMap<(NameId, Backend), i32, RandomState> = HashMap::default();
        for tied in outcome.tied() {
            *times.entry(tied).or_default() += 1;
        }
        for tied in group.outcome.tied() {
            *times.entry(tied).or_default() -= 1;
        }
        for ((node, _), _) in times.into_iter().filter(|(_, more)| *more != 0) {
            nodes.insert(NodeName::from(Arc::clone(self.owners.names.text(node))));
        }
        for node in group.outcome.followed.difference(&outcome.followed) {
            if group.named().all(|named| named != *node) {
                self.named_by.remove(*node, group.id);
            }
        }
        for node in &outcome.followed {
            self.named_by.add(*node, group.id);
        }
        let is_empty = group.is_empty();
        let is_conflicting = !outcome.conflicts.is_empty();
        self.note(Unit::Service(Arc::clone(name)), is_conflicting);
        match self.groups.get_mut(name) {
            Some(group) if !is_empty => group.outcome = outcome,
            _ => {
                if let Some(group) = self.groups.remove(name) {
                    self.owners.names.give_back(group.id);
                }
            }
        }
    }
}
