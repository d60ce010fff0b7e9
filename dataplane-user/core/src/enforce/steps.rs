//! What to do next, one thing at a time, in an order in which no packet meets a cut that must not be.
//!
//! 1. New owners of places, healthy. 2. Verdicts that must not stand. 3. The snapshot. 4. Exemptions; the ports that are cut at an exempt address come before it.
//! 5. Verdicts, new ones first. 6. Exemptions that are not needed any more. 7. Tables. 8. Saves, answers, records.

use std::sync::Arc;

use super::{
    machine::Enforcer,
    now::SECOND,
    output::{Output, TablesPlan},
    place::Work,
};
use nodefence_common::VERDICT_LIFETIME_NS;

/// For how long the drain may show no sign of life, in ns: after that the lease ends and the guard restores IPVS.
const DRAIN_SILENT: u64 = 60 * SECOND;

impl Enforcer {
    /// The next thing to do; `None` where there is nothing to do before [`Enforcer::deadline`].
    pub fn poll(&mut self) -> Option<Output> {
        self.confirm();
        if self.bridged.is_some() {
            return self.poll_bridge();
        }
        if let Some(output) = self.write_first(&[Work::Place, Work::Release]) {
            return Some(output);
        }
        // Only here, when all inputs that belong together were taken: a view, and the flags of its file.
        self.tell_dangers();
        if std::mem::take(&mut self.publish) {
            return Some(Output::Publish(self.snapshot()));
        }
        if let Some(output) = self.exempt.next_before() {
            return Some(output);
        }
        loop {
            if let Some(output) = self.write_first(&[Work::Flag, Work::Renew]) {
                return Some(output);
            }
            if !self.renew_next() {
                break;
            }
        }
        if let Some(output) = self.lease() {
            return Some(output);
        }
        if let Some((output, more_is_cut)) = self.exempt.next_after() {
            if let Some(place) = more_is_cut.and_then(|slot| self.places.get_mut(&slot.index)) {
                place.challenge_since = self.now.mono;
                self.more_is_cut = true;
                self.retell.extend(more_is_cut.map(|slot| slot.index));
            }
            return Some(output);
        }
        if std::mem::take(&mut self.more_is_cut) {
            return Some(Output::Publish(self.snapshot()));
        }
        if let Some(output) = self.write_first(&[Work::Vacate]) {
            return Some(output);
        }
        if let Some(output) = self.tables() {
            return Some(output);
        }
        self.save().or_else(|| self.out.pop_front())
    }

    /// The first write that is due of these kinds.
    fn write_first(&mut self, kinds: &[Work]) -> Option<Output> {
        let of = |kind: &Work| self.work.range((*kind, 0)..=(*kind, u32::MAX)).next().copied();
        let (work, index) = kinds.iter().find_map(of)?;
        let place = self.places.get_mut(&index)?;
        let entry = place.entry_for(work, &self.settings, self.now.mono);
        let was = place.slot();
        let before = place.written(entry);
        if place.slot() != was {
            self.release(was);
        }
        self.touch(index);
        self.sent = Some((index, before));
        Some(Output::Node(index, entry))
    }

    pub(super) fn lease(&mut self) -> Option<Output> {
        let alive = self.now.mono.saturating_sub(self.drain_alive) < DRAIN_SILENT;
        let due = std::mem::take(&mut self.lease_due) && alive;
        due.then(|| Output::Lease(self.now.mono.saturating_add(VERDICT_LIFETIME_NS)))
    }

    /// The tables, once every new owner's generation is in the map and all exemptions that they need are written.
    fn tables(&mut self) -> Option<Output> {
        if !self.views.is_due() || !self.unwritten.is_empty() || !self.exempt.whole() {
            return None;
        }
        let (view, base) = self.views.hand_out()?;
        Some(Output::Tables(TablesPlan { epoch: view.epoch, base, tables: Arc::clone(&view.tables) }))
    }

    /// Takes the last map write as done, since nobody said that it failed.
    pub(super) fn confirm(&mut self) {
        let Some((index, _)) = self.sent.take() else { return };
        let now = self.now.mono;
        let Some(place) = self.places.get_mut(&index) else { return };
        if place.error.take().is_some() {
            // The node's clients are challenged anew: what the map held meanwhile is not known.
            place.challenge_since = now;
            self.publish = true;
            self.retell.insert(index);
        }
        if place.wants_cut() && place.blocked.take().is_some() {
            self.publish = true;
        }
        if !place.is_unwritten() && self.unwritten.remove(&index) {
            // The new owner's verdict may be written once the tables are.
            let name = place.owner.as_ref().map(|owner| owner.name.clone());
            if let Some(name) = name {
                self.rewant(&name);
            }
        }
        self.answer();
    }
}
