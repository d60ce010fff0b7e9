use std::{
    collections::HashMap,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use nodefence_common::Addr;

use super::{Entry, Surroundings};
use crate::dataplane::Injector;

/// The surroundings of a running agent.
pub struct Live {
    injector: Injector,
    entries: HashMap<Addr, Entry>,
    stop: Arc<AtomicBool>,
}

impl Live {
    /// `entries`: for each backend the attached device that the route to it uses. The sweep ends early once `stop` is true.
    pub fn new(injector: Injector, entries: HashMap<Addr, Entry>, stop: Arc<AtomicBool>) -> Self {
        Self { injector, entries, stop }
    }
}

impl Surroundings for Live {
    fn entry(&mut self, backend: Addr) -> Option<Entry> {
        self.entries.get(&backend).copied()
    }

    fn inject(&mut self, frames: &[(u32, Vec<u8>)]) -> usize {
        let mut sent = 0;
        for same_device in frames.chunk_by(|a, b| a.0 == b.0) {
            let Some((ifindex, _)) = same_device.first() else { continue };
            let report = self.injector.inject_all(*ifindex, same_device.iter().map(|(_, frame)| frame));
            if let Some(error) = report.first_error {
                tracing::warn!(%error, failed = report.failed, "questions to idle clients were not injected");
            }
            sent += usize::try_from(report.sent).unwrap_or(usize::MAX);
        }
        sent
    }

    fn go_on(&self) -> bool {
        !self.stop.load(Ordering::Relaxed)
    }
}
