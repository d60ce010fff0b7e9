//! What everybody else reads: an immutable snapshot. Nothing in it changes from second to second.

use std::{collections::BTreeMap, sync::Arc};

use super::{
    bearers::Bearers, limits::Withheld, ports::ExemptPorts, settings::ChangedBy, shown::ShownClaims,
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
    /// It flags so many nodes of so many, more than a third.
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
    /// Who exists: the view whose backends the maps hold or are being given.
    pub view: Option<Arc<NewView>>,
    /// It is older than it may be: nothing is cut by it, only counted.
    pub view_is_old: bool,
    /// What forwards Services in kube-proxy's place.
    pub replacement: Option<Replacement>,
    /// As what claims are carried out at most: [`World::set_mode`], where nothing of the above makes it less.
    pub mode: Mode,
    /// What `--mode` says, or since then a command.
    pub set_mode: Mode,
    /// Who changed that last.
    pub mode_changed: Option<ChangedBy>,
    /// Every claim and how it stands.
    pub claims: ShownClaims,
    /// Nodes that are cut, or are about to be. By place.
    pub enforced: Bearers,
    /// Nodes of which is counted what would be cut. By place.
    pub observed: Bearers,
    /// Nodes that the map may cut still and that are no more enforced: a write failed, and their verdict lapses. By place.
    pub lapsing: Bearers,
    /// Ports that are exempt for those that are enforced.
    pub exempt: ExemptPorts,
    /// How many more would be, were what is observed enforced.
    pub would_exempt: usize,
    /// What is dangerous about the flags of the cluster's source.
    pub dangers: Arc<[Danger]>,
    /// Scopes whose automatic claims are withheld.
    pub withheld: Arc<[Withheld]>,
    /// Nodes whose entry could not be written, and why.
    pub failed: Arc<BTreeMap<NodeName, Arc<str>>>,
    /// Why the claims were not saved.
    pub unsaved: Option<Arc<str>>,
    /// Another agent asks to take over: nothing is changed by requests.
    pub closing: bool,
    /// Another agent has taken over: what is held is that one's.
    pub handed_over: bool,
    /// Why the tables could not be written.
    pub tables_error: Option<Arc<str>>,
}

impl World {
    /// What is exempt, and what is cut all the same at addresses that pass. Costs in proportion to it.
    pub fn exemptions(&self) -> Exemptions {
        self.view.as_ref().map(|view| view.exemptions(&self.exempt)).unwrap_or_default()
    }
}
