//! What the Enforcer is told.

use std::sync::Arc;

use nodefence_common::{NodeEntry, PortKey};

use super::{
    claim::{ClaimSource, NewClaim},
    now::{Epoch, Now, Ticket},
    settings::ChangedBy,
    shared::SharedSettings,
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
        /// Allows a person's claim on the own node, and on more than a third of all nodes.
        force: bool,
    },
    /// It is taken back.
    Withdraw(ClaimSource),
}

/// What the Enforcer is told.
#[derive(Clone, Debug)]
pub enum Input {
    /// Another view.
    View {
        /// The view.
        view: Arc<NewView>,
        /// The nodes that the view's source flags ([`ClaimSource::File`]), where these were read anew. The limits of the view hold for both.
        flags: Option<Vec<(NodeName, NewClaim)>>,
    },
    /// When the source last confirmed the view that it gave last, without giving another.
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
        source: ClaimSource,
        /// What it claims.
        claims: Vec<(NodeName, NewClaim)>,
    },
    /// All NodeFlag objects of the API server, in place of those known before: each with its node, as a claim of [`ClaimSource::Object`].
    Objects(Vec<(NodeName, NewClaim)>),
    /// The settings for all agents; `None` where the API server has none.
    Shared(Option<Arc<SharedSettings>>),
    /// Whether the devices of the own node's pods are attached.
    Routes {
        /// They are.
        own_attached: bool,
    },
    /// What forwards Services in kube-proxy's place.
    Replacement(Option<Replacement>),
    /// The mode that a command sets in place of the command line's.
    Mode(Mode, ChangedBy),
    /// When (CLOCK_MONOTONIC, ns) the drain last gave a sign of life.
    DrainAlive(u64),
    /// What became of [`super::Output::Tables`].
    Written {
        /// Of which view.
        epoch: Epoch,
        /// Why the tables are not all in the maps.
        result: Result<(), Arc<str>>,
    },
    /// What a comparison read in the maps.
    Found {
        /// Entries of nodes; those in use, where `whole`.
        nodes: Vec<(u32, NodeEntry)>,
        /// Keys of exemptions, and of ports that are cut although their address is exempt, with their values in `ports`.
        exempt: Vec<(PortKey, u32)>,
        /// Whether these are all entries and keys in the maps.
        whole: bool,
    },
    /// What became of [`super::Output::Save`].
    Saved {
        /// Which.
        serial: u64,
        /// Why the state does not lie on the disk.
        result: Result<(), Arc<str>>,
    },
    /// The saved state is gone from the disk: all is saved once more.
    SaveAnew,
    /// Another agent takes over: all is saved, and nothing is changed by requests any more.
    HandOver(Ticket),
    /// The agent that was told to take over has gone: this one goes on, unless yet another one was told.
    HandOverUnheard,
    /// Every verdict is to be renewed now, so that the agent that takes over has their whole lifetime.
    Renew,
    /// [`super::Enforcer::deadline`] has come.
    Tick,
}
