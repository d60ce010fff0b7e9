//! The cluster file on disk: reading it, and hearing of its changes.

mod file;
#[cfg(test)]
mod file_tests;
mod watch;

pub use file::FileSource;
pub use watch::Watch;
