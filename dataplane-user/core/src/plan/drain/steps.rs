//! The steps by which one destination is drained and restored.
use std::time::Duration;

use super::{
    Act, CHALLENGE, Counts, Drain, Kind, Node, SOON, forget,
    hash::Hashing,
    owned::{Owned, Step},
    undo::undo,
    unsure::UNSURE,
};
use crate::{
    ipvs::{Change, Destination, Protocol, ServiceKey},
    ledger::{Entry, Pair, Phase, Record},
};

/// How long to wait for the flush where conntrack cannot tell.
const FLUSH_UNSEEN: Duration = Duration::from_millis(300);
/// How long to wait for the flush at most where conntrack says that connections are left: after that the destination's counters decide.
const FLUSH_LONGEST: Duration = Duration::from_secs(2);
/// How soon conntrack is read again.
const FLUSH_LOOK: Duration = Duration::from_millis(50);

/// Why a weight is not restored.
const LEFT: &str = "keeps weight 0: its endpoint is not to be used any more, as the source of nodes has it";

/// Whether a service's connections are left in place until idle clients have been challenged.
fn is_challenged(key: ServiceKey) -> bool {
    match key {
        ServiceKey::Address { protocol, .. } => protocol == Protocol::TCP,
        // Its protocol is not known.
        ServiceKey::Mark { .. } => true,
    }
}

impl Drain {
    /// Begins to drain a destination that is not ours yet.
    pub(super) fn take(
        &mut self,
        pair: Pair,
        found: &Destination,
        node: usize,
        hashing: Hashing,
        now: Duration,
    ) -> Option<Act> {
        self.raised.remove(&pair);
        // No new connection gets there anyway, and there is nothing to flush.
        if found.weight == 0 && !(found.is_used() && self.settings.flushes) {
            return None;
        }
        let entry = Entry {
            node: self.nodes[node].name.clone(),
            phase: Phase::Lowered,
            original: without_counters(found),
        };
        let mut owned = Owned::new(entry, Step::Lowering);
        owned.heed(self.wanted.endpoint(&pair));
        owned.noted = owned.left;
        owned.since = Some(now);
        self.owned.insert(pair, owned);
        let act = self.advance(&pair, found, node, hashing, now);
        let owned = self.owned.get(&pair)?;
        let Some(mut act) = act else {
            let before = Some(Record::Own(pair, owned.stored()));
            return Some(Act { pair, before, change: None, kind: Kind::Note });
        };
        act.before = Some(Record::Own(pair, owned.stored()));
        Some(act)
    }

    /// The next step of a destination of ours that is there.
    pub(super) fn advance(
        &mut self,
        pair: &Pair,
        found: &Destination,
        node: usize,
        hashing: Hashing,
        now: Duration,
    ) -> Option<Act> {
        let flushes = self.settings.flushes;
        let Node { name, since, challenged } = &self.nodes[node];
        let owned = self.owned.get_mut(pair)?;
        owned.waits = None;
        owned.since.get_or_insert(now);
        if now < owned.not_before {
            return None;
        }
        let act = |before, change, kind| Some(Act { pair: *pair, before, change: Some(change), kind });
        if found.weight != 0 {
            // Others set the weight while the destination was ours: their weight is the one to restore.
            owned.entry.node.clone_from(name);
            owned.entry.original = without_counters(found);
            owned.due = now + SOON;
            if owned.step == Step::Gone && flushes {
                // The destination was gone until just now, so it has no idle clients to challenge.
                return act(Some(Record::Own(*pair, owned.stored())), delete(pair), Kind::Delete);
            }
            owned.step = Step::Lowering;
            owned.entry.phase = Phase::Lowered;
            let before = Some(Record::Own(*pair, owned.stored()));
            let lowered = Destination { weight: 0, ..found.clone() };
            return act(before, Change::SetDestination(pair.service, lowered), Kind::Lower);
        }
        let stands = hashing == Hashing::None || (hashing == Hashing::Remembers && buried(owned));
        if !found.is_used() && stands {
            owned.rounds = if owned.step == Step::Resting { 0 } else { owned.rounds };
            owned.step = Step::Resting;
            owned.due = Duration::MAX;
            if owned.entry.phase == Phase::Deleted {
                // Either an earlier agent added it and ended before it wrote so, or others did. If it goes away, others removed it.
                owned.entry.phase = Phase::Tombstone;
                let before = Some(Record::Phase(*pair, Phase::Tombstone));
                return Some(Act { pair: *pair, before, change: None, kind: Kind::Note });
            }
            return None;
        }
        // A destination that was flushed and is used all the same waits longer each time.
        if matches!(owned.step, Step::Resting | Step::Flushing { .. }) && owned.flushed.is_some() {
            owned.rounds += 1;
        }
        owned.step = Step::Draining;
        let mut begin = owned.again();
        // Where new clients are refused meanwhile, wait only if there are clients to challenge.
        let waits = hashing == Hashing::None || found.active > 0;
        if owned.flushed.is_none() && is_challenged(pair.service) && !challenged && waits {
            begin = begin.max(*since + CHALLENGE);
        }
        if !flushes {
            owned.due = Duration::MAX;
            return None;
        }
        if now < begin {
            owned.due = begin;
            return None;
        }
        owned.flushed = Some(now);
        owned.due = now + owned.shortest_wait();
        owned.entry.phase = Phase::Deleted;
        // The whole entry: the line that made the destination ours may not have been written.
        act(Some(Record::Own(*pair, owned.stored())), delete(pair), Kind::Delete)
    }

