//! What changes while the agent runs, and the verdicts in the kernel: one lock around both, held for map writes at most.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use jiff::Timestamp;
use nodefence_common::{Addr, PortKey};
use tokio::sync::watch;

use super::{coverage::Coverage, kept::Kept, world::World, writer::Writer};
use crate::{
    cluster::{ClusterView, NodeName, NodeSet},
    dataplane::{WriteReport, probe::Findings},
    flags::{Clocks, Flags, monotonic_ns},
    plan::{Indices, Keep, KeepIndex, Policy, Slot, node_entry, verdict_until},
    proxy::Judgement,
    report::{AskRow, InterfaceRow, NeighbourRow, PinnedRow},
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
    pub(super) flags: Arc<Flags>,
    /// What is wrong with the flags file.
    pub(super) flags_problem: Option<String>,
    /// Who has which place.
    pub(super) indices: Arc<Indices>,
    /// Who bears a verdict in the map that was written by us, and in which place.
    pub(super) armed: BTreeMap<NodeName, Slot>,
    /// Since when (CLOCK_MONOTONIC, ns) a round of asking counts, for each of these: since before it was armed, and since before more of it was cut than then. Of
    /// adopted ones, when this agent started.
    pub(super) ask_since: BTreeMap<NodeName, u64>,
    /// Armed nodes whose idle clients are to be asked: newly armed, or adopted, or with backends that the cut reaches only
    /// now. One that is disarmed leaves.
    pub(super) fresh: BTreeSet<NodeName>,
    /// Nodes to which a view gave backends that are not in the maps yet: there is no point in asking before.
    pub(super) grown: BTreeSet<NodeName>,
    /// What must not be cut though its node is flagged.
    pub(super) kept: Kept,
    /// Writes verdicts.
    pub(super) writer: Box<dyn Writer>,
    /// When (CLOCK_MONOTONIC, ns) all verdicts that are to hold were last renewed, without a failure: for `status`.
    pub(super) renewed: u64,
    /// When (CLOCK_MONOTONIC, ns) the verdicts of those in `armed` were last renewed. Whatever has become of others: one node's failure must not
    /// end what is done about the rest.
    pub(super) held: u64,
    /// Nodes whose entry could not be written at the last renewal, and why.
    pub(super) failed: BTreeMap<NodeName, String>,
    /// What of that the log was not told yet.
    untold: BTreeMap<NodeName, String>,
    /// The flags file does not say what the flags are.
    pub(super) unsaved: bool,
    /// Another agent has been told what the flags are: it would not hear of a change.
    pub(super) closing: bool,
    /// What the last write of the tables did.
    pub(super) last_write: WriteReport,
    /// Why the last write of the tables failed.
    pub(super) write_error: Option<String>,
    /// The devices, as last looked at.
    pub(super) interfaces: Vec<InterfaceRow>,
    /// Which device leads to which backend.
    coverage: Arc<Coverage>,
    /// How kube-proxy forwards, as last looked at.
    proxy: Arc<Judgement>,
    /// What was found out about this kernel.
    findings: Arc<Findings>,
    /// Makes known what of all this others read.
    world: watch::Sender<Arc<World>>,
    /// How many backends no attached device covered when that was looked at last.
    pub(super) uncovered: usize,
    /// What is done about the neighbour entries of flagged nodes.
    pub(super) neighbours: Vec<NeighbourRow>,
    /// The cut is to reach the own node's pods: it is about to bear a flag.
    pub(super) covers_own: bool,
    /// The last round of asking, by node.
    pub(super) asked: BTreeMap<NodeName, AskRow>,
    /// What was last let go of what kube-proxy's tables pinned to a node.
    pub(super) pinned: BTreeMap<NodeName, PinnedRow>,
}

