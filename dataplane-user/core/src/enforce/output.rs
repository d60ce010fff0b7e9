//! What the Enforcer wants done.

use std::{sync::Arc, time::Duration};

use nodefence_common::{NodeEntry, PortKey};

use super::{
    claim::{Claim, ClaimSource},
    limits::Withheld,
    now::{Epoch, Ticket},
    scope::LimitScope,
    settings::ChangedBy,
    shared::SharedSettings,
    shown::ToSave,
    world::{Danger, World},
};
use crate::{
    cluster::{Backend, NodeName},
    plan::{Mode, NodeTables},
    proxy::Replacement,
};

/// Tables to write.
#[derive(Clone, Debug)]
pub struct TablesPlan {
    /// Of which view.
    pub epoch: Epoch,
    /// The view whose tables, and nothing else, the maps hold; `None` where that is not known, and all entries must be compared.
    pub base: Option<Epoch>,
    /// All entries that must lie in the maps.
    pub tables: Arc<NodeTables>,
}

/// One thing that the Enforcer wants done, in this order. Where it fails, [`super::Enforcer::failed`] must be called before anything else.
#[derive(Clone, Debug)]
pub enum Output {
    /// Everybody is to read this from now on.
    Publish(Arc<World>),
    /// This key must lie in `ports`, and say that its port or address passes.
    Exempt(PortKey),
    /// This key must lie in `ports`, and say that its port is cut although its address passes.
    Except(PortKey),
    /// This entry must lie in `nodes` at this index.
    Node(u32, NodeEntry),
    /// This key must not lie in `ports`.
    Unexempt(PortKey),
    /// Drains of IPVS hold up to this time (CLOCK_MONOTONIC, ns).
    Lease(u64),
    /// These tables must be written; answered by [`super::Input::Written`].
    Tables(TablesPlan),
    /// This state must lie on the disk; answered by [`super::Input::Saved`].
    Save(u64, ToSave),
    /// The answer to a request.
    Reply(Ticket, RequestResult),
    /// For the log.
    Record(Event),
}

/// The answer to a request.
pub type RequestResult = Result<Done, Refusal>;

/// What was done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Done {
    /// What changed.
    pub changed: Changed,
    /// When (CLOCK_MONOTONIC, ns) the map held the change. `None`: the change still waits for the own node's devices, for the tables in
    /// which the node stands, or for a limit.
    pub written: Option<u64>,
    /// Whether the change outlives the agent.
    pub saved: SaveState,
}

/// What a request changed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Changed {
    /// A claim was raised.
    Raised {
        /// What the source held against the node before.
        before: Option<Claim>,
    },
    /// A claim was taken back.
    Withdrawn {
        /// There was one.
        was: bool,
    },
    /// Everything is saved for another agent.
    HandedOver,
}

/// Whether a change outlives the agent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SaveState {
    /// It does.
    Saved,
    /// It is still being saved.
    Late,
    /// It does not, and why; it is tried again each second.
    Failed(Arc<str>),
}

/// Why a request was not carried out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// No view has come yet.
    Starting,
    /// Another agent has been told what the claims are.
    HandingOver,
    /// No node of that name exists.
    UnknownNode(NodeName),
    /// It is the node that this agent runs on.
    OwnNode(NodeName),
    /// The remaining nodes may not be able to carry the load.
    TooMany {
        /// So many would be flagged.
        flagged: usize,
        /// Of so many.
        all: usize,
    },
    /// The verdict could not be written. The claim is not held.
    NotWritten(Arc<str>),
    /// An exemption that the verdict needs could not be written. The claim is not held.
    NotExempt {
        /// The port that must be exempt.
        port: Backend,
        /// Why it could not be.
        error: Arc<str>,
    },
    /// The verdict could not be taken back; it lapses. The claim is gone.
    NotTakenBack(Arc<str>),
    /// What another agent must know could not be saved.
    NotSaved(Arc<str>),
}

/// For the log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// The source of this claim newly claims a node.
    Raised(NodeName, Claim),
    /// A source claims a node no more.
    Withdrawn(NodeName, ClaimSource),
    /// The flags of the cluster's source changed.
    FileFlags {
        /// Nodes that the source newly flags.
        came: Vec<NodeName>,
        /// Nodes that the source flags no more.
        went: Vec<NodeName>,
    },
    /// A claim is over.
    Over(NodeName, ClaimSource),
    /// Automatic claims of a scope exceed its limit: none is enforced there. These nodes have them.
    Withheld(Withheld, Vec<NodeName>),
    /// Automatic claims of a scope are withheld no more.
    NoMoreWithheld(LimitScope),
    /// The view is older than this: nothing is cut by it any more, only counted.
    ViewTooOld(Duration),
    /// The view is not too old any more.
    ViewConfirmed,
    /// A command changed the mode.
    ModeChanged(Mode, ChangedBy),
    /// Other settings for all agents hold; `None`: the API server has none.
    Shared(Option<Arc<SharedSettings>>),
    /// Another program forwards Services in kube-proxy's place: nothing is cut, only counted.
    Replaced(Replacement),
    /// Another program forwards Services in kube-proxy's place, and nodes are cut all the same: `--force` says so.
    Forced(Replacement),
    /// Nothing forwards Services in kube-proxy's place any more.
    NotReplaced,
    /// A node's entry could not be written.
    Failed(NodeName, Arc<str>),
    /// A node is not cut because this port of it must be exempt, which failed.
    NotExempt(Option<NodeName>, Backend, Arc<str>),
    /// The tables could not be written.
    TablesFailed(Arc<str>),
    /// The claims could not be saved.
    SaveFailed(Arc<str>),
    /// So many node entries and exemptions in the maps were not as they should be.
    Mended(usize, usize),
    /// The cluster's source flags nodes for which `nodefence flag` would need `--force`.
    Danger(Danger),
}
