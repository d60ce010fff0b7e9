//! The Enforcer: its state, how it takes inputs, and what follows as time goes by.

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    sync::Arc,
};

use nodefence_common::NodeEntry;

use super::{
    age::Age,
    claim::ClaimSource,
    claims::Claims,
    exempt::Exempt,
    input::Input,
    limits::LimitChange,
    now::{Epoch, Now, SECOND},
    output::{Event, Output},
    pending::Requests,
    place::{Before, Place, Work},
    settings::{ChangedBy, EnforcerSettings},
    views::Views,
    world::{Danger, World},
};
use crate::{
    cluster::NodeName,
    plan::{Mode, Slot},
    proxy::Replacement,
};

/// How often verdicts are renewed until the first view comes, in ns.
pub(super) const BRIDGED_EVERY: u64 = SECOND / 2;

/// One owner of verdicts: the only one that says what lies in `nodes` and which ports are exempt.
///
/// The Enforcer has no clock, socket, file, lock or log. Its driver tells it what happens ([`Enforcer::handle`]), carries its outputs out
/// one after the other ([`Enforcer::poll`], until there is none left), says at once which of them failed ([`Enforcer::failed`]),
/// and comes back in time ([`Enforcer::deadline`]).
#[derive(Debug)]
pub struct Enforcer {
    pub(super) settings: EnforcerSettings,
    pub(super) now: Now,
    /// Verdicts that were alive at the start; until the first view comes they are renewed by the nodes' names.
    pub(super) bridged: Option<Vec<(u32, NodeEntry)>>,
    /// Renewals of bridged verdicts that are due.
    pub(super) bridging: VecDeque<(u32, NodeEntry)>,
    pub(super) claims: Claims,
    pub(super) views: Views,
    pub(super) age: Age,
    /// What forwards Services in kube-proxy's place.
    pub(super) replacement: Option<Replacement>,
    /// Who changed the mode last.
    pub(super) mode_changed: Option<ChangedBy>,
    /// When (CLOCK_MONOTONIC, ns) the source last confirmed its last view without giving another; 0: never.
    pub(super) confirmed: u64,
    pub(super) places: BTreeMap<u32, Place>,
    pub(super) exempt: Exempt,
    /// Places with work to do, by the kind of work.
    pub(super) work: BTreeSet<(Work, u32)>,
    /// Places to look at again, and when (CLOCK_MONOTONIC, ns).
    pub(super) later: BTreeSet<(u64, u32)>,
    /// Places that must bear a verdict.
    pub(super) wanted: BTreeSet<u32>,
    /// Places with something wrong, for the snapshot.
    pub(super) troubled: BTreeSet<u32>,
    /// Places without an owner; they are emptied once the tables are written.
    pub(super) left: BTreeSet<u32>,
    /// Places of new owners whose backends the maps may lack: their verdicts wait until the tables are written.
    pub(super) fresh: BTreeSet<u32>,
    /// Places of new owners whose generation the map lacks: the tables wait for them.
    pub(super) unwritten: BTreeSet<u32>,
    /// The entry that was handed out last and has not been said to have failed: its place, and what it replaced.
    pub(super) sent: Option<(u32, Before)>,
    /// Whether the own node's devices are attached.
    pub(super) own_attached: bool,
    /// Since when (CLOCK_MONOTONIC, ns) the own node is to be cut.
    pub(super) own_since: Option<u64>,
    pub(super) requests: Requests,
    pub(super) closing: bool,
    pub(super) next_renewal: u64,
    /// Places whose verdicts are still to be renewed. Requests are taken between two renewals.
    pub(super) renewing: VecDeque<u32>,
    pub(super) lease_due: bool,
    /// When (CLOCK_MONOTONIC, ns) the drain last gave a sign of life.
    pub(super) drain_alive: u64,
    /// Nodes to which a view gave backends that are not in the maps yet.
    pub(super) grown: BTreeSet<NodeName>,
    /// The file's flags changed.
    pub(super) dangers_due: bool,
    pub(super) dangers: Arc<[Danger]>,
    /// Replies and log records to give out.
    pub(super) out: VecDeque<Output>,
    pub(super) publish: bool,
    /// Places of which the snapshot must say something else.
    pub(super) retell: BTreeSet<u32>,
    /// Whether more of some nodes is cut now than earlier rounds of challenges covered.
    pub(super) more_is_cut: bool,
    pub(super) world: World,
}