impl State {
    /// At the start of an agent. `armed`: who bears a verdict that is alive at this moment; `kept`: what the map keeps. Those that go on to bear it have
    /// their clients asked once more: an earlier agent may have cut otherwise (observe, drop), or have ended between its flag
    /// and the asking. Flows that were reset then are in CLOSE and not asked again.
    pub(super) fn new(
        view: ClusterView,
        flags: Flags,
        indices: Indices,
        armed: BTreeMap<NodeName, Slot>,
        kept: BTreeSet<PortKey>,
        writer: Box<dyn Writer>,
        findings: Findings,
    ) -> Self {
        let now = monotonic_ns();
        let kept = Kept::new(&view, kept);
        let ask_since: BTreeMap<NodeName, u64> = armed.keys().map(|name| (name.clone(), now)).collect();
        let world = World {
            epoch: 0,
            view: Arc::new(view),
            loaded: Timestamp::now(),
            slots: Arc::new(indices),
            flags: Arc::new(flags),
            enforced: Arc::new(World::enforced(&armed, &ask_since)),
            exempt: Arc::clone(kept.keep()),
            coverage: Arc::default(),
            proxy: Arc::default(),
            findings: Arc::new(findings),
        };
        Self {
            kept,
            view: Arc::clone(&world.view),
            loaded: world.loaded,
            file_error: None,
            watch_error: None,
            flags: Arc::clone(&world.flags),
            flags_problem: None,
            indices: Arc::clone(&world.slots),
            fresh: armed.keys().cloned().collect(),
            grown: BTreeSet::new(),
            ask_since,
            armed,
            writer,
            renewed: now,
            held: now,
            failed: BTreeMap::new(),
            untold: BTreeMap::new(),
            unsaved: false,
            closing: false,
            last_write: WriteReport::default(),
            write_error: None,
            interfaces: Vec::new(),
            coverage: Arc::clone(&world.coverage),
            proxy: Arc::clone(&world.proxy),
            findings: Arc::clone(&world.findings),
            world: watch::Sender::new(Arc::new(world)),
            uncovered: 0,
            neighbours: Vec::new(),
            covers_own: false,
            asked: BTreeMap::new(),
            pinned: BTreeMap::new(),
        }
    }

    /// Brings the verdicts in the map in line with the flags: renews those that hold, takes back those that do not. To be
    /// called each second, and at once when a flag comes or goes. Returns when it must be called again at the latest.
    pub(super) fn enforce(&mut self, policy: &Policy<'_>) -> Duration {
        let (now, begun) = (Clocks::now(), monotonic_ns());
        let mut again = Duration::from_secs(1);
        let mut failed = BTreeMap::new();
        let mut armed = BTreeMap::new();
        let placed = self.flags.iter(now).filter(|(name, _)| self.indices.get(name).is_some());
        let bearers: NodeSet = placed.filter_map(|(name, _)| self.view.index(name)).collect();
        let before: NodeSet = self.armed.keys().filter_map(|name| self.view.index(name)).collect();
        let kept = Arc::clone(self.kept.keep());
        let unkept = self.kept.begin(&self.view, policy.own_node, &bearers, &before, &mut *self.writer);
        self.publish_with(self.about_to_be_enforced(now, begun, &unkept));
        for (name, flag) in self.flags.iter(now) {
            let Some(slot) = self.indices.get(name) else { continue };
            if let Some(error) = self.view.index(name).and_then(|node| unkept.get(&node)) {
                failed.insert(name.clone(), error.clone());
                continue;
            }
            let remaining = flag.remaining(now);
            again = remaining.map_or(again, |remaining| again.min(remaining));
            let entry = node_entry(name, slot, policy, Some(verdict_until(monotonic_ns(), remaining)));
            match self.writer.write(slot.index, &entry) {
                Ok(()) => drop(armed.insert(name.clone(), slot)),
                Err(error) => drop(failed.insert(name.clone(), error.to_string())),
            }
        }
        for (name, slot) in &self.armed {
            // A place that has another owner by now is the planner's matter.
            if armed.contains_key(name) || failed.contains_key(name) || self.indices.get(name) != Some(*slot)
            {
                continue;
            }
            if let Err(error) = self.writer.write(slot.index, &node_entry(name, *slot, policy, None)) {
                failed.insert(name.clone(), error.to_string());
            }
        }
        self.fresh.extend(armed.keys().filter(|name| !self.armed.contains_key(*name)).cloned());
        self.fresh.retain(|name| armed.contains_key(name));
        self.ask_since.retain(|name, _| armed.contains_key(name));
        for name in armed.keys().filter(|name| !self.armed.contains_key(*name)) {
            self.ask_since.insert(name.clone(), begun);
        }
        self.armed = armed;
        self.held = begun;
        // What could not be taken back may be cut still.
        if failed.is_empty() {
            self.kept.end(bearers, &mut *self.writer);
        }
        if !Arc::ptr_eq(&kept, self.kept.keep()) {
            self.ask_where_no_more_kept(&kept, begun);
        }
        self.publish();
        self.note(failed);
        again
    }

    /// Has the clients asked of what was kept and now is cut.
    fn ask_where_no_more_kept(&mut self, before: &Keep, begun: u64) {
        let now = self.kept.keep().keys();
        let lost: BTreeSet<Addr> =
            before.keys().into_iter().filter(|key| !now.contains(key)).map(|key| key.addr).collect();
        if lost.is_empty() {
            return;
        }
        let mine = |name: &&NodeName| {
            let backends = self.view.node(name).map_or(&[][..], |node| &node.backends);
            backends.iter().any(|backend| lost.contains(&backend.addr()))
        };
        let nodes: Vec<NodeName> = self.armed.keys().filter(mine).cloned().collect();
        self.ask_from(&nodes, begun);
        self.fresh.extend(nodes);
    }

