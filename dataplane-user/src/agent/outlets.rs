//! Where the owner of verdicts puts what it wants others to know and to do. None of it waits.

use std::sync::Arc;

use tokio::sync::Notify;

use super::{bell::Bell, looks::Looks, slot::Slot, world::Published};
use crate::enforce::TablesPlan;

/// What the thread that writes tables is to do.
#[derive(Default)]
pub(super) struct TablesWork {
    /// The latest tables.
    pub(super) plan: Option<TablesPlan>,
}

/// All of them.
#[derive(Clone)]
pub(super) struct Outlets {
    /// What everybody reads.
    pub(super) world: Arc<Published>,
    /// Tables to be written.
    pub(super) tables: Arc<Slot<TablesWork>>,
    /// Rung when that changed.
    pub(super) bells: Bells,
}

/// Those who are told that what everybody reads has changed. Rung once it is in the maps.
#[derive(Clone, Default)]
pub(super) struct Bells {
    /// The thread that drains from IPVS.
    pub(super) drain: Arc<Bell>,
    /// Who challenges idle clients.
    pub(super) flagged: Arc<Notify>,
    /// Who looks at devices and routes: the view is another one.
    pub(super) view_changed: Arc<Notify>,
    /// The same, where somebody waits for it.
    pub(super) looks: Arc<Looks>,
}

impl Bells {
    /// Verdicts, exemptions or backends may have changed.
    pub(super) fn ring(&self) {
        self.drain.ring();
        self.flagged.notify_one();
    }
}
