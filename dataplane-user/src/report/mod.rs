//! What the agent tells, and the requests to it: the model of its state, and the local API on a unix socket.

mod adjusted;
mod api;
mod audit;
mod claim;
mod client;
mod cluster;
mod detached;
mod devices;
mod document;
mod fault;
mod flows;
mod health;
mod ipvs;
mod model;
mod nodes;
mod off;
mod pod;
mod replacement;
mod rescue;
#[cfg(test)]
pub(crate) mod sample;
mod server;
mod settings;
mod warnings;

pub use adjusted::{Adjusted, ModeReport};
pub use api::{ErrorKind, Failure, Reply, Request};
pub use audit::{AuditReport, DifferenceRow, KindRow, RepairOutcome, RepairReport, RepairRow};
pub use claim::{ClaimCause, ClaimRow, ClaimState, FlagRow, Origin, ScopeRow, WithheldRow};
pub use client::{Client, ClientError, PATIENCE_WITH_CHALLENGE};
pub use cluster::{ClusterRow, ConflictRow, LeftOutRow, ReadingRow};
pub use detached::Detached;
pub use devices::{InterfaceRow, NeighbourRow, ProgramRow};
pub use document::{Document, Envelope, List, SCHEMA_VERSION, schema};
pub use fault::{Fault, Reason};
pub use flows::{FlowFilter, FlowList, FlowRow, FlowState, Place, ServiceFilter};
pub(crate) use health::seconds;
pub use health::{Health, State, StatusReport, Warning};
pub use ipvs::{DrainRow, ExemptServiceRow, GuardRow, IpvsRow};
pub use model::{
    BackendRow, ChallengeRow, ConntrackRow, CounterRow, DataplaneRow, ExemptRow, FlagReport, NodeAction,
    NodeRow, StaleRow, Status, UnflagReport,
};
pub use nodes::NodeList;
pub use off::{OffKind, OffReport, OffRow, OffState, OffStatus, OnReport, OrOff};
pub use pod::PodRow;
pub use replacement::{Beside, ReplacementRow};
pub use rescue::{OwnRow, OwnState, RescueRow};
pub use server::{Handler, Peer, Server, ServerError};
pub use settings::{IgnoredFlagRow, PauseRow, SettingsMode, SettingsRow};
pub use warnings::{Code, Effect, Explanation, UnknownCode};