    /// The next step of a destination of ours that is missing.
    pub(super) fn missing(
        &mut self,
        pair: &Pair,
        hashing: Hashing,
        counts: Option<&Counts>,
        now: Duration,
    ) -> Option<Act> {
        let owned = self.owned.get_mut(pair)?;
        if owned.entry.phase != Phase::Deleted {
            return Some(forget(*pair));
        }
        let since = match owned.step {
            Step::Flushing { since } => since,
            Step::Gone => {
                owned.due = Duration::MAX;
                return None;
            }
            Step::Lowering | Step::Draining | Step::Resting => {
                owned.step = Step::Flushing { since: now };
                owned.flushed = owned.flushed.or(Some(now));
                owned.due = now + owned.shortest_wait();
                return None;
            }
        };
        if hashing == Hashing::Always {
            owned.step = Step::Gone;
            owned.due = Duration::MAX;
            return None;
        }
        let shortest = owned.shortest_wait();
        let ready = match counts.and_then(|counts| counts.get(pair)) {
            Some(0) => since + shortest,
            Some(_) => since + FLUSH_LONGEST.max(shortest),
            None => since + FLUSH_UNSEEN.max(shortest),
        };
        if now < ready.max(owned.not_before) {
            let look = if now < since + shortest { since + shortest } else { now + FLUSH_LOOK };
            owned.due = look.max(owned.not_before);
            return None;
        }
        owned.due = now + SOON;
        let tombstone = Destination { weight: 0, ..owned.entry.original.clone() };
        let change = Some(Change::NewDestination(pair.service, tombstone));
        Some(Act { pair: *pair, before: None, change, kind: Kind::Bury })
    }

    /// Writes to the ledger that kube-proxy does not use a destination of ours any more, or uses it again.
    pub(super) fn note(&mut self, pair: &Pair, now: Duration) -> Option<Act> {
        let owned = self.owned.get_mut(pair).filter(|owned| owned.left != owned.noted)?;
        owned.noted = owned.left;
        owned.due = now;
        let before = Some(Record::Own(*pair, owned.stored()));
        Some(Act { pair: *pair, before, change: None, kind: Kind::Note })
    }

    /// Restores a destination of ours. `waits`: not as long as kube-proxy may be draining it.
    pub(super) fn restore(
        &mut self,
        pair: &Pair,
        found: Option<&Destination>,
        waits: bool,
        now: Duration,
    ) -> Option<Act> {
        let unsure = waits && found.is_some_and(|found| self.is_unsure(pair, found));
        let owned = self.owned.get_mut(pair)?;
        owned.since.get_or_insert(now);
        owned.waits = None;
        if owned.left && owned.entry.original.weight != 0 {
            if found.is_none_or(|found| found.weight != 0) {
                return Some(forget(*pair));
            }
            // kube-proxy will remove it, or will want it again, perhaps before it noticed the change.
            owned.waits = Some(LEFT);
            owned.due = Duration::MAX;
            return None;
        }
        if unsure {
            owned.waits = Some(UNSURE);
            owned.due = Duration::MAX;
            return None;
        }
        match undo(pair, &owned.entry, found) {
            None => Some(forget(*pair)),
            Some(_) if now < owned.not_before => None,
            Some(change) => {
                owned.due = now + SOON;
                Some(Act { pair: *pair, before: None, change: Some(change), kind: Kind::Restore })
            }
        }
    }
}

/// Whether the destination was added with weight 0 rather than lowered to it.
fn buried(owned: &Owned) -> bool {
    matches!(owned.entry.phase, Phase::Tombstone)
}

pub(super) fn delete(pair: &Pair) -> Change {
    Change::DeleteDestination(pair.service, pair.destination)
}

pub(super) fn without_counters(found: &Destination) -> Destination {
    Destination { active: 0, inactive: 0, persistent: 0, ..found.clone() }
}
