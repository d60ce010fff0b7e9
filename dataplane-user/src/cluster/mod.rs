//! Who exists: nodes, their addresses, their backends. The only source so far is a file.

mod check;
mod error;
mod explain;
mod file;
mod source;
mod view;
mod watch;

#[cfg(test)]
mod tests;

pub use error::{Error, Problem};
pub use file::parse;
pub use source::{FileSource, MAX_FILE_BYTES};
pub use view::{Backend, ClusterView, FileFlag, Node, Protocol, Scope};
pub use watch::Watch;
