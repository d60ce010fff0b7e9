//! All claims, and what the claims of a node decide: whether the node is to be cut, and until when.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use super::{
    changes::Changes,
    claim::{Claim, ClaimSource, NewClaim, Saved},
    decision::Decision,
    gone::Gone,
    held::Held,
    limits::{LimitChange, Limits, Withheld},
    now::Now,
    output::Event,
    scope::LimitScope,
    settings::{Auto, EnforcerSettings, Share},
    shared::SharedSettings,
    shown::{ShownClaims, ToSave},
    view::{Member, NewView},
};
use crate::{cluster::NodeName, plan::Mode};

mod settle;

/// What happened in a scope.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Crossed {
    pub(super) scope: LimitScope,
    pub(super) change: LimitChange,
}

/// All claims of all nodes.
#[derive(Debug)]
pub(super) struct Claims {
    settings: EnforcerSettings,
    /// The settings that hold for all agents.
    shared: Option<Arc<SharedSettings>>,
    held: Held,
    limits: Limits,
    /// Claims that were withheld and are gone.
    gone: Gone,
    members: Arc<BTreeMap<NodeName, Member>>,
    decisions: BTreeMap<NodeName, Decision>,
    shown: ShownClaims,
    /// A claim of the file, or how it stands, changed.
    file_changed: bool,
    /// Nodes to decide on anew.
    dirty: BTreeSet<NodeName>,
    all_dirty: bool,
    /// The strongest mode in which claims are carried out.
    most: Mode,
    /// All scopes are to be checked against their limits anew.
    scopes_dirty: bool,
    changes: Changes,
    /// When the next claim ends (CLOCK_MONOTONIC, ns), by the clocks when this was last worked out.
    next_end: Option<u64>,
}

impl Claims {
    pub(super) fn new(settings: EnforcerSettings, mut saved: Saved) -> Self {
        if !settings.shares {
            // Nobody would withdraw claims of objects: the source that told of them is not this agent's.
            saved.claims.retain(|(_, claim)| !claim.source.is_object());
        }
        let shared = saved.shared.filter(|_| settings.shares);
        Self {
            limits: Limits::new(limit(&settings, shared.as_deref()), saved.withheld),
            shared,
            gone: saved.gone.into_iter().collect(),
            most: settings.mode,
            settings,
            held: saved.claims.into_iter().collect(),
            file_changed: true,
            members: Arc::default(),
            decisions: BTreeMap::new(),
            shown: ShownClaims::default(),
            dirty: BTreeSet::new(),
            all_dirty: true,
            scopes_dirty: false,
            changes: Changes::default(),
            // At once: some of the saved claims may be over.
            next_end: Some(0),
        }
    }

    /// The claim of a source on a node.
    pub(super) fn get(&self, node: &str, source: &ClaimSource) -> Option<&Claim> {
        self.held.get(node, source)
    }

    /// Raises a claim, or renews it. Returns the claim that it replaces, where that one was not over.
    pub(super) fn raise(&mut self, node: &NodeName, new: NewClaim, now: Now) -> Option<Claim> {
        let before = self.get(node, &new.source).cloned();
        let source = new.source.clone();
        let mut claim = Claim::raise(new, before.as_ref(), now);
        if let Some(over) = before.as_ref().filter(|before| before.ended(now)) {
            self.note_gone(node, over, now);
        }
        let live = before.filter(|before| !before.ended(now));
        let first = self.gone.first(node, &source).filter(|_| live.is_none());
        if let Some(first) = first.filter(|first| self.is_withheld(node, first.raised, now)) {
            claim.since = first.since;
            claim.raised = first.raised;
        }
        self.put(node, &source, Some(claim), now);
        live
    }

    /// Notes a claim that is gone. Where it was withheld, its source must not get around the five minutes by raising it anew.
    fn note_gone(&mut self, node: &NodeName, claim: &Claim, now: Now) {
        if claim.source.limited() && self.is_withheld(node, claim.raised, now) {
            self.gone.note(node, claim);
        }
    }

    /// Whether a limited claim on the node, first raised at `raised`, would be withheld. A node that the view lacks may count
    /// in any scope once it is back.
    pub(super) fn is_withheld(&self, node: &NodeName, raised: Duration, now: Now) -> bool {
        let withholds = |withheld: &Withheld| withheld.lasts(now) && raised <= withheld.since;
        match self.members.get(node) {
            Some(member) => {
                member.scopes().any(|scope| self.limits.withheld_in(&scope).is_some_and(withholds))
            }
            None => self.limits.withheld().any(withholds),
        }
    }

