//! Takes a restored weight back where kube-proxy turns out to have been draining the destination: the view was behind.
use std::time::Duration;

use super::{
    Act, Drain, Kind, REFUSED, SETTLED, SOON,
    expected::Endpoint,
    owned::{Owned, Step, first_of},
    raised::Raised,
    steps::{delete, without_counters},
    unsure::is_drained,
};
use crate::{
    ipvs::{Change, ChangeOutcome, Destination, ServiceKey},
    ledger::{Entry, Pair, Phase, Record},
};

/// How many restored destinations are remembered at most. `nodefence audit` finds the others (`stale-destination`).
const REMEMBERED: usize = 65_536;

/// A destination whose weight of 0 is kube-proxy's, as far as the view knows.
fn drained_by_kube_proxy(raised: &Raised, original: &Destination, now: Duration) -> Owned {
    let entry = Entry { node: raised.node.clone(), phase: Phase::Lowered, original: original.clone() };
    let mut owned = Owned::new(entry, Step::Lowering);
    owned.heed(Some(raised.left.map_or(Endpoint::Used, |(endpoint, _)| endpoint)));
    owned.noted = owned.left;
    owned.since = Some(now);
    owned.due = now + SOON;
    owned
}

impl Drain {
    /// Whether the next view may have a weight taken back.
    pub fn remembers(&self) -> bool {
        !self.raised.is_empty()
    }

    /// Remembers a destination that has its weight again.
    pub(super) fn remember_raised(&mut self, pair: Pair, owned: Owned, now: Duration) {
        let Entry { node, original, .. } = owned.entry;
        // Of a destination that the view does not know the next view says nothing either.
        // In observe mode nothing is changed but what an earlier agent drained.
        let may_recede = owned.used && original.weight != 0 && self.settings.enforce;
        if may_recede && self.raised.len() < REMEMBERED {
            self.raised.insert(pair, Raised { node, weight: original.weight, at: now, left: None });
        }
    }

    /// Compares the remembered destinations with another view.
    pub(super) fn hold_raised(&mut self) {
        let wanted = &self.wanted;
        self.raised.retain(|pair, raised| {
            let endpoint = wanted.endpoint(pair);
            raised.left = match endpoint {
                // kube-proxy removes the virtual server.
                None => return false,
                Some(Endpoint::Used) => None,
                Some(left) => Some((left, raised.due().unwrap_or_default())),
            };
            true
        });
        self.trust_raised();
    }

    /// Forgets destinations that are endpoints in a view that was confirmed after they were given their weight: kube-proxy was not draining them.
    pub(super) fn trust_raised(&mut self) {
        let confirmed = self.confirmed;
        self.raised.retain(|_, raised| raised.left.is_some() || raised.at >= confirmed);
    }

    /// Services with remembered destinations that have left and are due.
    pub(super) fn receding(&self, now: Duration) -> impl Iterator<Item = ServiceKey> {
        let due = self.raised.iter().filter(move |(_, raised)| raised.due().is_some_and(|due| due <= now));
        due.map(|(pair, _)| pair.service)
    }

    /// Takes the weight of a destination that has left back, where nobody else has set another weight since.
    pub(super) fn recede(
        &mut self,
        pair: &Pair,
        found: &Destination,
        all: &[Destination],
        now: Duration,
    ) -> Option<Act> {
        let raised = self.raised.get(pair)?;
        let (endpoint, _) = raised.left.filter(|(_, due)| *due <= now)?;
        if found.weight != raised.weight {
            self.raised.remove(pair);
            return None;
        }
        // Fail open: as long as no other destination has a weight, this one keeps its own.
        let others = all.iter().filter(|other| other.weight > 0).any(|other| {
            let other = Pair { service: pair.service, destination: other.address };
            self.node_of(&other).is_none()
                && self.raised.get(&other).is_none_or(|raised| raised.left.is_none())
        });
        if !others {
            self.look_later(pair, now + SETTLED);
            return None;
        }
        // An endpoint that still serves to its end keeps its connections, as with kube-proxy. And where the kernel does not flush, connections of a deleted
        // destination would hang.
        let ends = endpoint == Endpoint::Ending && is_drained(pair.service);
        let gently = found.has_connections() && (ends || !self.settings.flushes);
        if !gently {
            self.look_later(pair, now + SOON);
            return Some(Act { pair: *pair, before: None, change: Some(delete(pair)), kind: Kind::Remove });
        }
        let original = without_counters(found);
        let before = Some(Record::Own(*pair, drained_by_kube_proxy(raised, &original, now).stored()));
        let lowered = Destination { weight: 0, ..found.clone() };
        let change = Some(Change::SetDestination(pair.service, lowered));
        self.look_later(pair, now + SOON);
        Some(Act { pair: *pair, before, change, kind: Kind::Recede })
    }

    /// Takes the outcome of setting the weight to 0 again. Only once that is done, the destination is ours.
    pub(super) fn receded(&mut self, act: &Act, outcome: ChangeOutcome, now: Duration) -> Option<Record> {
        let pair = act.pair;
        let Some(raised) = self.raised.get(&pair).filter(|_| !self.owned.contains_key(&pair)) else {
            // The destination became ours in another way meanwhile, and the ledger says how; or the view does not know it any more.
            return (!self.owned.contains_key(&pair)).then_some(Record::Drop(pair));
        };
        match (outcome, &act.change) {
            (ChangeOutcome::Done, Some(Change::SetDestination(_, lowered))) => {
                let original = Destination { weight: raised.weight, ..without_counters(lowered) };
                let owned = drained_by_kube_proxy(raised, &original, now);
                self.owned.insert(pair, owned);
                self.raised.remove(&pair);
                None
            }
            _ => {
                self.removed(&pair, outcome, now);
                Some(Record::Drop(pair))
            }
        }
    }

    /// Forgets destinations of a service that are not there any more.
    pub(super) fn forget_raised(&mut self, key: ServiceKey, found: &[Destination], now: Duration) {
        let of_service = self.raised.range(first_of(key)..);
        let of_service = of_service.take_while(|(pair, _)| pair.service == key);
        let due = of_service.filter(|(_, raised)| raised.due().is_some_and(|due| due <= now));
        let is_there = |pair: &Pair| found.iter().any(|destination| destination.address == pair.destination);
        let gone: Vec<Pair> = due.map(|(pair, _)| *pair).filter(|pair| !is_there(pair)).collect();
        for pair in gone {
            self.raised.remove(&pair);
        }
    }

    /// Takes the outcome of removing a destination.
    pub(super) fn removed(&mut self, pair: &Pair, outcome: ChangeOutcome, now: Duration) {
        match outcome {
            ChangeOutcome::Refused(_) => self.look_later(pair, now + REFUSED),
            ChangeOutcome::Unknown => self.look_later(pair, now + SOON),
            _ => drop(self.raised.remove(pair)),
        }
    }

    fn look_later(&mut self, pair: &Pair, at: Duration) {
        if let Some(Raised { left: Some((_, due)), .. }) = self.raised.get_mut(pair) {
            *due = at;
        }
    }
}