impl Enforcer {
    /// Takes note of something that happened.
    pub fn handle(&mut self, input: Input, now: Now) {
        self.confirm();
        self.now = now;
        match input {
            Input::View { view, flags } => {
                if let Some(claims) = flags {
                    self.replace(ClaimSource::File, claims);
                }
                self.view(view);
            }
            Input::Confirmed(at) => self.confirmed(at),
            Input::Claim { node, change, ticket } => self.claim(node, change, ticket),
            Input::Replace { source, claims } => self.replace(source, claims),
            Input::Objects(claims) => self.replace_objects(claims),
            Input::Shared(settings) => self.share(settings),
            Input::Routes { own_attached } => {
                self.own_attached = own_attached;
                self.rewant(&self.settings.own.clone());
            }
            Input::Replacement(found) => self.replaced_by(found),
            Input::Mode(mode, by) => self.change_mode(mode, by),
            Input::DrainAlive(at) => self.drain_alive = self.drain_alive.max(at),
            Input::Written { epoch, result } => self.tables_written(epoch, result),
            Input::Found { nodes, exempt, whole } => self.found(nodes, &exempt, whole),
            Input::Saved { serial, result } => self.saved(serial, result),
            Input::SaveAnew => self.claims.bump(),
            Input::HandOver(ticket) => self.hand_over(ticket),
            Input::HandOverUnheard => self.go_on(),
            Input::Renew => self.next_renewal = now.mono,
            Input::Tick => {}
        }
        self.advance();
    }

    /// Sets the time. To be called before each [`Enforcer::poll`]: carrying an output out takes time, and the reply to a request says when the map held the
    /// change.
    pub fn clock(&mut self, now: Now) {
        self.now = now;
    }

    /// Sets the node that this agent runs on, where [`Enforcer::bridge`] was not told. To be called before the first view comes.
    pub fn know_own(&mut self, own: NodeName) {
        self.settings.own = own;
    }

    /// When (CLOCK_MONOTONIC, ns) the source last confirmed a published view, or an earlier one.
    pub fn confirmed_at(&self) -> u64 {
        self.confirmed
    }

    /// The last view whose tables, and no others, were in the maps.
    pub fn written(&self) -> Option<Epoch> {
        self.views.written()
    }

    /// What follows from the time.
    fn advance(&mut self) {
        let mono = self.now.mono;
        if mono >= self.next_renewal {
            self.claims.refresh(self.now);
        }
        for (node, source) in self.claims.expire(self.now) {
            self.out.push_back(Output::Record(Event::Over(node, source)));
        }
        if let Some(news) = self.age.follow(self.now) {
            self.out.push_back(Output::Record(news));
            self.publish = true;
        }
        self.publish |= self.claims.set_most(self.most());
        if self.bridged.is_some() {
            self.bridge_on();
        } else {
            self.exempt.retry(mono);
            while let Some(&(at, index)) = self.later.first().filter(|(at, _)| *at <= mono) {
                self.later.remove(&(at, index));
                self.look_again(index);
            }
            if mono >= self.next_renewal {
                self.renew();
            }
            if self.own_since.is_some_and(|since| since.saturating_add(SECOND) <= mono) {
                self.rewant(&self.settings.own.clone());
            }
            self.views.try_again(mono);
            self.settle();
        }
        self.requests.save_again(mono);
        self.answer();
    }

    /// Has all verdicts written again, first those that still wait from the last time.
    fn renew(&mut self) {
        self.next_renewal = self.now.mono.saturating_add(SECOND);
        self.lease_due = true;
        let waiting: BTreeSet<u32> = self.renewing.iter().copied().collect();
        self.renewing.extend(self.wanted.difference(&waiting));
    }

    /// Has the next verdict that waits for a renewal written again; false where none waits.
    pub(super) fn renew_next(&mut self) -> bool {
        let Some(index) = self.renewing.pop_front() else { return false };
        if self.wanted.contains(&index)
            && let Some(place) = self.places.get_mut(&index)
        {
            place.clean = false;
            self.touch(index);
        }
        true
    }

    /// Has places follow the claims.
    pub(super) fn settle(&mut self) {
        let (names, crossed) = self.claims.settle(self.now);
        for crossed in crossed {
            let event = match crossed.change {
                LimitChange::Exceeded => self.claims.withheld_in(&crossed.scope),
                LimitChange::Over => Some(Event::NoMoreWithheld(crossed.scope)),
                LimitChange::Same => None,
            };
            let Some(event) = event else { continue };
            self.out.push_back(Output::Record(event));
            self.publish = true;
        }
        for name in &names {
            self.rewant(name);
        }
        if !self.claims.shown().is_same(&self.world.claims) {
            self.publish = true;
        }
        self.dangers_due |= self.claims.file_has_changed();
    }

