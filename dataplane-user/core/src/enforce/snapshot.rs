//! The snapshot that everybody else reads.

use std::{collections::BTreeMap, sync::Arc};

use nodefence_common::Action;

use super::{bearers::Bearer, machine::Enforcer, place::Place, world::World};
use crate::{
    cluster::NodeName,
    plan::{Mode, Policy, Slot},
};

/// How a place bears a verdict.
#[derive(Default)]
struct PlaceBearers {
    enforced: Option<Bearer>,
    observed: Option<Bearer>,
    lapsing: Option<Bearer>,
}

impl Enforcer {
    /// The snapshot as of now. Costs in proportion to the places of which something changed.
    pub(super) fn snapshot(&mut self) -> Arc<World> {
        let mut world = World {
            number: self.world.number + 1,
            view: self.views.latest().cloned(),
            view_is_old: self.age.is_over(),
            replacement: self.replacement,
            mode: self.most(),
            set_mode: self.settings.mode,
            mode_changed: self.mode_changed.clone(),
            shares: self.settings.shares,
            shared: self.claims.shared().cloned(),
            auto: self.claims.auto(),
            limit: self.claims.limit(),
            claims: self.claims.shown().clone(),
            enforced: self.world.enforced.clone(),
            observed: self.world.observed.clone(),
            lapsing: self.world.lapsing.clone(),
            exempt: self.exempt.ports(),
            would_exempt: self.exempt.would(),
            dangers: Arc::clone(&self.dangers),
            withheld: self.claims.withheld().into(),
            failed: self.failures(),
            unsaved: self.requests.error(),
            closing: self.closing,
            handed_over: self.requests.is_given(),
            tables_error: self.views.error.clone(),
        };
        for index in std::mem::take(&mut self.retell) {
            let PlaceBearers { enforced, observed, lapsing } = self.to_tell(index);
            world.enforced.put(index, enforced);
            world.observed.put(index, observed);
            world.lapsing.put(index, lapsing);
        }
        self.world = world;
        #[cfg(test)]
        self.all_is_told();
        Arc::new(self.world.clone())
    }

    /// What the snapshot must say of a place.
    fn to_tell(&self, index: u32) -> PlaceBearers {
        let Some(place) = self.places.get(&index) else { return PlaceBearers::default() };
        let slot = place.slot();
        let holds = place.wants_cut() && place.error.is_none();
        let cut = self.exempt.is_cut(slot).then(|| self.bearer(slot, place, Mode::Enforce));
        let (enforced, lapsing) = if holds { (cut, None) } else { (None, cut) };
        let observed = self.exempt.is_observed(slot).then(|| self.bearer(slot, place, Mode::Observe));
        PlaceBearers { enforced, observed, lapsing }
    }

    /// Whether the last snapshot says of a place what it must.
    pub(super) fn is_told(&self, index: u32) -> bool {
        let PlaceBearers { enforced, observed, lapsing } = self.to_tell(index);
        let World { enforced: told, observed: told_observed, lapsing: told_lapsing, .. } = &self.world;
        let same = told.at(index) == enforced.as_ref() && told_observed.at(index) == observed.as_ref();
        same && told_lapsing.at(index) == lapsing.as_ref()
    }

    /// Whether the last snapshot is right about every place.
    #[cfg(test)]
    fn all_is_told(&self) {
        let World { enforced, observed, lapsing, .. } = &self.world;
        let missing = self.places.keys().find(|index| !self.is_told(**index));
        assert!(missing.is_none(), "of {missing:?} something else is to be told");
        let cut: Vec<Slot> = self.exempt.cut().collect();
        let mut told: Vec<Slot> = enforced.iter().chain(lapsing.iter()).map(|bearer| bearer.slot).collect();
        told.sort_unstable();
        assert_eq!(told, cut);
        assert!(observed.iter().map(|bearer| bearer.slot).eq(self.exempt.observed()));
    }

    fn bearer(&self, slot: Slot, place: &Place, mode: Mode) -> Bearer {
        let policy = Policy { own_node: &self.settings.own, mode, answer: self.settings.answer };
        Bearer {
            name: place.owner.as_ref().map(|owner| owner.name.clone()),
            slot,
            action: match place.want {
                Some(_) => policy.action(),
                // The entry is an earlier agent's, or of another setting.
                None => Action::from_raw(place.entry.action).unwrap_or(policy.action()),
            },
            since: place.since,
            challenge_since: place.challenge_since,
        }
    }

    /// Nodes whose entry is not as it should be, and why.
    fn failures(&mut self) -> Arc<BTreeMap<NodeName, Arc<str>>> {
        let places = &self.places;
        let why = |index: &u32| {
            let place = places.get(index)?;
            let blocked = place.blocked.as_ref();
            let blocked = blocked
                .map(|blocked| format!("{} must be exempt, which failed: {}", blocked.port, blocked.why));
            let why = place.error.clone().or_else(|| blocked.map(Arc::from))?;
            Some((place.owner.as_ref().map(|owner| owner.name.clone()), why))
        };
        self.troubled.retain(|index| why(index).is_some());
        let named = self.troubled.iter().filter_map(|index| {
            let (name, why) = why(index)?;
            Some((name?, why))
        });
        Arc::new(named.collect())
    }
}
