//! How many nodes limited claims may cut, of all, of each zone and of each pool. Limited are automatic claims, and objects that are not forced.
//!
//! Where limited claims exceed the limit of a scope, none of them is enforced there: they are withheld. For five minutes only claims
//! first raised after that count; then all of them do again. A withheld claim that goes and comes back in that time is not new ([`super::gone`]).

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use super::{now::Now, scope::LimitScope, settings::Share};
use crate::cluster::NodeName;

/// For how long only new claims count in a scope whose automatic claims are withheld.
pub const WITHHELD_FOR: Duration = Duration::from_secs(300);

/// What counts of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Counted {
    /// A person flagged it, or an object that is forced.
    pub(super) person: bool,
    /// When the latest of its limited claims was first raised (CLOCK_BOOTTIME).
    pub(super) latest: Option<Duration>,
}

/// A scope whose automatic claims are withheld.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Withheld {
    /// Which.
    pub scope: LimitScope,
    /// Since when (CLOCK_BOOTTIME). Claims first raised up to then are withheld for [`WITHHELD_FOR`].
    pub since: Duration,
    /// How many nodes had a claim that counted, automatic or a person's.
    pub counted: u32,
    /// How many nodes may have one.
    pub allowed: u32,
}

impl Withheld {
    /// Whether the five minutes are not over yet.
    pub(super) fn lasts(&self, now: Now) -> bool {
        now.boot < self.since.saturating_add(WITHHELD_FOR)
    }
}

#[derive(Debug, Default)]
struct State {
    nodes: BTreeMap<NodeName, Counted>,
    /// How many nodes of the scope have automatic claims.
    automatic: u32,
    /// How many nodes of the scope a person flagged.
    persons: u32,
    withheld: Option<Withheld>,
}

/// The limits of all scopes.
#[derive(Debug, Default)]
pub(super) struct Limits {
    share: Share,
    sizes: Arc<BTreeMap<LimitScope, u32>>,
    scopes: BTreeMap<LimitScope, State>,
    /// The scopes in which each node counts.
    places: BTreeMap<NodeName, Vec<LimitScope>>,
}

/// How an evaluation changed whether claims are withheld in a scope.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LimitChange {
    /// Nothing changed.
    Same,
    /// The automatic claims of the scope are withheld from now on, also those that were withheld before.
    Exceeded,
    /// Nothing is withheld in the scope any more.
    Over,
}

impl Limits {
    pub(super) fn new(share: Share, withheld: Vec<(LimitScope, Duration)>) -> Self {
        let mut this = Self { share, ..Self::default() };
        for (scope, since) in withheld {
            let withheld = Withheld { scope: scope.clone(), since, counted: 0, allowed: 0 };
            this.scopes.entry(scope).or_default().withheld = Some(withheld);
        }
        this
    }

    /// Sets how many nodes may be claimed. The caller must then [`Self::evaluate`] all scopes.
    pub(super) fn set_share(&mut self, share: Share) {
        self.share = share;
    }

    /// Sets how many nodes the scopes have. The caller must then [`Self::count`] each node again.
    pub(super) fn open(&mut self, sizes: Arc<BTreeMap<LimitScope, u32>>) {
        self.sizes = sizes;
        self.places.clear();
        for state in self.scopes.values_mut() {
            state.nodes.clear();
            state.automatic = 0;
            state.persons = 0;
        }
        self.scopes.retain(|_, state| state.withheld.is_some());
    }

    /// Sets what counts of a node, and in which scopes. Adds the scopes to evaluate to `touched`.
    pub(super) fn count(
        &mut self,
        node: &NodeName,
        counted: Option<(Counted, Vec<LimitScope>)>,
        touched: &mut BTreeSet<LimitScope>,
    ) {
        for scope in self.places.remove(node).unwrap_or_default() {
            if let Some(state) = self.scopes.get_mut(&scope)
                && let Some(was) = state.nodes.remove(node)
            {
                state.automatic -= u32::from(was.latest.is_some());
                state.persons -= u32::from(was.person);
            }
            touched.insert(scope);
        }
        let Some((counted, scopes)) = counted else { return };
        for scope in &scopes {
            let state = self.scopes.entry(scope.clone()).or_default();
            state.nodes.insert(node.clone(), counted);
            state.automatic += u32::from(counted.latest.is_some());
            state.persons += u32::from(counted.person);
            touched.insert(scope.clone());
        }
        self.places.insert(node.clone(), scopes);
    }

