//! What the agent's tasks and threads share, and the operations on it.
//!
//! Locks, in the order in which they may be taken: `audit` (readings of all tables), `dataplane` (whole tables, attaching: seconds), `auto`, `store` (the flags file:
//! a disk may hang), `state` (map writes at most). Who only reads takes none of them: [`Core::world`]. Nobody waits for anything else under `state`, and the log is
//! written without it.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, atomic::AtomicBool};

use jiff::Timestamp;
use nodefence_common::VERDICT_LIFETIME_NS;
use tokio::sync::{Notify, watch};
use tokio_util::sync::CancellationToken;

use super::{
    auto::Auto, bell::Bell, desk::Desk, file_flags, own_node, settings::Settings, state::State,
    threads::EndsTheAgent, turns::Turns, watched::Audit, world::World,
};
use crate::{
    cluster::{ClusterView, FileSource, NodeName},
    dataplane::{Dataplane, Injector, probe::Findings},
    flags::{FlagStore, monotonic_ns},
    plan::{self, Indices, KeepIndex, Policy},
    proxy::{Judgement, Said},
};

/// What all of the agent's tasks and threads share.
pub(super) struct Core {
    pub(super) settings: Settings,
    pub(super) own_node: NodeName,
    pub(super) started: Timestamp,
    /// What the state is, for all who only read it.
    world: watch::Receiver<Arc<World>>,
    kube_proxy_said: Mutex<Said>,
    /// Whether the log was told that Services are given and how kube-proxy forwards is not known.
    pub(super) mode_missed: AtomicBool,
    /// See [`State`]: held for map writes at most.
    state: Mutex<State>,
    /// Wakes the renewal for an end that came nearer.
    wake: Condvar,
    /// For `--interface auto`.
    auto: Mutex<Auto>,
    /// For the slow work: whole tables, attaching. Taken before `state` where both are.
    dataplane: Mutex<Dataplane>,
    pub(super) store: Mutex<FlagStore>,
    pub(super) injector: Injector,
    /// What the thread that rescues makes known.
    pub(super) rescue: Arc<Desk>,
    /// What differs from what it should be, and since when.
    pub(super) audit: Audit,
    /// Who may ask idle clients now.
    pub(super) turns: Turns,
    /// Told when flags or backends may have changed.
    pub(super) takeout: Bell,
    /// Told when the view is another one.
    pub(super) view_changed: Notify,
    /// Told when somebody was flagged otherwise than by a request.
    pub(super) flagged: Notify,
    /// Cancelled where a thread of the agent's panicked.
    pub(super) panicked: CancellationToken,
}

impl Core {
    pub(super) fn new(
        settings: Settings,
        own_node: NodeName,
        state: State,
        dataplane: Dataplane,
        injector: Injector,
        store: FlagStore,
    ) -> Self {
        Self {
            audit: Audit::new(&settings.audit),
            settings,
            own_node,
            started: Timestamp::now(),
            world: state.reader(),
            kube_proxy_said: Mutex::default(),
            mode_missed: AtomicBool::default(),
            state: Mutex::new(state),
            wake: Condvar::new(),
            auto: Mutex::default(),
            dataplane: Mutex::new(dataplane),
            store: Mutex::new(store),
            injector,
            rescue: Arc::default(),
            turns: Turns::default(),
            takeout: Bell::default(),
            view_changed: Notify::new(),
            flagged: Notify::new(),
            panicked: CancellationToken::new(),
        }
    }

    /// For a thread to hold as long as it works.
    pub(super) fn or_end(&self) -> EndsTheAgent {
        EndsTheAgent(self.panicked.clone())
    }

    /// A thread that panicked under the lock does not take the agent's eyes: every value in it is written whole.
    pub(super) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn dataplane(&self) -> MutexGuard<'_, Dataplane> {
        self.dataplane.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn auto(&self) -> MutexGuard<'_, Auto> {
        self.auto.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What the agent knows and holds at this moment. Waits for nobody.
    pub(super) fn world(&self) -> Arc<World> {
        Arc::clone(&self.world.borrow())
    }

    /// What kube-proxy said last of its mode.
    pub(super) fn kube_proxy_said(&self) -> MutexGuard<'_, Said> {
        self.kube_proxy_said.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes how kube-proxy forwards. Whether that is news.
    pub(super) fn set_proxy(&self, judgement: &Judgement) -> bool {
        self.state().set_proxy(judgement)
    }

    /// Has the kernel programs and the rounds of asking follow what was found. Returns whether they do. Blocking.
    pub(super) fn set_findings(&self, findings: Findings) -> bool {
        if let Err(error) = self.dataplane().set_config(self.settings.config(&findings)) {
            tracing::error!(%error, "the kernel programs were not told how to answer; tried again");
            return false;
        }
        self.state().set_findings(findings);
        true
    }

