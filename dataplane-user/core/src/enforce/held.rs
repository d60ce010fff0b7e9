//! Which claims there are, by node. [`super::claims`] decides what follows from them.

use std::collections::{BTreeMap, BTreeSet};

use super::{
    claim::{Claim, ClaimSource},
    now::Now,
};
use crate::cluster::NodeName;

/// All claims of all nodes, those of a node in the order of their sources.
#[derive(Debug, Default)]
pub(super) struct Held {
    by_node: BTreeMap<NodeName, Vec<Claim>>,
    /// Nodes that the file claims.
    in_file: BTreeSet<NodeName>,
}

impl Held {
    /// The claim of a source on a node.
    pub(super) fn get(&self, node: &str, source: &ClaimSource) -> Option<&Claim> {
        self.of(node).iter().find(|claim| claim.source == *source)
    }

    /// The claims on a node.
    pub(super) fn of(&self, node: &str) -> &[Claim] {
        self.by_node.get(node).map_or(&[][..], |claims| &claims[..])
    }

    /// Puts a claim in place of the source's claim.
    pub(super) fn put(&mut self, node: &NodeName, source: &ClaimSource, claim: Option<Claim>) {
        if *source == ClaimSource::File {
            if claim.is_some() {
                self.in_file.insert(node.clone());
            } else {
                self.in_file.remove(node);
            }
        }
        let claims = self.by_node.entry(node.clone()).or_default();
        claims.retain(|claim| claim.source != *source);
        claims.extend(claim);
        claims.sort_by(|one, other| one.source.cmp(&other.source));
        if claims.is_empty() {
            self.by_node.remove(node);
        }
    }

    /// Drops claims that are over. Returns them, and the nodes that have a claim that is over. A claim of the file stays, since it still stands in the file.
    pub(super) fn expire(&mut self, now: Now) -> (Vec<(NodeName, Claim)>, Vec<NodeName>) {
        let mut over = Vec::new();
        let mut nodes = Vec::new();
        for (node, claims) in &mut self.by_node {
            if claims.iter().any(|claim| claim.ended(now)) {
                nodes.push(node.clone());
            }
            let ended = claims.extract_if(.., |claim| claim.ended(now) && claim.source != ClaimSource::File);
            over.extend(ended.map(|claim| (node.clone(), claim)));
        }
        self.by_node.retain(|_, claims| !claims.is_empty());
        (over, nodes)
    }

    /// Which objects claim which nodes.
    pub(super) fn of_objects(&self) -> impl Iterator<Item = (&NodeName, &ClaimSource)> {
        let each =
            self.iter().flat_map(|(node, claims)| claims.iter().map(move |claim| (node, &claim.source)));
        each.filter(|(_, source)| source.is_object())
    }

    /// All claims, by node.
    pub(super) fn iter(&self) -> impl Iterator<Item = (&NodeName, &[Claim])> {
        self.by_node.iter().map(|(node, claims)| (node, &claims[..]))
    }

    /// Every node that has claims.
    pub(super) fn nodes(&self) -> impl Iterator<Item = &NodeName> {
        self.by_node.keys()
    }

    /// The nodes that a source claims.
    pub(super) fn nodes_of(&self, source: &ClaimSource) -> BTreeSet<NodeName> {
        match source {
            ClaimSource::File => self.in_file.clone(),
            _ => self.nodes().filter(|node| self.get(node, source).is_some()).cloned().collect(),
        }
    }

    /// The file's claims, by node.
    pub(super) fn of_file(&self) -> impl Iterator<Item = (&NodeName, &Claim)> {
        self.in_file.iter().filter_map(|node| Some((node, self.get(node, &ClaimSource::File)?)))
    }
}

impl FromIterator<(NodeName, Claim)> for Held {
    fn from_iter<I: IntoIterator<Item = (NodeName, Claim)>>(all: I) -> Self {
        let mut held = Self::default();
        for (node, claim) in all {
            let source = claim.source.clone();
            held.put(&node, &source, Some(claim));
        }
        held
    }
}
