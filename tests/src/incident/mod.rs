//! The incident on a cluster: servers in pods on two nodes, clients that reach them through a third node, one server node that freezes, and what the clients
//! see of it, once without a flag and once with one.

pub mod client;
mod cluster;
pub(crate) mod ipvs;
pub mod judge;
pub mod limits;
pub mod manifests;
pub mod observed;
mod picture;
mod plan;
mod probe;
pub mod record;
pub mod report;
mod run;
mod running;
mod scenario;
pub mod summary;
mod table;
mod timeline;
mod times;

pub use cluster::{Cluster, Still};
pub use observed::Run;
pub use plan::{Plan, Way};
pub use report::Report;
pub use run::Incident;
pub(crate) use running::Clients;
pub use scenario::Scenario;
pub use times::Times;
