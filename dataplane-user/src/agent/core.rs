//! What the agent's tasks and threads share.
//!
//! Who only reads takes no lock: [`Core::world`]. Each lock that is left belongs to a file that holds it for a moment and takes nothing else under it.

use std::sync::Arc;

use jiff::Timestamp;
use tokio::sync::watch;

use super::{
    audit,
    beat::Beat,
    bell::Bell,
    builder::Builds,
    desk::Desk,
    follow_up::FollowUp,
    inbox::Inbox,
    outlets::Bells,
    settings::Settings,
    tables::TablesRow,
    threads::Crew,
    turns::Turns,
    world::{Published, World},
};
use crate::{
    cluster::NodeName,
    dataplane::{Counters, Injector},
    plan::Policy,
    report::{InterfaceRow, NeighbourRow, ReadingRow},
};

/// What becomes of the source of views, for `status`.
#[derive(Clone, Default)]
pub(super) struct SourceRow {
    /// Why the file that lies there now was not taken.
    pub(super) error: Option<String>,
    /// Why the file's folder is not watched.
    pub(super) unwatched: Option<String>,
    /// What reading it has cost since the agent began to follow it.
    pub(super) reading: ReadingRow,
}

/// Devices as last looked at, for `status`.
#[derive(Clone, Default)]
pub(super) struct RoutesRow {
    /// Those that we are attached to, or want to be.
    pub(super) interfaces: Vec<InterfaceRow>,
    /// How many backends none of them covers.
    pub(super) uncovered: usize,
}

/// Rows of `status`: each is written by one owner and read by whoever asks.
pub(super) struct Rows {
    pub(super) source: watch::Sender<SourceRow>,
    pub(super) tables: watch::Receiver<TablesRow>,
    /// What is wrong with the flags file.
    pub(super) flags_problem: watch::Receiver<Option<String>>,
    pub(super) routes: watch::Sender<RoutesRow>,
    /// What is done about the neighbour entries of flagged nodes.
    pub(super) neighbours: watch::Sender<Vec<NeighbourRow>>,
}

/// What all of the agent's tasks and threads share.
pub(super) struct Core {
    pub(super) settings: Settings,
    pub(super) own_node: NodeName,
    pub(super) started: Timestamp,
    /// What everybody reads.
    pub(super) published: Arc<Published>,
    /// What changes each second beside it.
    pub(super) beat: Arc<Beat>,
    /// Where the owner of verdicts is told something.
    pub(super) verdicts: Arc<Inbox>,
    /// Where views are handed in.
    pub(super) builds: Arc<Builds>,
    /// What the kernel programs counted.
    pub(super) counters: Counters,
    pub(super) injector: Injector,
    /// What the thread that rescues makes known.
    pub(super) rescue: Arc<Desk>,
    /// Where the thread that watches the tables is asked.
    pub(super) audit: audit::Inbox,
    /// Who may ask idle clients now.
    pub(super) turns: Turns,
    /// Whom to ask, and what came of it.
    pub(super) follow_up: FollowUp,
    /// Rung when verdicts, exemptions or backends may have changed, or devices are to be looked at.
    pub(super) bells: Bells,
    pub(super) rows: Rows,
    /// Whoever else works.
    pub(super) crew: Crew,
}

impl Core {
    /// What the agent knows and holds at this moment. Waits for nobody.
    pub(super) fn world(&self) -> Arc<World> {
        self.published.now()
    }

    /// The thread that takes out of IPVS, and what it tells.
    pub(super) fn takeout(&self) -> &Bell {
        &self.bells.takeout
    }

    pub(super) fn policy(&self) -> Policy<'_> {
        self.settings.policy(&self.own_node)
    }
}
