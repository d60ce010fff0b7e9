//! Where nodes, backends and Services come from: the cluster file on disk, which is read again when it changes, or objects that come one by
//! one.

mod file;
#[cfg(test)]
mod file_tests;
mod objects;
mod waiting;
mod watch;

pub use file::FileSource;
pub(crate) use objects::Gathered;
pub use objects::Objects;
pub use waiting::{Changes, Teller, changes};
pub use watch::Watch;
