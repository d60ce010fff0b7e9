//! How the Enforcer takes settings that hold for all agents.

use std::sync::Arc;

use super::{
    machine::Enforcer,
    output::{Event, Output},
    shared::SharedSettings,
};
use crate::plan::Mode;

impl Enforcer {
    /// The strongest mode now that the settings for all agents allow. An agent without such settings only observes, where they come from the API server.
    pub(super) fn shared_mode(&self) -> Mode {
        match self.claims.shared() {
            _ if !self.settings.shares => Mode::Enforce,
            Some(shared) => shared.mode_now(self.now),
            None => Mode::Observe,
        }
    }

    /// Takes the settings for all agents.
    pub(super) fn share(&mut self, settings: Option<Arc<SharedSettings>>) {
        if !self.settings.shares || !self.claims.share(settings.clone()) {
            return;
        }
        self.out.push_back(Output::Record(Event::Shared(settings)));
        // An earlier agent's verdicts may not be renewed as cuts any more.
        self.bridging.clear();
        self.publish = true;
    }

    /// When the next pause ends (CLOCK_MONOTONIC, ns).
    pub(super) fn next_pause_end(&self) -> Option<u64> {
        let ends = self.claims.shared()?.holding(self.now).map(|pause| pause.ends).min()?;
        Some(self.now.later(ends.saturating_sub(self.now.boot)))
    }
}