    /// Puts a claim in place of the source's claim.
    pub(super) fn put(&mut self, node: &NodeName, source: &ClaimSource, claim: Option<Claim>, now: Now) {
        // A claim that is over is not held, except the file's, which still stands in the file.
        let claim = claim.filter(|claim| *source == ClaimSource::File || !claim.ended(now));
        let before = self.get(node, source);
        if before == claim.as_ref() {
            return;
        }
        let renewal = before.zip(claim.as_ref()).is_some_and(|(before, claim)| claim.renews(before, now));
        if let Some(before) = before.filter(|_| claim.is_none()).cloned() {
            self.note_gone(node, &before, now);
        }
        if renewal {
            self.changes.note_renewal();
        } else {
            self.changes.note();
        }
        let ends = claim.as_ref().and_then(|claim| claim.remaining(now)).map(|left| now.later(left));
        self.next_end = self.next_end.into_iter().chain(ends).min();
        self.held.put(node, source, claim);
        self.dirty.insert(node.clone());
    }

    /// Withdraws a claim. Whether there was one.
    pub(super) fn withdraw(&mut self, node: &NodeName, source: &ClaimSource, now: Now) -> bool {
        let was = self.get(node, source).is_some();
        if was {
            self.put(node, source, None, now);
        }
        was
    }

    /// Replaces all claims of a source. Returns the nodes that it newly claims, and those that it claims no more.
    pub(super) fn replace(
        &mut self,
        source: &ClaimSource,
        new: Vec<(NodeName, NewClaim)>,
        now: Now,
    ) -> (Vec<NodeName>, Vec<NodeName>) {
        let before = self.held.nodes_of(source);
        let mut after = BTreeSet::new();
        for (node, claim) in new {
            after.insert(node.clone());
            self.raise(&node, NewClaim { source: source.clone(), ..claim }, now);
        }
        let came = after.difference(&before).cloned().collect();
        let went: Vec<NodeName> = before.difference(&after).cloned().collect();
        for node in &went {
            self.withdraw(node, source, now);
        }
        (came, went)
    }

    /// Drops claims that are over, and returns them. A claim of the file stays, since it still stands in the file.
    pub(super) fn expire(&mut self, now: Now) -> Vec<(NodeName, ClaimSource)> {
        if self.next_end.is_none_or(|end| end > now.mono) {
            return Vec::new();
        }
        let (over, nodes) = self.held.expire(now);
        self.dirty.extend(nodes);
        if !over.is_empty() {
            self.changes.note();
        }
        self.find_next_end(now);
        for (node, claim) in &over {
            self.note_gone(node, claim, now);
        }
        over.into_iter().map(|(node, claim)| (node, claim.source)).collect()
    }

    fn find_next_end(&mut self, now: Now) {
        // A claim that is over is to be dropped at once, except the file's.
        let stays = |claim: &&Claim| claim.source == ClaimSource::File && claim.ended(now);
        let claims = self.held.iter().flat_map(|(_, claims)| claims).filter(|claim| !stays(claim));
        let left = claims.filter_map(|claim| claim.remaining(now)).min();
        self.next_end = left.map(|left| now.later(left));
    }

    /// Takes over the nodes and scopes of a view.
    pub(super) fn open(&mut self, view: &NewView) {
        self.open_members(&view.members, &view.sizes);
    }

    /// Takes over these nodes, and how many of them each scope has.
    pub(super) fn open_members(
        &mut self,
        members: &Arc<BTreeMap<NodeName, Member>>,
        sizes: &Arc<BTreeMap<LimitScope, u32>>,
    ) {
        if Arc::ptr_eq(&self.members, members) {
            return;
        }
        self.members = Arc::clone(members);
        self.limits.open(Arc::clone(sizes));
        self.all_dirty = true;
    }

    /// The settings that hold for all agents, where there are any.
    pub(super) fn shared(&self) -> Option<&Arc<SharedSettings>> {
        self.shared.as_ref()
    }

    /// Takes other settings for all agents. Whether they are others.
    pub(super) fn share(&mut self, shared: Option<Arc<SharedSettings>>) -> bool {
        if self.shared == shared {
            return false;
        }
        self.shared = shared;
        self.limits.set_share(self.limit());
        self.all_dirty = true;
        self.changes.note();
        true
    }

    /// What is done about automatic claims: of the command line and the settings for all agents the weaker holds. Where settings are to come
    /// and there are none, they count as those with nothing in them.
    pub(super) fn auto(&self) -> Auto {
        match &self.shared {
            _ if !self.settings.shares => self.settings.auto,
            Some(shared) => self.settings.auto.min(shared.auto),
            None => self.settings.auto.min(Auto::Observe),
        }
    }

