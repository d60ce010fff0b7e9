//! Settings that hold for all agents of a cluster, as the API server has them. Of these, the command line and commands the weakest holds.

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use super::{
    now::Now,
    settings::{Auto, Share},
};
use crate::{cluster::NodeName, plan::Mode};

/// A time in which agents only observe.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SharedPause {
    /// Who wants it, in words.
    pub by: Arc<str>,
    /// Why, in words; may be empty.
    pub reason: Arc<str>,
    /// When it ends, by CLOCK_BOOTTIME.
    pub ends: Duration,
}

/// Settings for all agents.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SharedSettings {
    /// Agents are to attach nothing to the kernel. The Enforcer cuts nothing until the agent is off.
    pub off: bool,
    /// Whether to cut.
    pub mode: Mode,
    /// Whether to cut for automatic claims.
    pub auto: Auto,
    /// How many nodes limited claims may cut, of all, of each zone and of each pool.
    pub limit: Share,
    /// While one of these holds, nothing is cut.
    pub pauses: Vec<SharedPause>,
    /// Nodes that are never cut.
    pub opted_out: BTreeSet<NodeName>,
}

impl SharedSettings {
    /// The pauses that hold now.
    pub fn holding(&self, now: Now) -> impl Iterator<Item = &SharedPause> {
        self.pauses.iter().filter(move |pause| pause.ends > now.boot)
    }

    /// The strongest mode now.
    pub fn mode_now(&self, now: Now) -> Mode {
        if self.off || self.holding(now).next().is_some() { Mode::Observe } else { self.mode }
    }
}
