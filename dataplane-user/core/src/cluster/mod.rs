//! Who exists: nodes, their addresses, their backends; and the Services that send to them. The only source so far is a file.

mod changed;
mod check;
mod check_service;
mod error;
mod explain;
mod file;
mod node;
mod place;
mod protocol;
mod raw;
mod service;
mod taken;
mod values;
mod view;

#[cfg(test)]
mod service_tests;
#[cfg(test)]
mod tests;

pub use changed::Changed;
pub use error::{Error, MAX_FILE_BYTES, Problem};
pub use file::parse;
pub use node::{NodeIx, NodeName, NodeSet};
pub use protocol::Protocol;
pub use service::{DEFAULT_AFFINITY, Endpoint, Family, Hints, Service, ServicePort, TrafficPolicy};
pub use view::{Backend, ClusterView, FileFlag, Node, Scope};
