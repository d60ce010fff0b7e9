use std::{collections::BTreeMap, sync::Arc, time::Duration};

use jiff::Timestamp;
use nodefence_common::VERDICT_LIFETIME_NS;

use super::{coverage::Coverage, run::Settings};
use crate::{
    cluster::ClusterView,
    dataplane::{self, NodeWriter},
    flags::{Clocks, Flag, Flags, monotonic_ns},
    plan::{Indices, Policy, Slot, node_entry},
    report::{AskRow, InterfaceRow, NeighbourRow},
};

/// What the agent knows and holds. Behind one lock that is never held for longer than a few map writes: verdicts are
/// renewed under it, and a flag must not wait for slow work.
pub(super) struct State {
    /// Who exists.
    pub(super) view: Arc<ClusterView>,
    /// When that was read.
    pub(super) loaded: Timestamp,
    /// Why the file that lies there now was not taken.
    pub(super) file_error: Option<String>,
    /// Why the file's folder is not watched.
    pub(super) watch_error: Option<String>,
    /// What operators hold against nodes.
    pub(super) flags: Flags,
    /// What is wrong with the flags file.
    pub(super) flags_problem: Option<String>,
    /// Who has which place.
    pub(super) indices: Indices,
    /// Who bears a verdict in the map that was written by us, and in which place.
    pub(super) armed: BTreeMap<String, Slot>,
    /// Newly armed, their idle clients not asked yet.
    pub(super) fresh: Vec<String>,
    /// Writes verdicts.
    pub(super) writer: NodeWriter,
    /// When (CLOCK_MONOTONIC, ns) verdicts were last renewed.
    pub(super) renewed: u64,
    /// Why the last renewal failed.
    pub(super) renew_error: Option<String>,
    /// How many backends and ports did not fit at the last write of the tables, and the first few of them.
    pub(super) left_out: (u64, Vec<std::net::IpAddr>),
    /// Why the last write of the tables failed.
    pub(super) write_error: Option<String>,
    /// The devices, as last looked at.
    pub(super) interfaces: Vec<InterfaceRow>,
    /// Which device leads to which backend.
    pub(super) coverage: Arc<Coverage>,
    /// What is done about the neighbour entries of flagged nodes.
    pub(super) neighbours: Vec<NeighbourRow>,
    /// The last round of asking, by node.
    pub(super) asked: BTreeMap<String, AskRow>,
}

impl State {
    /// Brings the verdicts in the map in line with the flags: renews those that hold, takes back those that do not. To be
    /// called each second, and at once when a flag comes or goes. Returns when it must be called again at the latest.
    pub(super) fn enforce(&mut self, settings: &Settings, own_node: &str) -> Duration {
        let now = Clocks::now();
        let mut again = Duration::from_secs(1);
        let mut failed = None;
        let policy = settings.policy(own_node);
        let mut armed = BTreeMap::new();
        for (name, flag) in self.flags.iter(now) {
            let Some(slot) = self.indices.get(name) else { continue };
            let remaining = flag.remaining(now);
            again = remaining.map_or(again, |remaining| again.min(remaining));
            let entry = node_entry(name, slot, &policy, Some(verdict_until(monotonic_ns(), remaining)));
            match self.writer.write_node(slot.index, &entry) {
                Ok(()) => drop(armed.insert(name.to_owned(), slot)),
                Err(error) => drop(failed.get_or_insert(error)),
            }
        }
        for (name, slot) in &self.armed {
            // A place that has another owner by now is the planner's matter.
            if armed.contains_key(name) || self.indices.get(name) != Some(*slot) {
                continue;
            }
            if let Err(error) = self.writer.write_node(slot.index, &node_entry(name, *slot, &policy, None)) {
                failed.get_or_insert(error);
            }
        }
        self.fresh.extend(armed.keys().filter(|name| !self.armed.contains_key(*name)).cloned());
        self.armed = armed;
        self.note(failed);
        again
    }

    /// Writes again as healthy what a write of the tables from older flags may have brought back.
    pub(super) fn release(&mut self, names: &[String], settings: &Settings, own_node: &str) {
        let policy = settings.policy(own_node);
        let mut failed = None;
        for name in names.iter().filter(|name| !self.armed.contains_key(*name)) {
            let Some(slot) = self.indices.get(name) else { continue };
            if let Err(error) = self.writer.write_node(slot.index, &node_entry(name, slot, &policy, None)) {
                failed.get_or_insert(error);
            }
        }
        if failed.is_some() {
            self.note(failed);
        }
    }

    fn note(&mut self, failed: Option<dataplane::Error>) {
        match failed {
            None => {
                self.renewed = monotonic_ns();
                self.renew_error = None;
            }
            Some(error) => {
                let error = error.to_string();
                if self.renew_error.as_ref() != Some(&error) {
                    tracing::error!(error, "verdicts cannot be renewed; they lapse");
                }
                self.renew_error = Some(error);
            }
        }
    }

    /// The flag that holds on a node.
    pub(super) fn flag_of(&self, node: &str, now: Clocks) -> Option<&Flag> {
        self.flags.get(node, now)
    }
}

/// Up to when (CLOCK_MONOTONIC, ns) a verdict holds that is renewed now: its lifetime, but not beyond the flag's own end.
pub(super) fn verdict_until(now: u64, remaining: Option<Duration>) -> u64 {
    let remaining = remaining.map_or(u64::MAX, |left| u64::try_from(left.as_nanos()).unwrap_or(u64::MAX));
    now.saturating_add(VERDICT_LIFETIME_NS.min(remaining))
}

impl Settings {
    /// How flags are carried out.
    pub(super) fn policy<'a>(&self, own_node: &'a str) -> Policy<'a> {
        Policy { own_node, mode: self.mode, answer: self.answer }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_verdict_does_not_outlive_its_flag() {
        assert_eq!(verdict_until(5, None), 5 + VERDICT_LIFETIME_NS);
        assert_eq!(verdict_until(5, Some(Duration::from_secs(60))), 5 + VERDICT_LIFETIME_NS);
        assert_eq!(verdict_until(5, Some(Duration::from_millis(1))), 1_000_005);
        assert_eq!(verdict_until(5, Some(Duration::ZERO)), 5);
    }
}
