//! The follow-up once a node is cut: which nodes' clients are to be challenged, and the outcome.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Mutex, MutexGuard, PoisonError},
};

use tokio::sync::watch;

use super::world::{Members, World};
use crate::{
    cluster::NodeName,
    enforce::Bearers,
    report::{ChallengeRow, StaleRow},
};

/// How far a round has come, for who requested it.
#[derive(Clone, PartialEq, Debug, Default)]
pub(super) struct Progress {
    /// The flows, from when they are counted. `None` at the end where there was no point in a challenge.
    pub(super) row: Option<ChallengeRow>,
    /// Every flow was challenged once.
    pub(super) challenged: bool,
    /// `row` is the outcome.
    pub(super) ended: bool,
}

/// The memory of the rounds of challenges. No other lock is taken while this one is held.
#[derive(Default)]
pub(super) struct FollowUp {
    memory: Mutex<Memory>,
}

#[derive(Default)]
struct Memory {
    /// The members at the last look. The rows below are of these nodes.
    members: Members,
    /// The nodes that were cut at the last look.
    cut: Bearers,
    /// By cut node: the time (CLOCK_MONOTONIC, ns) from which on a round challenges all that is cut. Such a round has begun.
    begun: BTreeMap<NodeName, u64>,
    /// Nodes that the cut reaches better than when their clients were challenged.
    again: BTreeSet<NodeName>,
    /// Requests that wait for a round. The round begins once the node is cut.
    requests: BTreeMap<NodeName, Vec<watch::Sender<Progress>>>,
    challenged: BTreeMap<NodeName, ChallengeRow>,
    stale: BTreeMap<NodeName, StaleRow>,
}

/// A round that is to begin.
#[derive(Debug)]
pub(super) struct Round {
    pub(super) node: NodeName,
    /// The requests for this round; none where the node was cut, or is cut better, without a request.
    pub(super) requests: Vec<watch::Sender<Progress>>,
}

impl FollowUp {
    fn memory(&self) -> MutexGuard<'_, Memory> {
        self.memory.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A request is about to have the node cut: returns the progress of the round that follows. Call it before the cut, so that no other
    /// round comes first.
    pub(super) fn request(&self, node: &NodeName) -> watch::Receiver<Progress> {
        let (progress, receiver) = watch::channel(Progress::default());
        self.memory().requests.entry(node.clone()).or_default().push(progress);
        receiver
    }

    /// The cut reaches more of these nodes than it did.
    pub(super) fn reached(&self, nodes: impl IntoIterator<Item = NodeName>) {
        self.memory().again.extend(nodes);
    }

    /// Rounds that are to begin now, where the maps have all that `world` says is cut.
    pub(super) fn due(&self, world: &World) -> Vec<Round> {
        let mut memory = self.memory();
        let Memory { members, cut, begun, again, requests, challenged, stale } = &mut *memory;
        // Not with each view: there may be as many names as nodes, and this thread also handles requests.
        if !world.has_members(members) {
            *members = world.members();
            // Rows of nodes that left are dropped: new names may come for ever.
            challenged.retain(|node, _| world.slot(node).is_some());
            stale.retain(|node, _| world.slot(node).is_some());
        }
        let now = &world.held.enforced;
        let changed = now.changed_since(cut).flat_map(|(before, now)| [before, now]).flatten();
        let mut nodes: BTreeSet<NodeName> = changed.filter_map(|bearer| bearer.name.clone()).collect();
        let reached = std::mem::take(again);
        nodes.extend(reached.iter().cloned());
        nodes.extend(requests.keys().cloned());
        *cut = now.clone();
        // A closed request has nobody who waits. On a node without a claim it is void: the flag was withdrawn, or the request was
        // refused. On a claimed node one closed request stays, which is enough for a round.
        requests.retain(|node, waiting| {
            let mut keeps_closed = world.is_claimed(node);
            waiting.retain(|progress| !progress.is_closed() || std::mem::take(&mut keeps_closed));
            !waiting.is_empty()
        });
        let mut rounds = Vec::new();
        for node in nodes {
            let Some(bearer) = world.bearer(&node) else {
                begun.remove(&node);
                continue;
            };
            let is_more = begun.get(&node).is_none_or(|begun| *begun < bearer.challenge_since);
            let is_again = reached.contains(&node);
            let requests = requests.remove(&node).unwrap_or_default();
            if is_more || is_again || !requests.is_empty() {
                begun.insert(node.clone(), bearer.challenge_since);
                rounds.push(Round { node, requests });
            }
        }
        // In observe mode nobody is challenged. Whoever waits learns that now.
        requests.retain(|node, _| !world.observes(node));
        rounds
    }

    /// Notes the outcome of the last round.
    pub(super) fn note_challenged(&self, node: &NodeName, row: ChallengeRow) {
        self.memory().challenged.insert(node.clone(), row);
    }

    /// Notes which stale flows of a node were deleted.
    pub(super) fn note_stale(&self, node: &NodeName, change: impl FnOnce(&mut StaleRow)) {
        change(self.memory().stale.entry(node.clone()).or_default());
    }

    /// For `status`: the last rounds, and what was deleted last, of nodes that exist. A round may end after its node has left.
    pub(super) fn rows(
        &self,
        world: &World,
    ) -> (BTreeMap<NodeName, ChallengeRow>, BTreeMap<NodeName, StaleRow>) {
        let memory = self.memory();
        (there(&memory.challenged, world), there(&memory.stale, world))
    }
}

