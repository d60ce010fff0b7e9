//! The file that stores the last good view of the cluster, for an agent that starts while the API server does not answer. Only [`store`] touches the
//! disk.

mod format;
mod objects;
mod store;

#[cfg(test)]
mod tests;

pub use store::{Loaded, ViewFile, ViewFileError};
