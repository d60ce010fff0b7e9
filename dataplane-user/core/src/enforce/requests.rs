//! Requests: claims that are raised and withdrawn, and the answers.

use std::sync::Arc;

use super::{
    claim::{ClaimSource, NewClaim},
    input::Change,
    machine::Enforcer,
    now::{SECOND, Ticket},
    output::{Changed, Done, Event, Output, Refusal, RequestResult, SaveState},
    pending::{Pending, Wish},
    shown::ToSave,
    world::Danger,
};
use crate::cluster::NodeName;

/// Whether the remaining nodes may not be able to make up for so many flagged ones: more than a third.
const fn too_many(flagged: usize, all: usize) -> bool {
    flagged * 3 > all
}

/// For how long a request waits for the map, and then for the disk, in ns.
const PATIENCE: u64 = SECOND;
/// For how long a hand-over waits for the disk, in ns: the agent that asks for one waits for twice as long (`agent/start.rs`).
const HAND_OVER: u64 = 5 * SECOND;

impl Enforcer {
    /// A source raises or withdraws its claim on a node.
    pub(super) fn claim(&mut self, node: NodeName, change: Change, ticket: Option<Ticket>) {
        let (Change::Raise { claim: NewClaim { source, .. }, .. } | Change::Withdraw(source)) = &change;
        let done = match change {
            _ if !self.takes(source, ticket.is_some()) => Err(Refusal::HandingOver),
            Change::Raise { claim, force } => self.raise(&node, claim, force),
            Change::Withdraw(source) => self.withdraw(&node, &source),
        };
        match (done, ticket) {
            (Ok(wish), Some(ticket)) => self.wait(ticket, node, wish),
            (Err(refusal), Some(ticket)) => self.reply(ticket, Err(refusal)),
            (_, None) => {}
        }
    }

    fn raise(&mut self, node: &NodeName, claim: NewClaim, force: bool) -> Result<Wish, Refusal> {
        // An automatic claim, or an object, may come before its node: it is shown as a claim on an unknown node.
        if !claim.source.automatic() && !claim.source.is_object() {
            self.may_raise(node, force)?;
        }
        let source = claim.source.clone();
        let before = self.claims.raise(node, claim, self.now);
        if before.is_none() {
            self.tell_raised(node, &source);
        }
        self.write_anew(node);
        let raised = self.claims.get(node, &source).cloned().map(Box::new);
        Ok(Wish::Raise { source, before: before.map(Box::new), raised })
    }

    /// Why a person may not flag a node.
    fn may_raise(&self, node: &NodeName, force: bool) -> Result<(), Refusal> {
        let Some(latest) = self.views.latest() else { return Err(Refusal::Starting) };
        if latest.view.node(node).is_none() {
            return Err(Refusal::UnknownNode(node.clone()));
        }
        if force {
            return Ok(());
        }
        if *node == self.settings.own {
            return Err(Refusal::OwnNode(node.clone()));
        }
        let all = latest.view.nodes.len();
        let flagged = self.claims.flagged_by_persons(node) + 1;
        if too_many(flagged, all) { Err(Refusal::TooMany { flagged, all }) } else { Ok(()) }
    }

    fn withdraw(&mut self, node: &NodeName, source: &ClaimSource) -> Result<Wish, Refusal> {
        let known = self.views.latest().is_some_and(|latest| latest.view.node(node).is_some());
        let was = self.claims.withdraw(node, source, self.now);
        if !was && !known {
            let starting = self.views.latest().is_none();
            return Err(if starting { Refusal::Starting } else { Refusal::UnknownNode(node.clone()) });
        }
        if was {
            self.out.push_back(Output::Record(Event::Withdrawn(node.clone(), source.clone())));
        }
        self.write_anew(node);
        Ok(Wish::Withdraw { was })
    }

    /// Has the node written again: a request is answered after a write, also where nothing changes, and where an earlier write failed.
    fn write_anew(&mut self, node: &NodeName) {
        let Some((index, _)) = self.place_of(node) else { return };
        if let Some(place) = self.places.get_mut(&index).filter(|place| place.want.is_some() || !place.clean)
        {
            place.clean = false;
            place.again = None;
        }
        self.touch(index);
    }

    /// Replaces all claims of a source.
    pub(super) fn replace(&mut self, source: ClaimSource, claims: Vec<(NodeName, NewClaim)>) {
        if !self.takes(&source, false) {
            return;
        }
        let (came, went) = self.claims.replace(&source, claims, self.now);
        if source == ClaimSource::File {
            if !(came.is_empty() && went.is_empty()) {
                self.out.push_back(Output::Record(Event::FileFlags { came, went }));
            }
            return;
        }
        for node in &came {
            self.tell_raised(node, &source);
        }
        let went = went.into_iter().map(|node| Event::Withdrawn(node, source.clone()));
        self.out.extend(went.map(Output::Record));
    }

