//! When claims that are gone were first raised: a claim that a limit withheld does not come back as new.

use std::{collections::BTreeMap, sync::Arc};

use super::claim::{Claim, ClaimSource, First};
use crate::cluster::NodeName;

/// How many claims are remembered: more than three sources have in the largest cluster. Claims beyond that are forgotten.
const MOST: usize = 16_384;

/// When withheld claims were first raised, by node and source. A clone costs nothing.
#[derive(Clone, Debug, Default)]
pub struct Gone(Arc<BTreeMap<(NodeName, ClaimSource), First>>);

impl Gone {
    /// Remembers a claim that is gone.
    pub(super) fn note(&mut self, node: &NodeName, claim: &Claim) {
        let key = (node.clone(), claim.source.clone());
        if self.0.len() < MOST || self.0.contains_key(&key) {
            Arc::make_mut(&mut self.0).insert(key, First { since: claim.since, raised: claim.raised });
        }
    }

    /// When the source's claim on the node was first raised, where that is remembered.
    pub(super) fn first(&self, node: &NodeName, source: &ClaimSource) -> Option<First> {
        if self.0.is_empty() {
            return None;
        }
        self.0.get(&(node.clone(), source.clone())).copied()
    }

    /// Forgets all claims, since nothing is withheld any more.
    pub(super) fn forget(&mut self) {
        if !self.0.is_empty() {
            self.0 = Arc::default();
        }
    }

    /// All remembered claims, by the nodes' names.
    pub fn iter(&self) -> impl Iterator<Item = (&NodeName, &ClaimSource, &First)> {
        self.0.iter().map(|((node, source), first)| (node, source, first))
    }
}

impl FromIterator<(NodeName, ClaimSource, First)> for Gone {
    fn from_iter<I: IntoIterator<Item = (NodeName, ClaimSource, First)>>(all: I) -> Self {
        let all = all.into_iter().take(MOST).map(|(node, source, first)| ((node, source), first));
        Self(Arc::new(all.collect()))
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use jiff::Timestamp;

    use super::*;

    #[test]
    fn it_is_bounded() {
        let first = First { since: Timestamp::UNIX_EPOCH, raised: Duration::from_secs(1) };
        let all = |extra: usize| {
            (0..MOST + extra).map(move |number| (format!("n{number}").into(), ClaimSource::Hung, first))
        };
        let mut gone: Gone = all(0).collect();
        let claim = Claim {
            source: ClaimSource::Hung,
            by: "".into(),
            reason: "".into(),
            evidence: None,
            since: Timestamp::UNIX_EPOCH,
            raised: Duration::from_secs(2),
            ends: None,
            until: None,
        };
        gone.note(&"more".into(), &claim);
        assert_eq!((gone.iter().count(), gone.first(&"more".into(), &ClaimSource::Hung)), (MOST, None));
        // A claim that is remembered already takes no more room.
        gone.note(&"n7".into(), &claim);
        assert_eq!(gone.first(&"n7".into(), &ClaimSource::Hung).unwrap().raised, Duration::from_secs(2));
        gone.forget();
        gone.note(&"more".into(), &claim);
        assert_eq!(gone.iter().count(), 1);
        // The bound holds for a file that somebody else wrote, too.
        assert_eq!(all(1).collect::<Gone>().iter().count(), MOST);
    }
}
