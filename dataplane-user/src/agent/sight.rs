//! What everybody of the agent's may know: it is read and never changed, and no lock is taken for it. All else has one owner, who is given it at the start.

use std::sync::Arc;

use super::{
    settings::Settings,
    world::{Reader, World},
};
use crate::{
    cluster::NodeName,
    plan::{Mode, Policy},
};

/// Cheap to clone.
#[derive(Clone)]
pub(super) struct Sight {
    /// How the agent runs.
    pub(super) settings: Arc<Settings>,
    /// The node that it runs on.
    pub(super) own_node: NodeName,
    /// What it knows and holds.
    pub(super) world: Reader,
}

impl Sight {
    /// What the agent knows and holds at this moment. Waits for nobody.
    pub(super) fn world(&self) -> Arc<World> {
        self.world.now()
    }

    /// As what claims are carried out at most at this moment.
    pub(super) fn mode(&self) -> Mode {
        self.world().held.mode
    }

    pub(super) fn policy(&self) -> Policy<'_> {
        self.settings.policy(&self.own_node)
    }
}
