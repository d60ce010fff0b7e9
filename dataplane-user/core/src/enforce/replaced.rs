//! The strongest mode in which claims are carried out: the mode that is set, which commands change, and what keeps this agent from cutting in
//! mode enforce.

use super::{
    machine::Enforcer,
    output::{Event, Output},
    settings::ChangedBy,
};
use crate::{plan::Mode, proxy::Replacement};

impl Enforcer {
    /// The strongest mode now. An old view, and a program that forwards in kube-proxy's place, make it weaker than the mode that is set.
    pub(super) fn most(&self) -> Mode {
        let replaced = self.replacement.is_some() && !self.settings.force;
        let shared = self.shared_mode();
        if self.age.is_over() || replaced || shared == Mode::Observe {
            Mode::Observe
        } else {
            self.settings.mode
        }
    }

    /// Takes note of what forwards in kube-proxy's place, or that nothing does.
    pub(super) fn replaced_by(&mut self, found: Option<Replacement>) {
        if std::mem::replace(&mut self.replacement, found) == found {
            return;
        }
        // In mode observe a replacement changes nothing.
        if self.settings.mode == Mode::Enforce {
            let event = found.map_or(Event::NotReplaced, |found| self.beside(found));
            self.out.push_back(Output::Record(event));
        }
        // An earlier agent's verdicts are not renewed as cuts any more.
        self.bridging.clear();
        self.publish = true;
    }

    /// A command changes the mode. What else keeps this agent from cutting still does.
    pub(super) fn change_mode(&mut self, mode: Mode, by: ChangedBy) {
        if std::mem::replace(&mut self.settings.mode, mode) == mode {
            return;
        }
        self.out.push_back(Output::Record(Event::ModeChanged(mode, by.clone())));
        self.mode_changed = Some(by);
        // In mode observe nobody was told of the replacement.
        if let Some(found) = self.replacement.filter(|_| mode == Mode::Enforce) {
            let event = self.beside(found);
            self.out.push_back(Output::Record(event));
        }
        self.bridging.clear();
        self.publish = true;
    }

    /// The event that says what the agent does beside a replacement in mode enforce.
    fn beside(&self, found: Replacement) -> Event {
        if self.settings.force { Event::Forced(found) } else { Event::Replaced(found) }
    }
}
