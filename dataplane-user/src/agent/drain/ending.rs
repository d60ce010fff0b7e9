//! Restores what was drained, before the agent ends.
use std::{
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use super::{AGAIN, Work};
use crate::{
    agent::{chain::chain, settings::Settings},
    drain::{
        Failure, Kernel, Reopened, RestoredAtEnd, Surroundings, holds, restore_entries, restore_named,
        restore_within,
    },
    flags::monotonic_ns,
    ipvs,
    ledger::Ledger,
};

/// How long an agent that ends tries to restore what it has drained. The guard restores the rest. Where the guard ends with the agent,
/// as in a container, nobody restores the rest. So the time is as long as possible within the 30 s that Kubernetes grants
/// (`terminationGracePeriodSeconds`).
const ENDING: Duration = Duration::from_secs(10);

impl Work {
    /// Restores what was drained, before the agent ends.
    ///
    /// # Errors
    /// As of [`Self::give_up`].
    pub(super) fn restore(mut self) -> anyhow::Result<()> {
        let begun = Instant::now();
        self.flagged.clear();
        // The ledger of an earlier agent may not have been opened yet.
        while self.drive.is_none() {
            match self.open() {
                Ok(true) => break,
                Ok(false) => return Ok(()),
                Err(error) => self.fail(Some(chain(error))),
            }
            if begun.elapsed() > ENDING {
                return Ok(());
            }
            thread::sleep(AGAIN);
        }
        let Some(mut drive) = self.drive.take() else { return Ok(()) };
        drive.set_flagged(&[]);
        match restore_within(&mut drive, &mut self, ENDING.saturating_sub(begun.elapsed())) {
            RestoredAtEnd::All => drive.book().dismiss_guard(),
            RestoredAtEnd::Late => tracing::error!(event = "ipvs-not-restored", "{NOT_ALL}"),
            RestoredAtEnd::Lapsed => {
                self.drive = Some(drive);
                return self.give_up();
            }
        }
        Ok(())
    }

    /// The lease has lapsed: restores what is still to be restored.
    ///
    /// # Errors
    /// Always: the agent ends.
    pub(super) fn give_up(mut self) -> anyhow::Result<()> {
        let begun = Instant::now();
        // No other agent takes the ledger over as long as this one has it open.
        let Some(drive) = self.drive.take() else { return Ok(()) };
        tracing::warn!(
            event = "ipvs-lapsed",
            "the lease of drained IPVS destinations has lapsed; they are restored, and the agent ends"
        );
        let settings = Arc::clone(&self.given.sight.settings);
        let Settings { run_dir, options, .. } = &*settings;
        loop {
            // The guard has restored what the ledger does not name any more. Where somebody removed the ledger, this agent alone knows what
            // was drained.
            let alone = holds(&options.pin_dir) || !Ledger::path(run_dir).exists();
            let left = match alone {
                true => restore_entries(&drive.machine.entries()).map_err(chain),
                false => restore_named(run_dir).map_err(chain),
            };
            match left {
                // The guard lives on: a change that was under way while this process stood still may have been made after the guard
                // restored.
                Ok(left) if left.is_empty() => break,
                Ok(left) => self.fail(Some(format!("{} destinations cannot be restored", left.len()))),
                Err(problem) => self.fail(Some(problem)),
            }
            if begun.elapsed() > ENDING {
                tracing::error!(event = "ipvs-not-restored", "{NOT_ALL}");
                break;
            }
            thread::sleep(AGAIN);
        }
        anyhow::bail!(
            "the agent stood still, or its ledger was removed; what it had drained from IPVS was restored; start it anew"
        )
    }
}

const NOT_ALL: &str =
    "IPVS: not all was restored before the agent ends; the guard goes on with it, if it lives";

impl Surroundings<Kernel> for Work {
    fn now(&self) -> Duration {
        Duration::from_nanos(monotonic_ns())
    }

    fn pause(&mut self, time: Duration) {
        thread::sleep(time);
    }

    fn reopen(&mut self, error: &ipvs::Error) -> Reopened<Kernel> {
        self.opening.again(error)
    }

    fn tell(&mut self, problem: Failure) {
        self.fail(Some(chain(problem)));
    }
}
