//! Renews the verdicts of an agent that ended until the new one does. Pure but for its thread and the one map.

use std::{
    path::Path,
    sync::{
        Arc, Mutex, PoisonError,
        mpsc::{RecvTimeoutError, Sender, channel},
    },
    thread::JoinHandle,
    time::Duration,
};

use nodefence_common::{NodeEntry, VERDICT_LIFETIME_NS, Verdict};

use crate::{
    dataplane::NodeWriter,
    flags::{Clocks, Flags, monotonic_ns},
    ledger,
    plan::{name_field, verdict_until},
};

/// How often verdicts are renewed meanwhile.
const EVERY: Duration = Duration::from_millis(500);

/// Renews the verdicts of an agent that ended while this one reads its cluster file and loads its programs, which takes a
/// second or more: an upgrade must not let a flagged node go. Only verdicts that are alive, on nodes that still bear a flag.
pub(super) struct Bridge {
    flags: Arc<Mutex<Flags>>,
    stop: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Bridge {
    /// Begins; `None` where there is nothing to renew.
    pub(super) fn start(pin_dir: &Path, run_dir: &Path, flags: &Flags) -> std::io::Result<Option<Self>> {
        let Some((writer, entries)) = NodeWriter::pinned(pin_dir) else { return Ok(None) };
        let held = alive(&entries, monotonic_ns());
        if held.is_empty() {
            return Ok(None);
        }
        let flags = Arc::new(Mutex::new(flags.clone()));
        let renewed = Arc::clone(&flags);
        let run_dir = run_dir.to_owned();
        let (stop, stopped) = channel();
        let thread = std::thread::Builder::new().name("bridge".into()).spawn(move || {
            let mut writer = writer;
            loop {
                let until = monotonic_ns().saturating_add(VERDICT_LIFETIME_NS);
                let now = Clocks::now();
                let flags = renewed.lock().unwrap_or_else(PoisonError::into_inner).clone();
                for (name, flag) in flags.iter(now) {
                    let field = name_field(name);
                    let mut bearers = held.iter().filter(|(_, entry)| entry.name == field);
                    // A name that two entries bear is believed of neither.
                    if let (Some((index, entry)), None) = (bearers.next(), bearers.next()) {
                        let until = verdict_until(monotonic_ns(), flag.remaining(now));
                        // A failure shows when the real renewal begins.
                        let _lapses = writer.write_node(*index, &NodeEntry { until, ..*entry });
                    }
                }
                // What is taken out of IPVS holds as long as the verdicts do.
                let _lapses = ledger::prolong(&run_dir, monotonic_ns(), until);
                if stopped.recv_timeout(EVERY) != Err(RecvTimeoutError::Timeout) {
                    return;
                }
            }
        })?;
        Ok(Some(Self { flags, stop: Some(stop), thread: Some(thread) }))
    }

    /// Takes over what is known of flags by now.
    pub(super) fn set_flags(&self, flags: Flags) {
        *self.flags.lock().unwrap_or_else(PoisonError::into_inner) = flags;
    }
}

impl Drop for Bridge {
    /// Nothing of it is written any more once this returns.
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            let _panicked = thread.join();
        }
    }
}

/// Of the entries of nodes, those whose verdict cuts at `now`.
pub(super) fn alive(entries: &[(u32, NodeEntry)], now: u64) -> Vec<(u32, NodeEntry)> {
    let alive = |entry: &NodeEntry| entry.verdict == Verdict::Flagged as u32 && entry.until > now;
    entries.iter().filter(|(_, entry)| alive(entry)).copied().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_alive_is_renewed() {
        let entry =
            |verdict, until| NodeEntry { verdict, action: 0, until, generation: 1, name: name_field("a") };
        let entries = [(0, entry(1, 11)), (1, entry(1, 10)), (2, entry(0, 99)), (3, entry(7, 99))];
        assert_eq!(alive(&entries, 10), entries[..1]);
    }
}