    /// Works out which verdict a node must bear now.
    pub(super) fn rewant(&mut self, name: &NodeName) {
        let decision = self.claims.decision(name).cloned();
        let cuts = decision.as_ref().is_some_and(|decision| decision.mode == Mode::Enforce);
        if *name == self.settings.own {
            self.own_since = cuts.then(|| self.own_since.unwrap_or(self.now.mono));
        }
        let Some(slot) = self.views.slot(name) else { return };
        let Some(place) = self.places.get_mut(&slot.index) else { return };
        let owner = place.owner.as_ref().filter(|owner| owner.slot == slot);
        let Some(since) = owner.map(|owner| owner.since) else { return };
        place.lapse(self.now.mono);
        if !cuts && place.blocked.take().is_some() {
            self.publish = true;
        }
        // The maps' content at the start was written by an earlier agent, which exempted what was needed then.
        let ready = self.views.written_since(since) || place.may_cut.is_some();
        let blocked = place.blocked.as_ref().is_some_and(|blocked| blocked.until > self.now.mono);
        let waits = *name == self.settings.own
            && place.may_cut.is_none()
            && !self.own_attached
            && self.own_since.is_some_and(|since| self.now.mono < since.saturating_add(SECOND));
        let want = decision.filter(|_| ready && !blocked && !waits && !place.is_unwritten());
        if cuts && want.is_some() && !place.wants_cut() && place.may_cut.is_none() {
            place.since = self.now.mono;
            place.challenge_since = self.now.mono;
        }
        place.want(want, self.now.mono);
        self.touch(slot.index);
    }

    /// Looks at a place whose failed write is due again, or whose verdict has lapsed.
    fn look_again(&mut self, index: u32) {
        let owner = self.places.get(&index).and_then(|place| place.owner.as_ref());
        if let Some(name) = owner.map(|owner| owner.name.clone()) {
            self.rewant(&name);
        }
        self.touch(index);
    }

    /// Updates the lists of places after a change of this one.
    pub(super) fn touch(&mut self, index: u32) {
        let mono = self.now.mono;
        let Some(place) = self.places.get_mut(&index) else { return };
        place.lapse(mono);
        let work = place.work(mono);
        let listed = std::mem::replace(&mut place.listed, work);
        if listed != work {
            if let Some(work) = listed {
                self.work.remove(&(work, index));
            }
            self.work.extend(work.map(|work| (work, index)));
        }
        let slot = place.slot();
        let cut = place.may_cut.is_some() || place.wants_cut();
        let observed = place.want.as_ref().is_some_and(|want| want.mode == Mode::Observe);
        let wanted = place.want.is_some();
        if cut != self.exempt.is_cut(slot) || observed != self.exempt.is_observed(slot) {
            self.publish = true;
        }
        self.exempt.set_cut(slot, cut);
        self.exempt.set_observed(slot, observed);
        if wanted {
            self.wanted.insert(index);
        } else {
            self.wanted.remove(&index);
        }
        if !self.is_told(index) {
            self.retell.insert(index);
        }
    }

    /// Stops cutting or observing this owner of a place: the place bears another generation.
    pub(super) fn release(&mut self, slot: Slot) {
        self.publish |= self.exempt.is_cut(slot) || self.exempt.is_observed(slot);
        self.exempt.set_cut(slot, false);
        self.exempt.set_observed(slot, false);
        self.retell.insert(slot.index);
    }

    /// The place of a node of the latest view.
    pub(super) fn place_of(&self, name: &NodeName) -> Option<(u32, &Place)> {
        let slot = self.views.slot(name)?;
        let place = self.places.get(&slot.index)?;
        let its = place.owner.as_ref().is_some_and(|owner| owner.slot == slot);
        its.then_some((slot.index, place))
    }

    /// When [`Enforcer::handle`] must be called at the latest (CLOCK_MONOTONIC, ns), once [`Enforcer::poll`] gives no more output.
    pub fn deadline(&self) -> u64 {
        if self.bridged.is_some() {
            let answer = self.requests.next_deadline();
            return answer.map_or(self.next_renewal, |at| at.min(self.next_renewal));
        }
        let own = self.own_since.filter(|_| !self.own_attached).map(|since| since.saturating_add(SECOND));
        let times = [
            self.claims.next_end(self.now),
            self.exempt.next_retry(),
            self.later.first().map(|(at, _)| *at),
            own.filter(|at| *at > self.now.mono),
            self.views.next_try(),
            self.age.deadline(self.now),
            self.next_pause_end(),
            self.requests.next_deadline(),
            self.requests.next_save(self.claims.changes()),
        ];
        times.into_iter().flatten().min().map_or(self.next_renewal, |at| at.min(self.next_renewal))
    }

    /// Whether a source may change its claims now. A source that `asks` hears a refusal. One that only tells hears none and does not tell again: its changes count
    /// until another agent has the saved state.
    pub(super) fn takes(&self, source: &ClaimSource, asks: bool) -> bool {
        let closed = if asks { self.closing } else { self.requests.is_given() };
        !closed || *source == ClaimSource::File || source.is_object()
    }
}