    /// Replaces all claims of objects.
    pub(super) fn replace_objects(&mut self, claims: Vec<(NodeName, NewClaim)>) {
        let mut gone = self.claims.of_objects();
        for (node, claim) in claims {
            let source = claim.source.clone();
            if self.claims.raise(&node, claim, self.now).is_none() {
                self.tell_raised(&node, &source);
            }
            gone.remove(&(node, source));
        }
        for (node, source) in gone {
            self.claims.withdraw(&node, &source, self.now);
            self.out.push_back(Output::Record(Event::Withdrawn(node, source)));
        }
    }

    fn tell_raised(&mut self, node: &NodeName, source: &ClaimSource) {
        let claim = self.claims.get(node, source).cloned();
        self.out.extend(claim.map(|claim| Output::Record(Event::Raised(node.clone(), claim))));
    }

    /// Another agent takes over: requests change nothing from now on.
    pub(super) fn hand_over(&mut self, ticket: Ticket) {
        if self.requests.is_given() {
            // An earlier hand-over was done, and the file is another agent's.
            self.requests.give();
            let done = Done { changed: Changed::HandedOver, written: None, saved: SaveState::Saved };
            return self.reply(ticket, Ok(done));
        }
        self.publish = true;
        self.next_renewal = self.now.mono;
        self.claims.bump();
        self.wait(ticket, NodeName::default(), Wish::HandOver);
        self.close();
    }

    fn wait(&mut self, ticket: Ticket, node: NodeName, wish: Wish) {
        let attaching = if node == self.settings.own { SECOND } else { 0 };
        let by = match wish {
            Wish::HandOver => self.now.mono.saturating_add(HAND_OVER),
            Wish::Raise { .. } | Wish::Withdraw { .. } => self.now.mono.saturating_add(PATIENCE + attaching),
        };
        let settled = wish == Wish::HandOver;
        let changes = self.claims.changes();
        // A request that changed nothing need not wait for renewals.
        let serial = if wish == (Wish::Withdraw { was: false }) { changes.urgent } else { changes.all };
        self.requests.waiting.push(Pending { ticket, node, wish, settled, written: None, serial, by });
    }

    fn reply(&mut self, ticket: Ticket, answer: RequestResult) {
        self.out.push_back(Output::Reply(ticket, answer));
    }

    /// Refuses the requests that raised a claim on a node and whose verdict is not written: the claim before is held again, where
    /// nobody has changed the claim since. Whether there were any such requests.
    pub(super) fn refuse(&mut self, node: &NodeName, refusal: &Refusal) -> bool {
        let mut any = false;
        let waiting = std::mem::take(&mut self.requests.waiting);
        // The latest first, so that the claim before the first of them stays.
        for pending in waiting.into_iter().rev() {
            match &pending.wish {
                Wish::Raise { source, before, raised } if pending.node == *node && !pending.settled => {
                    any = true;
                    let held = self.claims.get(node, source);
                    if held.is_some() && held == raised.as_deref() {
                        self.claims.put(node, source, before.as_deref().cloned(), self.now);
                    }
                    self.reply(pending.ticket, Err(refusal.clone()));
                }
                _ => self.requests.waiting.insert(0, pending),
            }
        }
        any
    }

    /// Answers the requests that withdrew a claim that the node may be cut until its verdict lapses.
    pub(super) fn not_taken_back(&mut self, node: &NodeName, error: &Arc<str>) {
        for pending in std::mem::take(&mut self.requests.waiting) {
            let its = matches!(pending.wish, Wish::Withdraw { .. }) && pending.node == *node;
            if its && !pending.settled {
                self.reply(pending.ticket, Err(Refusal::NotTakenBack(Arc::clone(error))));
            } else {
                self.requests.waiting.push(pending);
            }
        }
    }

    /// Takes the result of a save.
    pub(super) fn saved(&mut self, serial: u64, result: Result<(), Arc<str>>) {
        let error = result.as_ref().err().cloned();
        let before = self.requests.error();
        if self.requests.saved(serial, result, self.now.mono)
            && let Some(error) = error
        {
            self.out.push_back(Output::Record(Event::SaveFailed(error)));
        }
        self.publish |= self.requests.error() != before;
    }

    /// The save that is due now.
    pub(super) fn save(&mut self) -> Option<Output> {
        let changes = self.claims.changes();
        let due = self.requests.save(changes, self.now.mono);
        due.then(|| Output::Save(changes.all, self.claims.to_save()))
    }

    /// The save to make before the agent ends, whatever else is being saved and however soon after the last save; `None` where all that is held was handed out,
    /// or another agent has it.
    pub fn last_save(&self) -> Option<(u64, ToSave)> {
        let changes = self.claims.changes();
        self.requests.is_behind(changes).then(|| (changes.all, self.claims.to_save()))
    }

