//! The cluster: nodes, their addresses, their backends; and the Services that send to them.
//!
//! A source (`file/`, from its text on) delivers single objects; the builder (`build/`) checks them against each other and gives the view.

mod backends;
mod build;
mod changed;
mod file;
mod node;
mod object;
mod protocol;
mod service;
mod view;

pub use backends::Backends;
#[cfg(test)]
pub(crate) use build::tests::{Seeded, Source};
pub use build::{Builder, Change, KnownObjects, Rules, check_address};
pub use changed::Changed;
pub use file::{Error, MAX_FILE_BYTES, NAME as FILE, Problem, parse};
pub use node::{NodeIx, NodeName, NodeSet};
pub use object::{Conflict, EndpointObject, NodeObject, ObjectName, ServiceObject, SliceObject};
pub use protocol::Protocol;
pub use service::{Endpoint, Hints, Service, ServiceMode, ServicePort, TrafficPolicy};
pub use view::{Backend, ClusterView, FileFlag, Node, Scope, SourceName, reason_fits};

pub use crate::Family;
