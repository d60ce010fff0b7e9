//! The cluster file, from its text on: its shape, and where in it a refused field stands.

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
pub use text::{NAME, parse};
