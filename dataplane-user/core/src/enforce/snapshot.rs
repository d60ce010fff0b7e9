//! The snapshot that everybody else reads.

use std::{collections::BTreeMap, sync::Arc};

use nodefence_common::Action;

use super::{
    machine::Enforcer,
    place::Place,
    world::{Bearer, TablesState, World},
};
use crate::{
    cluster::NodeName,
    plan::{Mode, Policy, Slot},
};

impl Enforcer {
    /// As of now. Costs in proportion to what is cut and observed.
    pub(super) fn snapshot(&mut self) -> Arc<World> {
        let mut enforced = Vec::new();
        let mut lapsing = Vec::new();
        for slot in self.exempt.cut() {
            let Some(place) = self.places.get(&slot.index) else { continue };
            let holds = place.wants_cut() && place.error.is_none();
            let list = if holds { &mut enforced } else { &mut lapsing };
            list.push(self.bearer(slot, place, Mode::Enforce));
        }
        let observed = self.exempt.observed().filter_map(|slot| {
            let place = self.places.get(&slot.index)?;
            Some(self.bearer(slot, place, Mode::Observe))
        });
        let world = World {
            number: self.world.number + 1,
            view: self.views.latest().cloned(),
            claims: Arc::clone(self.claims.shown()),
            enforced: enforced.into(),
            observed: observed.collect(),
            lapsing: lapsing.into(),
            exempt: self.exempt.ports(),
            would_exempt: self.exempt.would(),
            dangers: Arc::clone(&self.dangers),
            withheld: self.claims.withheld().into(),
            failed: Arc::default(),
            unsaved: self.requests.error(),
            closing: self.closing,
            tables: TablesState {
                planned: self.views.latest().map(|view| view.epoch),
                written: self.views.written(),
                error: self.views.error.clone(),
            },
        };
        self.world = World { failed: self.failures(), ..world };
        Arc::new(self.world.clone())
    }

    fn bearer(&self, slot: Slot, place: &Place, mode: Mode) -> Bearer {
        let policy = Policy { own_node: &self.told.own, mode, answer: self.told.answer };
        let causes = place.want.as_ref().map(|want| Arc::clone(&want.causes));
        Bearer {
            name: place.owner.as_ref().map(|owner| owner.name.clone()),
            slot,
            action: match place.want {
                Some(_) => policy.action(),
                // What an earlier agent wrote, or another setting.
                None => Action::from_raw(place.entry.action).unwrap_or(policy.action()),
            },
            since: place.since,
            ask_since: place.ask_since,
            causes: causes.unwrap_or_default(),
        }
    }

    /// Nodes whose entry is not as it should be, and why.
    fn failures(&mut self) -> Arc<BTreeMap<NodeName, Arc<str>>> {
        let places = &self.places;
        let why = |index: &u32| {
            let place = places.get(index)?;
            let blocked = place.blocked.as_ref();
            let blocked = blocked
                .map(|blocked| format!("{} must be kept, which failed: {}", blocked.port, blocked.why));
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
