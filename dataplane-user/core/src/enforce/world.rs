//! What everybody else reads: an immutable snapshot. Nothing in it changes from second to second.

use std::{collections::BTreeMap, sync::Arc};

use super::{
    bearers::Bearers,
    limits::Withheld,
    ports::ExemptPorts,
    settings::{Auto, ChangedBy, Share},
    shared::SharedSettings,
    shown::ShownClaims,
    view::NewView,
};
use crate::{
    cluster::NodeName,
    plan::{Exemptions, Mode},
    proxy::Replacement,
};

/// What is dangerous about the flags of the cluster's source: no command stood between them and the cut.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Danger {
    /// It flags this many nodes of this many, more than a third.
    TooMany(usize, usize),
    /// It flags the node that this agent runs on.
    OwnNode(NodeName),
    /// These flags ended in the past and mean nothing.
    Over(Vec<NodeName>),
}

/// A snapshot.
#[derive(Clone, Debug, Default)]
pub struct World {
    /// Rises with each publication.
    pub number: u64,
    /// The view whose backends the maps hold or are being given.
    pub view: Option<Arc<NewView>>,
    /// Whether the view is too old: nothing is cut by it, only counted.
    pub view_is_old: bool,
    /// What forwards Services in kube-proxy's place.
    pub replacement: Option<Replacement>,
    /// The strongest mode in which claims are carried out: [`World::set_mode`], unless the view's age or a replacement makes it weaker.
    pub mode: Mode,
    /// The mode that `--mode` sets, or since then a command.
    pub set_mode: Mode,
    /// Who changed the mode last.
    pub mode_changed: Option<ChangedBy>,
    /// Whether settings for all agents count.
    pub shares: bool,
    /// The settings for all agents, where there are any.
    pub shared: Option<Arc<SharedSettings>>,
    /// What is done about automatic claims.
    pub auto: Auto,
    /// The limit that holds.
    pub limit: Share,
    /// Every claim and how it stands.
    pub claims: ShownClaims,
    /// Nodes that are cut, or are about to be. By place.
    pub enforced: Bearers,
    /// Nodes that are only observed: packets that would be cut are counted. By place.
    pub observed: Bearers,
    /// Nodes that are no more enforced but that the map may still cut: a write failed, and their verdict lapses. By place.
    pub lapsing: Bearers,
    /// Ports that are exempt while the enforced nodes are cut.
    pub exempt: ExemptPorts,
    /// How many more ports would be exempt if observed nodes were cut too.
    pub would_exempt: usize,
    /// What is dangerous about the flags of the cluster's source.
    pub dangers: Arc<[Danger]>,
    /// Scopes whose automatic claims are withheld.
    pub withheld: Arc<[Withheld]>,
    /// Nodes whose entry could not be written, and why.
    pub failed: Arc<BTreeMap<NodeName, Arc<str>>>,
    /// Why the claims were not saved.
    pub unsaved: Option<Arc<str>>,
    /// Another agent asks to take over: requests change nothing.
    pub closing: bool,
    /// Another agent has taken over, and holds the claims.
    pub handed_over: bool,
    /// Why the tables could not be written.
    pub tables_error: Option<Arc<str>>,
}

impl World {
    /// The exemptions, with the ports that are cut although their address passes. Costs in proportion to their number.
    pub fn exemptions(&self) -> Exemptions {
        self.view.as_ref().map(|view| view.exemptions(&self.exempt)).unwrap_or_default()
    }
}
