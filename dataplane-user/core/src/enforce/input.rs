//! What the Enforcer is told.

use std::sync::Arc;

use nodefence_common::{NodeEntry, PortKey};

use super::{
    claim::{NewClaim, Source},
    now::{Epoch, Now, Ticket},
    settings::ChangedBy,
    view::NewView,
};
use crate::{cluster::NodeName, plan::Mode, proxy::Replacement};

/// What is to become of a claim.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// It is raised, or renewed.
    Raise {
        /// The claim.
        claim: NewClaim,
        /// A person's claim also on the own node, and also on more than a third of all nodes.
        force: bool,
    },
    /// It is taken back.
    Withdraw(Source),
}

/// What the Enforcer is told.
#[derive(Clone, Debug)]
pub enum Input {
    /// Another view. What changed may be given against the one before.
    View {
        /// The view.
        view: Arc<NewView>,
        /// What its source flags ([`Source::File`]), where that was read anew. The limits of the view hold for both.
        flags: Option<Vec<(NodeName, NewClaim)>>,
    },
    /// When the source last said that the view it gave last is as it is, without another view.
    Confirmed(Now),
    /// A claim on a node.
    Claim {
        /// The node.
        node: NodeName,
        /// What is to become of it.
        change: Change,
        /// Who wants an answer.
        ticket: Option<Ticket>,
    },
    /// All claims of a source.
    Replace {
        /// Which.
        source: Source,
        /// What it claims.
        claims: Vec<(NodeName, NewClaim)>,
    },
    /// Whether the devices of the own node's pods are attached.
    Routes {
        /// They are.
        own_attached: bool,
    },
    /// What forwards Services in kube-proxy's place.
    Replacement(Option<Replacement>),
    /// Whether to cut at all, as a command says, in place of the command line.
    Mode(Mode, ChangedBy),
    /// When (CLOCK_MONOTONIC, ns) the drain last gave a sign of life.
    DrainAlive(u64),
    /// What became of [`super::Output::Tables`].
    Written {
        /// Of which view.
        epoch: Epoch,
        /// Why they are not all in the maps.
        result: Result<(), Arc<str>>,
    },
    /// What a comparison read in the maps.
    Found {
        /// Entries of nodes; those in use, where `whole`.
        nodes: Vec<(u32, NodeEntry)>,
        /// What is exempt, or is not though its address is, with its value in `ports`.
        exempt: Vec<(PortKey, u32)>,
        /// These are all that lie in the maps.
        whole: bool,
    },
    /// What became of [`super::Output::Save`].
    Saved {
        /// Which.
        serial: u64,
        /// Why it does not lie on the disk.
        result: Result<(), Arc<str>>,
    },
    /// What was saved is gone from the disk: all is saved once more.
    SaveAnew,
    /// Another agent takes over: all is saved, and nothing is changed by requests any more.
    HandOver(Ticket),
    /// Whoever was told that this agent ends had gone: it goes on, unless another one heard it.
    HandOverUnheard,
    /// Every verdict is to be renewed now: whoever takes over has their whole lifetime.
    Renew,
    /// [`super::Enforcer::deadline`] has come.
    Tick,
}
