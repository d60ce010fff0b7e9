//! Puts back what was taken, before the agent ends.
use std::{
    thread,
    time::{Duration, Instant},
};

use nodefence_common::VERDICT_LIFETIME_NS;

use super::{AGAIN, Work, reopened};
use crate::{
    agent::chain::chain,
    flags::monotonic_ns,
    ipvs,
    takeout::{Failure, Kernel, Reopened, Surroundings, put_back_within},
};

/// How long an agent that ends tries to put back what it has taken; the guard has the rest. Where the guard ends with it, as in a container, nobody has: so as
/// long as can be within the 30 s that Kubernetes grants (`terminationGracePeriodSeconds`).
const ENDING: Duration = Duration::from_secs(10);

impl Work {
    /// Puts back what was taken, before the agent ends.
    pub(super) fn restore(mut self) {
        let begun = Instant::now();
        self.flagged.clear();
        // Nothing may have been opened yet, of what an earlier agent has left.
        while self.drive.is_none() {
            match self.open() {
                Ok(true) => break,
                Ok(false) => return,
                Err(error) => self.fail(Some(chain(error))),
            }
            if begun.elapsed() > ENDING {
                return;
            }
            thread::sleep(AGAIN);
        }
        let Some(mut drive) = self.drive.take() else { return };
        drive.set_flagged(&[]);
        // Verdicts may not be renewed any more, and nothing is done here on their account.
        drive.book().hold_up_to(Box::new(|| monotonic_ns().saturating_add(VERDICT_LIFETIME_NS)));
        if put_back_within(&mut drive, &mut self, ENDING.saturating_sub(begun.elapsed())) {
            drive.book().dismiss_guard();
        } else {
            tracing::error!(
                "IPVS: not all was put back before the agent ends; the guard goes on with it, if it lives"
            );
        }
    }
}

impl Surroundings<Kernel> for Work {
    fn now(&self) -> Duration {
        Duration::from_nanos(monotonic_ns())
    }

    fn pause(&mut self, time: Duration) {
        thread::sleep(time);
    }

    fn reopen(&mut self, error: &ipvs::Error) -> Reopened<Kernel> {
        reopened(&self.given.rescue, error)
    }

    fn tell(&mut self, problem: Failure) {
        self.fail(Some(chain(problem)));
    }
}