fn there<T: Clone>(rows: &BTreeMap<NodeName, T>, world: &World) -> BTreeMap<NodeName, T> {
    let rows = rows.iter().filter(|(node, _)| world.slot(node).is_some());
    rows.map(|(node, row)| (node.clone(), row.clone())).collect()
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::{
        agent::world::tests::nodes,
        enforce::{self, Bearer, Claim, ClaimSource, NewClaim, Now, ShownClaim, Standing},
        flags::now,
    };

    fn claim(now: Now) -> ShownClaim {
        let new = NewClaim {
            source: ClaimSource::Cli,
            by: "".into(),
            reason: "".into(),
            evidence: None,
            lasts: None,
            until: None,
        };
        ShownClaim { claim: Claim::raise(new, None, now), standing: Standing::Enforced }
    }

    /// A world in which these nodes are cut, each with the time from which on rounds count. The others of `b`, `c` and `d` are not claimed.
    fn world(cut: &[(&str, u64)]) -> World {
        let mut world = nodes(4);
        let bearer = |&(name, challenge_since): &(&str, u64)| Bearer {
            name: Some(name.into()),
            slot: world.slot(name).unwrap(),
            action: nodefence_common::Action::Refuse,
            since: 0,
            challenge_since,
        };
        let enforced: Vec<Bearer> = cut.iter().map(bearer).collect();
        let claims = cut.iter().map(|(name, _)| (NodeName::from(*name), [claim(now())].into()));
        let held = enforce::World {
            enforced: enforced.into_iter().collect(),
            claims: claims.collect(),
            view: world.held.view.clone(),
            ..enforce::World::default()
        };
        world.take(Arc::new(held));
        world
    }

    fn due(follow_up: &FollowUp, cut: &[(&str, u64)]) -> Vec<(String, usize)> {
        let rounds = follow_up.due(&world(cut)).into_iter();
        rounds.map(|round| (round.node.to_string(), round.requests.len())).collect()
    }

    fn rounds(wanted: &[(&str, usize)]) -> Vec<(String, usize)> {
        wanted.iter().map(|(node, requests)| ((*node).to_owned(), *requests)).collect()
    }

    #[test]
    fn each_is_challenged_once_until_more_of_it_is_cut() {
        let follow_up = FollowUp::default();
        assert_eq!(due(&follow_up, &[("b", 5), ("c", 5)]), rounds(&[("b", 0), ("c", 0)]));
        assert_eq!(due(&follow_up, &[("b", 5), ("c", 5)]), rounds(&[]));
        assert_eq!(due(&follow_up, &[("b", 6), ("c", 5)]), rounds(&[("b", 0)]));
        // Flagged anew.
        due(&follow_up, &[("c", 5)]);
        assert_eq!(due(&follow_up, &[("b", 7), ("c", 5)]), rounds(&[("b", 0)]));
        // The cut reaches more of it; of one that is not cut that means nothing.
        follow_up.reached(["c".into(), "d".into()]);
        assert_eq!(due(&follow_up, &[("b", 7), ("c", 5)]), rounds(&[("c", 0)]));
        assert_eq!(due(&follow_up, &[("b", 7), ("c", 5), ("d", 9)]), rounds(&[("d", 0)]));
    }

    #[test]
    fn who_left_the_view_is_forgotten() {
        let follow_up = FollowUp::default();
        let note = || {
            for node in ["b", "e"] {
                follow_up.note_challenged(&node.into(), ChallengeRow::default());
                follow_up.note_stale(&node.into(), |row| row.datagrams += 1);
            }
        };
        let names = |world: &World| {
            let (challenged, stale) = follow_up.rows(world);
            assert!(challenged.keys().eq(stale.keys()), "{challenged:?} {stale:?}");
            challenged.into_keys().map(|node| node.to_string()).collect::<Vec<_>>()
        };
        // Stale flows may be deleted before anybody looked which nodes are cut.
        let all = nodes(5);
        note();
        assert_eq!(names(&all), ["b", "e"]);
        follow_up.due(&all);
        assert_eq!(names(&all), ["b", "e"]);
        let without = nodes(4);
        follow_up.due(&without);
        assert_eq!(names(&all), ["b"]);
        // A round that ends after its node has left.
        note();
        assert_eq!(names(&without), ["b"]);
    }

    #[test]
    fn a_request_has_its_round_once_the_node_is_cut() {
        let follow_up = FollowUp::default();
        let mut waits = follow_up.request(&"b".into());
        assert_eq!(due(&follow_up, &[]), rounds(&[]));
        let mut begun = follow_up.due(&world(&[("b", 5)]));
        for request in begun.remove(0).requests {
            request.send(Progress { ended: true, ..Progress::default() }).unwrap();
        }
        assert!(waits.borrow_and_update().ended);
        // A node that is cut already is challenged again, once for all who want it.
        let both = [follow_up.request(&"b".into()), follow_up.request(&"b".into())];
        assert_eq!(due(&follow_up, &[("b", 5)]), rounds(&[("b", 2)]));
        drop(both);
        // A requester that does not wait gets its round all the same; a refused request is forgotten.
        drop(follow_up.request(&"b".into()));
        drop(follow_up.request(&"c".into()));
        assert_eq!(due(&follow_up, &[("b", 5)]), rounds(&[("b", 1)]));
        assert_eq!(due(&follow_up, &[("b", 5), ("c", 5)]), rounds(&[("c", 0)]));
    }
}
