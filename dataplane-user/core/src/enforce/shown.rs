//! Every claim and how it stands, for all readers: a map that is cheap to hand out and to change by a few nodes.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use super::{claim::Saved, gone::Gone, scope::LimitScope, shared::SharedSettings, standing::ShownClaim};
use crate::cluster::NodeName;

/// How many parts the map has: a change copies one part, where somebody still reads it.
const PARTS: usize = 64;

type Part = Arc<BTreeMap<NodeName, Arc<[ShownClaim]>>>;

/// The claims on each node that has any. A clone costs nothing.
#[derive(Clone, Debug)]
pub struct ShownClaims {
    /// A node's part follows from its name.
    parts: Arc<[Part; PARTS]>,
}

impl Default for ShownClaims {
    fn default() -> Self {
        Self { parts: Arc::new(std::array::from_fn(|_| Part::default())) }
    }
}

/// The part of a node, by FNV-1a with 32 bits.
fn part_of(name: &str) -> usize {
    let hash =
        name.bytes().fold(0x811c_9dc5_u32, |hash, byte| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193));
    hash as usize % PARTS
}

impl ShownClaims {
    /// The claims on a node, in the order of their sources.
    pub fn of(&self, node: &str) -> &[ShownClaim] {
        self.parts[part_of(node)].get(node).map_or(&[][..], |claims| &claims[..])
    }

    /// Replaces the claims on a node.
    pub(super) fn put(&mut self, node: &NodeName, claims: Arc<[ShownClaim]>) {
        let part = Arc::make_mut(&mut Arc::make_mut(&mut self.parts)[part_of(node)]);
        if claims.is_empty() {
            part.remove(node);
        } else {
            part.insert(node.clone(), claims);
        }
    }

    /// Whether neither changed since one was cloned from the other.
    pub(super) fn is_same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.parts, &other.parts)
    }

    /// Every node that has claims, in no order.
    pub fn nodes(&self) -> impl Iterator<Item = &NodeName> {
        self.parts.iter().flat_map(|part| part.keys())
    }

    /// Every node that has claims with these, by name. Costs in proportion to all claims.
    pub fn by_name(&self) -> BTreeMap<&NodeName, &[ShownClaim]> {
        self.parts.iter().flat_map(|part| part.iter()).map(|(node, claims)| (node, &claims[..])).collect()
    }
}

impl FromIterator<(NodeName, Arc<[ShownClaim]>)> for ShownClaims {
    fn from_iter<I: IntoIterator<Item = (NodeName, Arc<[ShownClaim]>)>>(all: I) -> Self {
        let mut shown = Self::default();
        all.into_iter().for_each(|(node, claims)| shown.put(&node, claims));
        shown
    }
}

/// The state to save, which outlives the agent. A clone costs nothing; the writer makes [`Saved`] of it.
#[derive(Clone, Debug)]
pub struct ToSave {
    /// Every claim.
    pub claims: ShownClaims,
    /// The scopes whose automatic claims are withheld, and since when by CLOCK_BOOTTIME.
    pub withheld: Vec<(LimitScope, Duration)>,
    /// Claims that are gone and were withheld.
    pub gone: Gone,
    /// The settings that hold for all agents.
    pub shared: Option<Arc<SharedSettings>>,
}

impl ToSave {
    /// All of the state, by the nodes' names. Costs in proportion to all claims.
    pub fn saved(&self) -> Saved {
        let by_name = self.claims.by_name();
        let claims = by_name
            .into_iter()
            .flat_map(|(node, claims)| claims.iter().map(|shown| (node.clone(), shown.claim.clone())));
        let gone = self.gone.iter().map(|(node, source, first)| (node.clone(), source.clone(), *first));
        Saved {
            claims: claims.collect(),
            withheld: self.withheld.clone(),
            gone: gone.collect(),
            shared: self.shared.clone(),
        }
    }
}
