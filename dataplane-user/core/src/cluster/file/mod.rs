//! The source that is a file, from its text on: its shape, and where in it what is refused stands.

mod error;
mod locate;
mod raw;
mod read;
mod text;
mod values;

#[cfg(test)]
mod service_tests;
#[cfg(test)]
mod tests;

pub use error::{Error, MAX_FILE_BYTES, Problem};
pub use text::parse;

/// What this source is called where people read who flags a node.
pub const NAME: &str = "the cluster file";
/// The same where programs read it.
pub const KEY: &str = "cluster-file";
