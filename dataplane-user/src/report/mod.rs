//! What the agent tells and is asked: the model of its state, and the local API on a unix socket.

mod adjusted;
mod api;
mod audit;
mod claim;
mod client;
mod cluster;
mod flows;
mod ipvs;
mod model;
mod replacement;
mod server;

pub use adjusted::{Adjusted, ModeReport};
pub use api::{ErrorKind, Failure, Reply, Request};
pub use audit::{AuditReport, DifferenceRow, KindRow, Outcome, RepairReport, RepairRow};
pub use claim::{ClaimCause, ClaimRow, ClaimState, FlagRow, Origin, WithheldRow};
pub use client::{Client, ClientError, PATIENCE_WITH_CHALLENGE};
pub use cluster::{ClusterRow, ConflictRow, LeftOutRow, ReadingRow};
pub use flows::{FlowFilter, Place, ServiceFilter};
pub use ipvs::{DrainRow, ExemptServiceRow, GuardRow, IpvsRow};
pub use model::{
    BackendRow, ChallengeRow, ConntrackRow, CounterRow, DataplaneRow, ExemptRow, FlagReport, FlowRow, Flows,
    InterfaceRow, NeighbourRow, NodeRow, ProgramRow, RescueRow, StaleRow, Status, UnflagReport,
};
pub use replacement::{Beside, ReplacementRow};
pub use server::{Handler, Peer, Server, ServerError};