    /// Renews verdicts until `stop`; for a thread of its own, which nothing else may hold up.
    pub(super) fn renew(&self, stop: &std::sync::atomic::AtomicBool) {
        let mut state = self.state();
        while !stop.load(std::sync::atomic::Ordering::Relaxed) {
            let again = state.enforce(&self.policy());
            self.takeout.ring();
            if !state.fresh.is_empty() {
                // Another node's flag may have ended, and with it what was kept.
                self.flagged.notify_one();
            }
            let waited = self.wake.wait_timeout(state, again);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        // Whoever takes over has the whole lifetime to do so.
        state.enforce(&self.policy());
    }

    /// Has [`Core::renew`] look at once.
    pub(super) fn wake(&self) {
        self.wake.notify_all();
    }

    /// Tells the log which verdicts could not be renewed.
    pub(super) fn tell_failed(&self) {
        let failed = self.state().take_untold();
        for (node, error) in failed {
            tracing::error!(node = node.as_str(), error, "the verdict cannot be renewed; it lapses");
        }
    }

    pub(super) fn policy(&self) -> Policy<'_> {
        self.settings.policy(&self.own_node)
    }

    /// Reads the cluster file again and applies it. What is wrong with it is kept for `status`; the last good view stays
    /// then. Returns whether it was taken. Blocking.
    pub(super) fn reload(&self, source: &FileSource) -> bool {
        // Where the addresses cannot be listed, there is nothing to hold the file against.
        let local = own_node::local_addresses().unwrap_or_default();
        let loaded = source.load().map_err(|error| error.to_string()).and_then(|view| {
            own_node::refuse_local(&view, &local)
                .map_err(|error| format!("{}: {error}", source.path().display()))?;
            Ok(view)
        });
        match loaded {
            Ok(view) => self.apply(view),
            Err(error) => {
                tracing::error!(error, "the last good view stays");
                self.state().file_error = Some(error);
                false
            }
        }
    }

    fn apply(&self, view: ClusterView) -> bool {
        let mut dataplane = self.dataplane();
        let view = Arc::new(view);
        // Nobody else gives places away: this one has the dataplane.
        let indices = Arc::clone(&self.state().indices);
        let mut indices = Indices::clone(&indices);
        let reconciled = indices.reconcile(view.nodes.iter().map(|node| &node.name));
        let keep_index = KeepIndex::new(&view);
        let mut state = self.state();
        if let Err(error) = reconciled {
            state.file_error = Some(error.to_string());
            drop(state);
            tracing::error!(%error, "the last good view stays");
            return false;
        }
        let before = Arc::clone(&state.view);
        state.set_view(Arc::clone(&view), keep_index, indices);
        // What the new view keeps must be in the map before its backends are.
        state.enforce(&self.policy());
        drop(state);
        file_flags::tell(&before.flags, &view, &self.own_node);
        if view.node(&self.own_node).is_none() && !view.nodes.is_empty() {
            tracing::warn!(node = self.own_node.as_str(), "this node is not in the cluster file any more");
        }
        tracing::info!(nodes = view.nodes.len(), backends = view.backends(), "took the cluster file");
        self.write_tables(&mut dataplane);
        true
    }

    /// Brings the whole wanted state into the maps. Flags may come and go meanwhile.
    pub(super) fn write_tables(&self, dataplane: &mut Dataplane) {
        let mut state = self.state();
        state.enforce(&self.policy());
        let (view, indices, armed) =
            (Arc::clone(&state.view), Arc::clone(&state.indices), state.armed.clone());
        drop(state);
        let policy = self.policy();
        let until = monotonic_ns().saturating_add(VERDICT_LIFETIME_NS);
        let tables = plan::tables(&view, &indices, &policy, |name| armed.contains_key(name), until);
        let written = dataplane.write(&tables);
        // Told before the lock is taken: whoever reads the log may stand still.
        match &written {
            Ok(report) => {
                if report.left_out + report.left_out_ports != 0 {
                    tracing::error!(
                        backends = report.left_out,
                        ports = report.left_out_ports,
                        first = ?report.left_out_first,
                        max_backends = self.settings.options.max_backends,
                        "the maps are full; traffic to these backends passes"
                    );
                }
                tracing::debug!(
                    inserted = report.inserted,
                    updated = report.updated,
                    deleted = report.deleted,
                    nodes = report.nodes,
                    "wrote the tables"
                );
            }
            Err(error) => tracing::error!(%error, "the tables were not written"),
        }
        let mut state = self.state();
        state.enforce(&policy);
        match written {
            Ok(report) => {
                state.last_write = report;
                state.write_error = None;
                state.written();
            }
            Err(error) => state.write_error = Some(error.to_string()),
        }
        let names: Vec<NodeName> = armed.into_keys().collect();
        state.release(&names, &policy);
        drop(state);
        self.takeout.ring();
        self.flagged.notify_one();
    }
}
