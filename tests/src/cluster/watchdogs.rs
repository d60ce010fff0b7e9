//! When the guests stood still. A watchdog in each of them tells the host, which notes its own time.

use std::{
    io::BufRead as _,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    thread::JoinHandle,
};

use anyhow::{Context as _, Result, ensure};
use nodefence::flags::monotonic_ns;

use super::{machine::Machine, message::Request, wire};
use crate::{Netns, incident::Still};

/// The watchdogs of all guests. They end with the guests.
#[derive(Debug, Default)]
pub(super) struct Watchdogs {
    seen: Arc<Mutex<Vec<Still>>>,
    threads: Vec<(u8, JoinHandle<Result<()>>)>,
}

impl Watchdogs {
    /// Has a guest tell when it stood still, from now on.
    pub(super) fn watch(&mut self, ns: &Netns, machine: &Machine) -> Result<()> {
        let (node, guest, seen) = (machine.node, machine.guest(), Arc::clone(&self.seen));
        let listen = move || {
            let lines = guest.open(&Request::Gaps, None)?.lines();
            for line in lines {
                let to_ns = monotonic_ns();
                let line = line?;
                let length: u64 = line.parse().with_context(|| format!("{line:?}: no number"))?;
                let from_ns = to_ns.saturating_sub(length * 1_000_000);
                locked(&seen).push(Still { at: wire::name(node), from_ns, to_ns });
            }
            Ok(())
        };
        self.threads.push((node, ns.spawn(listen)?));
        Ok(())
    }

    /// No longer expects anything of the guest of this node, which is powered off. Its thread waits for a line that never comes.
    pub(super) fn forget(&mut self, node: u8) {
        self.threads.retain(|(of, _)| *of != node);
    }

    /// When guests stood still between these two moments of CLOCK_MONOTONIC, in nanoseconds.
    pub(super) fn between(&self, from_ns: u64, to_ns: u64) -> Result<Vec<Still>> {
        for (node, thread) in &self.threads {
            ensure!(!thread.is_finished(), "the watchdog of {} has ended", wire::name(*node));
        }
        let overlaps = |still: &&Still| still.from_ns < to_ns && still.to_ns > from_ns;
        Ok(locked(&self.seen).iter().filter(overlaps).cloned().collect())
    }
}

/// The list. A listener that panicked cannot have left half of an entry.
fn locked(seen: &Mutex<Vec<Still>>) -> MutexGuard<'_, Vec<Still>> {
    seen.lock().unwrap_or_else(PoisonError::into_inner)
}
