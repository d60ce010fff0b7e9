//! As what claims are carried out at most: the mode, which commands change, and what keeps this agent from cutting though the mode would.

use super::{
    machine::Enforcer,
    output::{Event, Output},
    settings::ChangedBy,
};
use crate::{plan::Mode, proxy::Replacement};

impl Enforcer {
    /// Now. An old view, and what forwards in kube-proxy's place, make it less than the mode.
    pub(super) fn most(&self) -> Mode {
        let replaced = self.replacement.is_some() && !self.told.force;
        if self.age.is_over() || replaced { Mode::Observe } else { self.told.mode }
    }

    /// This forwards in kube-proxy's place, or nothing does.
    pub(super) fn replaced_by(&mut self, found: Option<Replacement>) {
        if std::mem::replace(&mut self.replacement, found) == found {
            return;
        }
        // In mode observe it changes nothing.
        if self.told.mode == Mode::Enforce {
            let event = found.map_or(Event::NotReplaced, |found| self.beside(found));
            self.out.push_back(Output::Record(event));
        }
        // What an earlier agent left is not renewed as a cut any more.
        self.bridging.clear();
        self.publish = true;
    }

    /// A command changes the mode. The weaker of it and of what else keeps this agent from cutting holds.
    pub(super) fn change_mode(&mut self, mode: Mode, by: ChangedBy) {
        if std::mem::replace(&mut self.told.mode, mode) == mode {
            return;
        }
        self.out.push_back(Output::Record(Event::ModeChanged(mode, by.clone())));
        self.mode_changed = Some(by);
        // In mode observe nobody was told of it.
        if let Some(found) = self.replacement.filter(|_| mode == Mode::Enforce) {
            let event = self.beside(found);
            self.out.push_back(Output::Record(event));
        }
        self.bridging.clear();
        self.publish = true;
    }

    /// What the agent does beside it in mode enforce.
    fn beside(&self, found: Replacement) -> Event {
        if self.told.force { Event::Forced(found) } else { Event::Replaced(found) }
    }
}
