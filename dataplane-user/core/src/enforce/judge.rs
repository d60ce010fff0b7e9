//! How claims stand, for a program that cuts nothing: the controller says it of the flags at the API server. The claims and limits are the
//! code that the agents use.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use super::{
    claim::{ClaimSource, NewClaim, Saved},
    claims::Claims,
    limits::Withheld,
    now::Now,
    settings::{Auto, EnforcerSettings, Share},
    standing::Standing,
    view::{Member, sizes},
};
use crate::{
    cluster::NodeName,
    plan::{Answer, Mode, Slot},
};

/// A node, as far as limits need it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JudgedNode {
    /// Its name.
    pub name: NodeName,
    /// Its zone.
    pub zone: Option<Arc<str>>,
    /// Its pool.
    pub pool: Option<Arc<str>>,
}

/// Claims, and the nodes that they are about.
#[derive(Debug)]
pub struct Judge {
    claims: Claims,
    held: BTreeSet<(NodeName, ClaimSource)>,
}

impl Judge {
    /// Nothing is claimed yet. `limit`: how many nodes may be claimed by claims that no person made.
    pub fn new(limit: Share) -> Self {
        let settings = EnforcerSettings {
            own: NodeName::default(),
            // The mode of the agents decides what a claim does, and not whether a limit withholds it.
            mode: Mode::Enforce,
            auto: Auto::Enforce,
            answer: Answer::Refuse,
            limit,
            max_view_age: None,
            force: false,
            shares: false,
        };
        Self { claims: Claims::new(settings, Saved::default()), held: BTreeSet::new() }
    }

    /// Replaces the nodes.
    pub fn open(&mut self, nodes: impl IntoIterator<Item = JudgedNode>) {
        // Claims ask for no place in the maps.
        let slot = Slot { index: 0, generation: 1 };
        let members: BTreeMap<NodeName, Member> = nodes
            .into_iter()
            .map(|node| (node.name, Member { slot, uid: None, zone: node.zone, pool: node.pool }))
            .collect();
        let sizes = sizes(&members);
        self.claims.open_members(&Arc::new(members), &Arc::new(sizes));
    }

    /// Replaces all claims, and says of each how it stands. A claim that was there before, of the same source on the same node, is as old as
    /// it was. Of several claims of one source on one node the last one holds.
    pub fn judge(&mut self, claims: Vec<(NodeName, NewClaim)>, now: Now) -> Vec<Standing> {
        let keys: Vec<(NodeName, ClaimSource)> =
            claims.iter().map(|(node, claim)| (node.clone(), claim.source.clone())).collect();
        let held: BTreeSet<(NodeName, ClaimSource)> = keys.iter().cloned().collect();
        for (node, source) in self.held.difference(&held) {
            self.claims.withdraw(node, source, now);
        }
        self.held = held;
        for (node, claim) in claims {
            self.claims.raise(&node, claim, now);
        }
        self.claims.expire(now);
        self.claims.settle(now);
        keys.iter().map(|(node, source)| self.standing(node, source)).collect()
    }

    /// The scopes in which a limit withholds claims, as of the last [`Self::judge`].
    pub fn withheld(&self) -> Vec<Withheld> {
        self.claims.withheld()
    }

    fn standing(&self, node: &str, source: &ClaimSource) -> Standing {
        let shown = self.claims.shown().of(node).iter().find(|shown| shown.claim.source == *source);
        // A claim that is over is dropped.
        shown.map_or(Standing::Over, |shown| shown.standing.clone())
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use jiff::Timestamp;

    use super::*;
    use crate::enforce::{LimitScope, WITHHELD_FOR};

    fn at(seconds: u64) -> Now {
        Now {
            mono: seconds * 1_000_000_000,
            boot: Duration::from_secs(seconds),
            wall: Timestamp::from_second(1_700_000_000 + seconds as i64).unwrap(),
        }
    }

    fn of(source: ClaimSource, until: u64) -> NewClaim {
        NewClaim {
            source,
            by: "".into(),
            reason: "".into(),
            evidence: None,
            lasts: None,
            until: Some(at(until).wall),
        }
    }

    /// A claim that the limits hold for.
    fn flag(node: &str) -> (NodeName, NewClaim) {
        (node.into(), of(ClaimSource::External(node.into()), 100_000))
    }

    /// Six nodes in one pool, three in each zone: two may be claimed, and one of each zone.
    fn judge() -> Judge {
        let mut judge = Judge::new(Share::default());
        judge.open(["a", "b", "c", "d", "e", "f"].map(|name| JudgedNode {
            name: name.into(),
            zone: Some(if name < "d" { "z1" } else { "z2" }.into()),
            pool: Some("front".into()),
        }));
        judge
    }

    #[test]
    fn what_exceeds_a_limit_is_withheld_and_what_does_not_stands() {
        let mut judge = judge();
        let two = judge.judge(vec![flag("a"), flag("d")], at(1));
        assert_eq!(two, [Standing::Enforced, Standing::Enforced]);
        let in_one_zone = judge.judge(vec![flag("a"), flag("b")], at(2));
        let zone = || Standing::Withheld([LimitScope::Zone("z1".into())].into());
        assert_eq!(in_one_zone, [zone(), zone()]);
        let three = judge.judge(vec![flag("a"), flag("d"), flag("e")], at(3));
        let scopes = |standing: &Standing| match standing {
            Standing::Withheld(scopes) => {
                scopes.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
            }
            other => format!("{other:?}"),
        };
        let texts: Vec<String> = three.iter().map(scopes).collect();
        assert_eq!(texts[0], "all nodes, zone z1, pool front");
        assert_eq!(texts[1], "all nodes, zone z2, pool front");
        assert_eq!(texts[2], texts[1]);
    }

    #[test]
    fn a_persons_claim_is_not_limited_and_counts() {
        let mut judge = judge();
        let persons = ["a", "b", "c"].map(|node| (node.into(), of(ClaimSource::Cli, 100_000)));
        let mut all = persons.to_vec();
        all.push(flag("d"));
        let standings = judge.judge(all, at(1));
        assert_eq!(&standings[..3], [Standing::Enforced, Standing::Enforced, Standing::Enforced]);
        assert!(matches!(standings[3], Standing::Withheld(_)), "{standings:?}");
    }

    #[test]
    fn a_withheld_claim_holds_again_after_the_time() {
        let mut judge = judge();
        judge.judge(vec![flag("a"), flag("b")], at(1));
        let soon = judge.judge(vec![flag("a")], at(2));
        assert!(matches!(soon[0], Standing::Withheld(_)), "{soon:?}");
        let later = judge.judge(vec![flag("a")], at(2 + WITHHELD_FOR.as_secs()));
        assert_eq!(later, [Standing::Enforced]);
    }

    #[test]
    fn a_claim_ends_and_a_node_may_be_unknown() {
        let mut judge = judge();
        let claims = || vec![("a".into(), of(ClaimSource::External("x".into()), 10)), flag("nobody")];
        assert_eq!(judge.judge(claims(), at(1)), [Standing::Enforced, Standing::Unknown]);
        assert_eq!(judge.judge(claims(), at(10)), [Standing::Over, Standing::Unknown]);
        judge.open([JudgedNode { name: "nobody".into(), zone: None, pool: None }]);
        assert_eq!(judge.judge(claims(), at(11)), [Standing::Over, Standing::Enforced]);
        assert!(judge.judge(Vec::new(), at(12)).is_empty());
        assert!(judge.claims.shown().nodes().next().is_none());
    }
}
