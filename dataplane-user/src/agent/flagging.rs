//! Flags that requests set and take back, and their file.
use std::{
    sync::PoisonError,
    time::{Duration, Instant},
};

use super::{
    core::Core,
    failures::{hands_over, not_found},
    state::State,
};
use crate::{
    cluster::NodeName,
    flags::{Clocks, Flag, too_many},
    report::{ErrorKind, Failure},
};

impl Core {
    /// Sets the CLI's flag on a node and writes the verdict. Gives how long that took, and the CLI's flag that held before.
    ///
    /// # Errors
    /// An unknown node; the own one, or too many, without `force`; a verdict that cannot be written.
    pub(super) fn flag(
        &self,
        node: &str,
        lasts: Option<Duration>,
        reason: &str,
        force: bool,
        begun: Instant,
    ) -> Result<(Duration, Option<Flag>), Failure> {
        let now = Clocks::now();
        let mut state = self.state();
        if state.closing {
            return Err(hands_over());
        }
        if state.view.node(node).is_none() {
            return Err(not_found(node));
        }
        if !force {
            self.may_flag(&state, node, now)?;
        }
        let before = state.flags.cli().get(node).filter(|flag| !flag.ended(now)).cloned();
        let written = state.flag(node, lasts, reason, &self.policy());
        let took = begun.elapsed();
        // Whoever flags it has its clients asked.
        state.fresh.remove(node);
        drop(state);
        if let Err(error) = written {
            let message = format!("the verdict on `{node}` could not be written, it bears no flag: {error}");
            return Err(Failure::new(ErrorKind::Failed, message));
        }
        self.wake();
        tracing::info!(node, reason, seconds = lasts.map(|lasts| lasts.as_secs()), "flagged");
        Ok((took, before))
    }

    fn may_flag(&self, state: &State, node: &str, now: Clocks) -> Result<(), Failure> {
        if self.own_node == node {
            let message = format!(
                "`{node}` is the node this agent runs on: whoever enters here would be cut off from its pods \
                 (--force to do so)"
            );
            return Err(Failure::new(ErrorKind::Refused, message));
        }
        let all = state.view.nodes.len();
        let others =
            state.flags.iter(now).filter(|(other, _)| *other != node && state.view.node(other).is_some());
        let flagged = others.count() + 1;
        if too_many(flagged, all) {
            let message = format!(
                "{flagged} of {all} nodes would be flagged, more than a third: the rest may not carry the load \
                 (--force to do it)"
            );
            return Err(Failure::new(ErrorKind::Refused, message));
        }
        Ok(())
    }

    /// Takes the CLI's flag back and the verdict with it. `false` where there was none.
    ///
    /// # Errors
    /// An unknown node; a verdict that cannot be written.
    pub(super) fn unflag(&self, node: &str) -> Result<bool, Failure> {
        let mut state = self.state();
        if state.closing {
            return Err(hands_over());
        }
        if !state.flags.cli().contains_key(node) && state.view.node(node).is_none() {
            return Err(not_found(node));
        }
        let was = state.unflag(node, &self.policy()).map_err(|error| {
            let message =
                format!("the verdict on `{node}` could not be taken back, it lapses in 3 s: {error}");
            Failure::new(ErrorKind::Failed, message)
        })?;
        drop(state);
        self.takeout.ring();
        // What was kept because of this node may be cut now on others.
        self.flagged.notify_one();
        if was {
            tracing::info!(node, "unflagged");
        }
        Ok(was)
    }

    /// Writes the CLI's flags to their file. A failure is kept for `status` and returned.
    pub(super) fn save_flags(&self) -> Option<String> {
        self.save(false)
    }

    /// Writes the CLI's flags to their file for another agent; from then on they are no more this one's to change.
    pub(super) fn hand_over(&self) -> Option<String> {
        self.save(true)
    }

    fn save(&self, last: bool) -> Option<String> {
        let store = self.store.lock().unwrap_or_else(PoisonError::into_inner);
        let flags = {
            let mut state = self.state();
            if state.closing {
                // What was flagged before is in the file, and the file is another agent's.
                return None;
            }
            state.closing = last;
            state.flags.cli().clone()
        };
        let saved = store.save(&flags);
        let mut state = self.state();
        let Err(error) = saved else {
            state.flags_problem = None;
            state.unsaved = false;
            return None;
        };
        state.closing = false;
        state.unsaved = true;
        let problem = format!(
            "{error}; the file says what it said before, and a restart of the agent would bring that back; tried again \
             each second"
        );
        let news = state.flags_problem.as_ref() != Some(&problem);
        state.flags_problem = Some(problem.clone());
        drop(state);
        drop(store);
        if news {
            tracing::error!(problem, "the flags file was not written");
        }
        Some(problem)
    }

    /// Writes the flags file again where that failed.
    pub(super) fn save_again(&self) {
        if self.state().unsaved {
            self.save_flags();
        }
    }

    /// Drops flags that are over, from the file too. To be called now and then.
    pub(super) fn expire_flags(&self) {
        let now = Clocks::now();
        let mut state = self.state();
        let before: Vec<NodeName> = state.flags.cli().keys().cloned().collect();
        if !state.expire_flags(now) {
            return;
        }
        let over: Vec<&NodeName> =
            before.iter().filter(|node| !state.flags.cli().contains_key(*node)).collect();
        drop(state);
        for node in over {
            tracing::info!(node = node.as_str(), "the flag is over");
        }
        self.wake();
        self.save_flags();
    }
}
