//! The first state: verdicts that an earlier agent left are renewed until the first view comes.

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    time::Duration,
};

use nodefence_common::{NodeEntry, Verdict};

use super::{
    age::Age,
    claim::{Claim, Saved},
    claims::Claims,
    exempt::Exempt,
    machine::{BRIDGED_EVERY, Enforcer},
    now::Now,
    output::Output,
    pending::Requests,
    place::{Place, cuts},
    settings::EnforcerSettings,
    views::Views,
    world::World,
};
use crate::{
    cluster::NodeName,
    plan::{Mode, name_field, verdict_until},
    proxy::Replacement,
};

impl Enforcer {
    /// The Enforcer at the start of an agent. `pinned`: every entry of the `nodes` map that has an owner. `saved`: what an earlier agent saved. `replacement`: what
    /// forwards in kube-proxy's place, which must be known before anything is cut.
    ///
    /// Until the first view comes, verdicts that are alive now are renewed where a claim of any cause on their node asks for the same action:
    /// an upgrade must not release a node. No verdict is renewed for longer than such claims last, and none that lapsed meanwhile.
    pub fn bridge(
        pinned: Vec<(u32, NodeEntry)>,
        saved: Saved,
        settings: EnforcerSettings,
        replacement: Option<Replacement>,
        now: Now,
    ) -> Self {
        let alive = |entry: &NodeEntry| entry.verdict == Verdict::Flagged as u32 && entry.until > now.mono;
        let bridged = pinned.iter().filter(|(_, entry)| alive(entry)).copied().collect();
        let places = pinned.into_iter().map(|(index, entry)| (index, Place::found(index, entry, now.mono)));
        let mut this = Self {
            claims: Claims::new(settings.clone(), saved),
            age: Age::new(settings.max_view_age, now),
            replacement: None,
            mode_changed: None,
            confirmed: 0,
            settings,
            now,
            bridged: Some(bridged),
            bridging: VecDeque::new(),
            views: Views::default(),
            places: places.collect(),
            exempt: Exempt::default(),
            work: BTreeSet::new(),
            later: BTreeSet::new(),
            wanted: BTreeSet::new(),
            troubled: BTreeSet::new(),
            left: BTreeSet::new(),
            fresh: BTreeSet::new(),
            unwritten: BTreeSet::new(),
            sent: None,
            own_attached: false,
            own_since: None,
            requests: Requests::default(),
            closing: false,
            next_renewal: now.mono,
            renewing: VecDeque::new(),
            lease_due: false,
            drain_alive: now.mono,
            grown: BTreeSet::new(),
            dangers_due: false,
            dangers: [].into(),
            out: VecDeque::new(),
            publish: false,
            retell: BTreeSet::new(),
            more_is_cut: false,
            world: World::default(),
        };
        this.replaced_by(replacement);
        let most = this.most();
        this.claims.set_most(most);
        this.bridge_on();
        this
    }

    /// Has the verdicts renewed that are due.
    pub(super) fn bridge_on(&mut self) {
        if self.now.mono < self.next_renewal {
            return;
        }
        self.next_renewal = self.now.mono.saturating_add(BRIDGED_EVERY);
        self.lease_due = true;
        let mut bearers: BTreeMap<[u8; 28], Vec<(u32, NodeEntry)>> = BTreeMap::new();
        for (index, entry) in self.bridged.iter().flatten() {
            bearers.entry(entry.name).or_default().push((*index, *entry));
        }
        let mut claimed: BTreeMap<[u8; 28], &NodeName> = BTreeMap::new();
        let mut twice = BTreeSet::new();
        for node in self.claims.nodes() {
            if claimed.insert(name_field(node), node).is_some() {
                twice.insert(name_field(node));
            }
        }
        for (field, node) in claimed {
            // A name that two entries or two claimed nodes bear counts for neither of them.
            let Some([(index, entry)]) = bearers.get(&field).map(|bearers| &bearers[..]) else { continue };
            if twice.contains(&field) || self.has_lapsed(*index) {
                continue;
            }
            let claims = self.claims.of(node).iter();
            let holding: Vec<&Claim> = claims.filter(|claim| self.holds(node, entry, claim)).collect();
            if holding.is_empty() {
                continue;
            }
            let left: Option<Vec<Duration>> = holding.iter().map(|claim| claim.remaining(self.now)).collect();
            let until = verdict_until(self.now.mono, left.and_then(|left| left.into_iter().max()));
            self.bridging.push_back((*index, NodeEntry { until, ..*entry }));
        }
    }

    /// Whether a claim renews an entry: only where it would be carried out with the entry's action, as far as that is known without a view.
    fn holds(&self, node: &NodeName, entry: &NodeEntry, claim: &Claim) -> bool {
        if claim.ended(self.now) {
            return false;
        }
        if self.claims.is_opted_out(node) {
            return false;
        }
        // The node's scopes are not known yet: any scope whose limited claims are withheld withholds this one.
        let withheld = claim.source.limited() && self.claims.is_withheld(node, claim.raised, self.now);
        let mode = self.claims.mode_of(claim).filter(|_| !withheld);
        match mode {
            Some(Mode::Enforce) => true,
            Some(Mode::Observe) => !cuts(entry),
            None => false,
        }
    }

    /// Whether the verdict in a place has lapsed: before the first view comes, none is given anew.
    fn has_lapsed(&self, index: u32) -> bool {
        let alive = |place: &Place| place.entry.until.max(place.may_cut.unwrap_or(0)) > self.now.mono;
        !self.places.get(&index).is_some_and(alive)
    }

    /// The next thing to do, until the first view comes.
    pub(super) fn poll_bridge(&mut self) -> Option<Output> {
        if let Some((index, entry)) = self.bridging.pop_front() {
            if let Some(place) = self.places.get_mut(&index) {
                let before = place.written(entry);
                place.clean = false;
                self.sent = Some((index, before));
            }
            return Some(Output::Node(index, entry));
        }
        self.lease().or_else(|| self.out.pop_front())
    }
}