    /// How many nodes of the scope may be claimed.
    fn allowed(&self, scope: &LimitScope) -> u32 {
        self.share.allowed(self.sizes.get(scope).copied().unwrap_or_default())
    }

    /// Compares what counts in a scope with its limit.
    pub(super) fn evaluate(&mut self, scope: &LimitScope, now: Now) -> LimitChange {
        let allowed = self.allowed(scope);
        let Some(state) = self.scopes.get_mut(scope) else { return LimitChange::Same };
        let window = state.withheld.as_ref().filter(|withheld| withheld.lasts(now));
        let window = window.map(|withheld| withheld.since);
        let (counted, automatic) = match window {
            None => (state.nodes.len() as u32, state.automatic),
            Some(since) => {
                let is_new = |node: &Counted| node.latest.is_some_and(|raised| raised > since);
                let new = state.nodes.values().filter(|node| is_new(node)).count() as u32;
                let counts = state.nodes.values().filter(|node| node.person || is_new(node)).count();
                (counts as u32, new)
            }
        };
        if automatic > 0 && counted > allowed {
            let withheld = Withheld { scope: scope.clone(), since: now.boot, counted, allowed };
            state.withheld = Some(withheld);
            return LimitChange::Exceeded;
        }
        if state.withheld.is_some() && window.is_none() {
            state.withheld = None;
            return LimitChange::Over;
        }
        LimitChange::Same
    }

    /// Whether a claim that was first raised at `raised` is withheld in a scope.
    pub(super) fn withholds(&self, scope: &LimitScope, raised: Duration) -> bool {
        self.withheld_in(scope).is_some_and(|withheld| raised <= withheld.since)
    }

    /// Since when and why a scope's automatic claims are withheld; `None` where they are not.
    pub(super) fn withheld_in(&self, scope: &LimitScope) -> Option<&Withheld> {
        self.scopes.get(scope)?.withheld.as_ref()
    }

    /// The nodes of a scope that have automatic claims.
    pub(super) fn automatic(&self, scope: &LimitScope) -> impl Iterator<Item = &NodeName> {
        let nodes = self.scopes.get(scope).into_iter().flat_map(|state| &state.nodes);
        nodes.filter(|(_, counted)| counted.latest.is_some()).map(|(name, _)| name)
    }

    /// How many of all nodes a person flagged, not counting `other`.
    pub(super) fn persons_but_for(&self, other: &str) -> u32 {
        let Some(whole) = self.scopes.get(&LimitScope::Whole) else { return 0 };
        whole.persons - u32::from(whole.nodes.get(other).is_some_and(|counted| counted.person))
    }

    /// The scopes whose five minutes are over.
    pub(super) fn over(&self, now: Now) -> impl Iterator<Item = &LimitScope> {
        self.withheld().filter(move |withheld| !withheld.lasts(now)).map(|withheld| &withheld.scope)
    }

    /// When the next five minutes are over (CLOCK_BOOTTIME).
    pub(super) fn next_over(&self) -> Option<Duration> {
        self.withheld().map(|withheld| withheld.since.saturating_add(WITHHELD_FOR)).min()
    }

    /// The scopes whose automatic claims are withheld.
    pub(super) fn withheld(&self) -> impl Iterator<Item = &Withheld> {
        self.scopes.values().filter_map(|state| state.withheld.as_ref())
    }

    /// All scopes.
    pub(super) fn scopes(&self) -> impl Iterator<Item = &LimitScope> {
        self.scopes.keys()
    }
}
