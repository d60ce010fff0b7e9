//! The file that stores the last good view of the cluster, for an agent that starts while the API server does not answer. Only [`store`] touches the
//! disk.

mod format;
mod objects;
mod store;

#[cfg(test)]
mod tests;

pub use store::{Loaded, ViewFile, ViewFileError};

/// How the names of all files of this module in the run folder begin.
pub const FILES: &str = "view";
