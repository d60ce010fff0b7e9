//! The state that every actor may read, without a lock. An actor that reads it never changes it. All other state has one owner,
//! which gets it at the start.

use std::sync::Arc;

use super::{
    settings::Settings,
    world::{Reader, World},
};
use crate::{
    cluster::NodeName,
    plan::{Mode, Policy},
};

/// The state that every actor may read. Cheap to clone.
#[derive(Clone)]
pub(super) struct Sight {
    /// The agent's settings.
    pub(super) settings: Arc<Settings>,
    /// The node that the agent runs on.
    pub(super) own_node: NodeName,
    /// What the agent knows and holds.
    pub(super) world: Reader,
}

impl Sight {
    /// What the agent knows and holds at this moment. Never blocks.
    pub(super) fn world(&self) -> Arc<World> {
        self.world.now()
    }

    /// The mode at this moment: what is done about a claim at most.
    pub(super) fn mode(&self) -> Mode {
        self.world().held.mode
    }

    pub(super) fn policy(&self) -> Policy<'_> {
        self.settings.policy(&self.own_node)
    }
}
