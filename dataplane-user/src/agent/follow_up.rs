//! What is done about a node's flows once it is cut: whose clients are to be challenged, and what came of it.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Mutex, MutexGuard, PoisonError},
};

use tokio::sync::oneshot;

use super::world::{Members, World};
use crate::{
    cluster::NodeName,
    enforce::Bearers,
    report::{ChallengeRow, StaleRow},
};

/// What came of a round; `None` where there was no point in challenger.
pub(super) type Outcome = Option<ChallengeRow>;

/// The memory of whoever challenges idle clients. Nothing else is locked under its lock.
#[derive(Default)]
pub(super) struct FollowUp {
    memory: Mutex<Memory>,
}

#[derive(Default)]
struct Memory {
    /// Whose names stand below.
    members: Members,
    /// Who was cut when it was last looked at.
    cut: Bearers,
    /// For each node that is cut: only rounds that begin from then on (CLOCK_MONOTONIC, ns) ask for all that is, and one has been begun.
    begun: BTreeMap<NodeName, u64>,
    /// Nodes that the cut reaches better than when their clients were challenged.
    again: BTreeSet<NodeName>,
    /// Requests that wait for a round, which is begun once the node is cut.
    requests: BTreeMap<NodeName, Vec<oneshot::Sender<Outcome>>>,
    challenged: BTreeMap<NodeName, ChallengeRow>,
    stale: BTreeMap<NodeName, StaleRow>,
}

/// A round that is to begin.
#[derive(Debug)]
pub(super) struct Round {
    pub(super) node: NodeName,
    /// Who challenged for it; nobody where the node was cut, or is cut better, without a request.
    pub(super) requests: Vec<oneshot::Sender<Outcome>>,
}

impl FollowUp {
    fn memory(&self) -> MutexGuard<'_, Memory> {
        self.memory.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A request is about to have the node cut: gives the outcome of the round that follows. To be called before, so that no other round comes first.
    pub(super) fn request(&self, node: &NodeName) -> oneshot::Receiver<Outcome> {
        let (outcome, receiver) = oneshot::channel();
        self.memory().requests.entry(node.clone()).or_default().push(outcome);
        receiver
    }

    /// The cut reaches more of these nodes than it did.
    pub(super) fn reached(&self, nodes: impl IntoIterator<Item = NodeName>) {
        self.memory().again.extend(nodes);
    }

    /// Rounds that are to begin now, where all that `world` says is cut is in the maps.
    pub(super) fn due(&self, world: &World) -> Vec<Round> {
        let mut memory = self.memory();
        let Memory { members, cut, begun, again, requests, challenged, stale } = &mut *memory;
        // Not with each view: there may be as many names as nodes, and requests come through this thread.
        if !world.has_members(members) {
            *members = world.members();
            // Names may come and go for ever.
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
        // Whoever challenged has gone, and the flag with it, or it was refused. Of those who have gone one is enough for a round.
        requests.retain(|node, waiting| {
            let mut keeps_closed = world.is_claimed(node);
            waiting.retain(|outcome| !outcome.is_closed() || std::mem::take(&mut keeps_closed));
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
        // Where what would be cut is only counted nobody is challenged, and whoever waits learns that now.
        requests.retain(|node, _| !world.observes(node));
        rounds
    }

    /// What came of the last round.
    pub(super) fn note_challenged(&self, node: &NodeName, row: ChallengeRow) {
        self.memory().challenged.insert(node.clone(), row);
    }

    /// What was deleted that was stale to a node.
    pub(super) fn note_stale(&self, node: &NodeName, change: impl FnOnce(&mut StaleRow)) {
        change(self.memory().stale.entry(node.clone()).or_default());
    }

    /// For `status`: the last rounds, and what was deleted last, of those that exist. A round may end after its node has left.
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
        enforce::{self, Bearer, Claim, NewClaim, Now, ShownClaim, Source, Standing},
        flags::now,
    };

    fn claim(now: Now) -> ShownClaim {
        let new = NewClaim {
            source: Source::Cli,
            by: "".into(),
            reason: "".into(),
            evidence: None,
            lasts: None,
            until: None,
        };
        ShownClaim { claim: Claim::raise(new, None, now), standing: Standing::Enforced }
    }

    /// A world in which these are cut, and only rounds count that began from then on; all others of `b`, `c` and `d` are not claimed.
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
        // What is stale may be deleted before anybody looked at who is cut.
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
            request.send(Some(ChallengeRow::default())).unwrap();
        }
        assert_eq!(waits.try_recv(), Ok(Some(ChallengeRow::default())));
        // One that is cut already is challenged about again, for all who want it together.
        let both = [follow_up.request(&"b".into()), follow_up.request(&"b".into())];
        assert_eq!(due(&follow_up, &[("b", 5)]), rounds(&[("b", 2)]));
        drop(both);
        // Whoever does not wait has it challenged about all the same; one that was refused is forgotten.
        drop(follow_up.request(&"b".into()));
        drop(follow_up.request(&"c".into()));
        assert_eq!(due(&follow_up, &[("b", 5)]), rounds(&[("b", 1)]));
        assert_eq!(due(&follow_up, &[("b", 5), ("c", 5)]), rounds(&[("c", 0)]));
    }
}