    /// Only rounds that begin from `since` on count for these: more of them is cut than earlier ones asked for.
    fn ask_from(&mut self, nodes: &[NodeName], since: u64) {
        for (_, at) in self.ask_since.iter_mut().filter(|(name, _)| nodes.contains(*name)) {
            *at = since;
        }
    }

    /// Takes a view over. What it adds to nodes is asked for once [`State::written`] says that it is in the maps.
    pub(super) fn set_view(&mut self, view: Arc<ClusterView>, index: KeepIndex, indices: Indices) {
        self.kept.set_index(index);
        let grown: Vec<NodeName> = view.grown_since(&self.view).map(|node| node.name.clone()).collect();
        self.ask_from(&grown, monotonic_ns());
        self.grown.extend(grown);
        self.indices = Arc::new(indices);
        Arc::make_mut(&mut self.flags).set_file(&view.flags, Clocks::now());
        self.view = view;
        self.loaded = Timestamp::now();
        self.file_error = None;
    }

    /// The maps hold the view's backends.
    pub(super) fn written(&mut self) {
        let grown: Vec<NodeName> = std::mem::take(&mut self.grown).into_iter().collect();
        // Again: a round may have begun before the maps held them.
        self.ask_from(&grown, monotonic_ns());
        self.ask_again(grown);
        self.publish();
    }

    /// Has the clients of these nodes asked, as far as they are armed.
    pub(super) fn ask_again(&mut self, nodes: impl IntoIterator<Item = NodeName>) {
        self.fresh.extend(nodes.into_iter().filter(|name| self.armed.contains_key(name)));
    }

    /// Writes again as healthy what a write of the tables from older flags may have brought back.
    pub(super) fn release(&mut self, names: &[NodeName], policy: &Policy<'_>) {
        let mut failed = BTreeMap::new();
        for name in names.iter().filter(|name| !self.armed.contains_key(*name)) {
            let Some(slot) = self.indices.get(name) else { continue };
            if let Err(error) = self.writer.write(slot.index, &node_entry(name, slot, policy, None)) {
                failed.insert(name.clone(), error.to_string());
            }
        }
        if !failed.is_empty() {
            self.note(failed);
        }
    }

    fn note(&mut self, failed: BTreeMap<NodeName, String>) {
        if failed.is_empty() {
            self.renewed = monotonic_ns();
        }
        let news = failed.iter().filter(|(node, error)| self.failed.get(*node) != Some(*error));
        self.untold.extend(news.map(|(node, error)| (node.clone(), error.clone())));
        self.failed = failed;
    }

    /// What the log is to be told of failed renewals. Not told where it is noted: that is under the lock and on the thread
    /// that renews, and whoever reads the log may stand still.
    pub(super) fn take_untold(&mut self) -> BTreeMap<NodeName, String> {
        std::mem::take(&mut self.untold)
    }

    /// Sets the CLI's flag on a node and writes the verdict. Where that fails the flag is not kept: nobody must take for cut
    /// what may not be.
    ///
    /// # Errors
    /// Why this node's verdict could not be written; what is wrong with another node's says nothing of it.
    pub(super) fn flag(
        &mut self,
        node: &str,
        lasts: Option<Duration>,
        reason: &str,
        policy: &Policy<'_>,
    ) -> Result<(), String> {
        let before = self.flags.cli().get(node).cloned();
        Arc::make_mut(&mut self.flags).flag(node, reason.to_owned(), lasts, Clocks::now());
        self.enforce(policy);
        let Some(error) = self.failed.get(node).cloned() else { return Ok(()) };
        Arc::make_mut(&mut self.flags).restore(node, before);
        self.enforce(policy);
        Err(error)
    }

    /// Takes the CLI's flag back and the verdict with it. `false` where there was none.
    ///
    /// # Errors
    /// Why this node's entry could not be written.
    pub(super) fn unflag(&mut self, node: &str, policy: &Policy<'_>) -> Result<bool, String> {
        let was = Arc::make_mut(&mut self.flags).unflag(node);
        self.enforce(policy);
        match self.failed.get(node) {
            Some(error) => Err(error.clone()),
            None => Ok(was),
        }
    }

    /// Why the last renewal failed: the first node's reason.
    pub(super) fn renew_error(&self) -> Option<String> {
        self.failed.iter().next().map(|(node, error)| format!("{node}: {error}"))
    }

    /// Drops flags that are over. Whether there were any.
    pub(super) fn expire_flags(&mut self, now: Clocks) -> bool {
        let mut flags = Flags::clone(&self.flags);
        let were = flags.expire(now);
        if were {
            self.flags = Arc::new(flags);
            self.publish();
        }
        were
    }
}

mod published;
#[cfg(test)]
mod tests;