    /// The limit: of the command line's and that for all agents the stricter holds. Where settings are to come and there are none, they count
    /// as those with nothing in them.
    pub(super) fn limit(&self) -> Share {
        limit(&self.settings, self.shared.as_deref())
    }

    /// Whether the node is never cut.
    pub(super) fn is_opted_out(&self, node: &str) -> bool {
        self.shared.as_ref().is_some_and(|shared| shared.opted_out.contains(node))
    }

    /// Sets the strongest mode in which claims are carried out. Whether it changed.
    pub(super) fn set_most(&mut self, most: Mode) -> bool {
        let is_news = std::mem::replace(&mut self.most, most) != most;
        self.all_dirty |= is_news;
        is_news
    }

    /// Has every node with a claim that ends decided on anew: ends come nearer, and the wall clock may have been set.
    pub(super) fn refresh(&mut self, now: Now) {
        let ends =
            |claims: &[Claim]| claims.iter().any(|claim| claim.ends.is_some() || claim.until.is_some());
        let ending = self.held.iter().filter(|(_, claims)| ends(claims)).map(|(node, _)| node.clone());
        self.dirty.extend(ending);
        self.scopes_dirty = true;
        self.find_next_end(now);
    }

    /// The decision that follows from the claims on a node.
    pub(super) fn decision(&self, node: &str) -> Option<&Decision> {
        self.decisions.get(node)
    }

    /// Every claim and how it stands.
    pub(super) fn shown(&self) -> &ShownClaims {
        &self.shown
    }

    /// The claims on a node.
    pub(super) fn of(&self, node: &str) -> &[Claim] {
        self.held.of(node)
    }

    /// Which objects claim which nodes.
    pub(super) fn of_objects(&self) -> BTreeSet<(NodeName, ClaimSource)> {
        self.held.of_objects().map(|(node, source)| (node.clone(), source.clone())).collect()
    }

    /// The file's claims, by node.
    pub(super) fn of_file(&self) -> impl Iterator<Item = (&NodeName, &Claim)> {
        self.held.of_file()
    }

    /// Whether a claim of the file, or how it stands, changed since the last call.
    pub(super) fn file_has_changed(&mut self) -> bool {
        std::mem::take(&mut self.file_changed)
    }

    /// Every node that has claims.
    pub(super) fn nodes(&self) -> impl Iterator<Item = &NodeName> {
        self.held.nodes()
    }

    /// How many nodes of the view a person flagged, not counting `other`, as of the last [`Self::settle`].
    pub(super) fn flagged_by_persons(&self, other: &str) -> usize {
        self.limits.persons_but_for(other) as usize
    }

    /// The scopes whose automatic claims are withheld.
    pub(super) fn withheld(&self) -> Vec<Withheld> {
        self.limits.withheld().cloned().collect()
    }

    /// That the automatic claims of one scope are withheld, for the log.
    pub(super) fn withheld_in(&self, scope: &LimitScope) -> Option<Event> {
        let withheld = self.limits.withheld().find(|withheld| withheld.scope == *scope)?;
        Some(Event::Withheld(withheld.clone(), self.limits.automatic(scope).cloned().collect()))
    }

    /// When the next claim or withholding ends (CLOCK_MONOTONIC, ns), as far as that can be known.
    pub(super) fn next_end(&self, now: Now) -> Option<u64> {
        let over = self.limits.next_over().map(|over| now.later(over.saturating_sub(now.boot)));
        self.next_end.into_iter().chain(over).min()
    }

    /// Has the state saved once more.
    pub(super) fn bump(&mut self) {
        self.changes.note();
    }

    /// The changes of the state to save.
    pub(super) fn changes(&self) -> Changes {
        self.changes
    }

    /// The state to save, as of the last [`Self::settle`].
    pub(super) fn to_save(&self) -> ToSave {
        let withheld = self.limits.withheld().map(|withheld| (withheld.scope.clone(), withheld.since));
        ToSave {
            claims: self.shown.clone(),
            withheld: withheld.collect(),
            gone: self.gone.clone(),
            shared: self.shared.clone(),
        }
    }
}

fn limit(settings: &EnforcerSettings, shared: Option<&SharedSettings>) -> Share {
    match shared {
        _ if !settings.shares => settings.limit,
        Some(shared) => settings.limit.stricter(shared.limit),
        None => settings.limit.stricter(Share::default()),
    }
}