    /// The number of the save that has all claims held now.
    pub fn serial(&self) -> u64 {
        self.claims.changes().all
    }

    /// Whether this save is done, or failed.
    pub fn is_saved(&self, serial: u64) -> bool {
        self.requests.state(serial).is_some()
    }

    /// Answers the requests that wait for nothing more, or have waited long enough.
    pub(super) fn answer(&mut self) {
        if self.requests.waiting.is_empty() {
            return;
        }
        let now = self.now.mono;
        let urgent = self.claims.changes().urgent;
        for mut pending in std::mem::take(&mut self.requests.waiting) {
            // Claims that sources tell meanwhile are handed over too, since sources tell them to nobody else. For one second only, so that a stream of them does not
            // put the hand-over off.
            if pending.wish == Wish::HandOver && now < pending.by.saturating_sub(HAND_OVER - PATIENCE) {
                pending.serial = pending.serial.max(urgent);
            }
            if !pending.settled && self.is_settled(&pending) {
                pending.settled = true;
                let bears = self.place_of(&pending.node).is_some_and(|(_, place)| place.want.is_some());
                let withdrawn = matches!(pending.wish, Wish::Withdraw { .. });
                pending.written = (bears || withdrawn).then_some(now);
                pending.by = now.saturating_add(PATIENCE);
            }
            let saved = self.requests.state(pending.serial);
            if (pending.settled && saved.is_some()) || pending.by <= now {
                self.finish(pending, saved.unwrap_or(SaveState::Late));
            } else {
                self.requests.waiting.push(pending);
            }
        }
        self.close();
    }

    /// Requests change nothing while another agent takes over, or waits to.
    fn close(&mut self) {
        let waits = self.requests.waiting.iter().any(|pending| pending.wish == Wish::HandOver);
        self.closing = waits || self.requests.is_given();
    }

    /// The agent that was to take over has gone. What became of the file meanwhile is not known.
    pub(super) fn go_on(&mut self) {
        self.requests.take_back();
        self.close();
        self.publish = true;
        self.claims.bump();
    }

    /// Whether nothing is to be written to the maps for a request any more.
    fn is_settled(&self, pending: &Pending) -> bool {
        let Some((index, place)) = self.place_of(&pending.node) else { return true };
        let waits = place.want.is_none() && self.claims.decision(&pending.node).is_some();
        // The last write counts as done only once the next poll shows that nobody said it failed.
        let on_its_way = self.sent.as_ref().is_some_and(|(sent, _)| *sent == index);
        place.clean && !on_its_way && !waits
    }

    fn finish(&mut self, pending: Pending, saved: SaveState) {
        let changed = match pending.wish {
            Wish::Raise { before, .. } => Changed::Raised { before: before.map(|before| *before) },
            Wish::Withdraw { was } => Changed::Withdrawn { was },
            Wish::HandOver => {
                self.publish = true;
                let error = match &saved {
                    SaveState::Failed(error) => Some(Arc::clone(error)),
                    SaveState::Late => Some("the disk has not answered for 5 s".into()),
                    SaveState::Saved => None,
                };
                if let Some(error) = error {
                    return self.reply(pending.ticket, Err(Refusal::NotSaved(error)));
                }
                self.requests.give();
                Changed::HandedOver
            }
        };
        self.reply(pending.ticket, Ok(Done { changed, written: pending.written, saved }));
    }

    /// Records what is dangerous about the flags of the cluster's source.
    pub(super) fn tell_dangers(&mut self) {
        if !std::mem::take(&mut self.dangers_due) {
            return;
        }
        let Some(latest) = self.views.latest() else { return };
        let mut over = Vec::new();
        let mut hold = 0;
        for (node, claim) in self.claims.of_file() {
            if claim.ended(self.now) {
                over.push(node.clone());
            } else {
                hold += 1;
            }
        }
        let mut dangers = Vec::new();
        let all = latest.view.nodes.len();
        if too_many(hold, all) && hold > 0 {
            dangers.push(Danger::TooMany(hold, all));
        }
        if self.claims.get(&self.settings.own, &ClaimSource::File).is_some_and(|claim| !claim.ended(self.now))
        {
            dangers.push(Danger::OwnNode(self.settings.own.clone()));
        }
        if !over.is_empty() {
            dangers.push(Danger::Over(over));
        }
        if *dangers != *self.dangers {
            let new = dangers.iter().filter(|danger| !self.dangers.contains(danger)).cloned();
            let new = new.map(|danger| Output::Record(Event::Danger(danger)));
            self.out.extend(new);
            self.dangers = dangers.into();
            self.publish = true;
        }
    }
}
