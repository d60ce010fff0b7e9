//! As what claims are carried out at most: what keeps this agent from cutting though `--mode` would.

use super::{
    machine::Enforcer,
    output::{Event, Output},
};
use crate::{plan::Mode, proxy::Replacement};

impl Enforcer {
    /// Now. An old view, and what forwards in kube-proxy's place, make it less than `--mode`.
    pub(super) fn most(&self) -> Mode {
        let replaced = self.replacement.is_some() && !self.told.force;
        if self.age.is_over() || replaced { Mode::Observe } else { self.told.mode }
    }

    /// This forwards in kube-proxy's place, or nothing does.
    pub(super) fn replaced_by(&mut self, found: Option<Replacement>) {
        if std::mem::replace(&mut self.replacement, found) == found {
            return;
        }
        // With `--mode observe` it changes nothing.
        if self.told.mode == Mode::Enforce {
            self.out.push_back(Output::Record(match found {
                Some(found) if self.told.force => Event::Forced(found),
                Some(found) => Event::Replaced(found),
                None => Event::NotReplaced,
            }));
        }
        // What an earlier agent left is not renewed as a cut any more.
        self.bridging.clear();
        self.publish = true;
    }
}
