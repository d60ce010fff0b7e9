//! Where `verdicts` puts what others are to know and to do. It waits for none of them.

use std::sync::Arc;

use tokio::sync::Notify;

use super::{bell::Bell, looks::Looks, slot::Slot, world::Published};
use crate::enforce::TablesPlan;

/// Work for the thread that writes tables.
#[derive(Default)]
pub(super) struct TablesWork {
    /// The latest tables.
    pub(super) plan: Option<TablesPlan>,
    /// The agent ends, or is turned off: nothing more is to be written.
    pub(super) end: bool,
}

/// All outlets of `verdicts`.
#[derive(Clone)]
pub(super) struct Outlets {
    /// The world, which everybody reads.
    pub(super) world: Arc<Published>,
    /// Tables to be written.
    pub(super) tables: Arc<Slot<TablesWork>>,
    /// Rung when the world has changed.
    pub(super) bells: Bells,
}

/// Those that are told of a change of the world. The bells are rung once the change is in the maps.
#[derive(Clone, Default)]
pub(super) struct Bells {
    /// The thread that drains from IPVS.
    pub(super) drain: Arc<Bell>,
    /// The task that challenges idle clients.
    pub(super) flagged: Arc<Notify>,
    /// The task that looks at devices and routes: there is another view.
    pub(super) view_changed: Arc<Notify>,
    /// The same task, where somebody waits for a look.
    pub(super) looks: Arc<Looks>,
}

impl Bells {
    /// Verdicts, exemptions or backends may have changed.
    pub(super) fn ring(&self) {
        self.drain.ring();
        self.flagged.notify_one();
    }
}
