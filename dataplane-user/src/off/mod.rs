//! `nodefence off`: the file that says that this node's agent is off, and how all that agents did to the kernel is taken back. Only [`file`] and
//! [`undo`] touch anything.

mod file;
mod undo;

#[cfg(test)]
mod tests;

pub use file::{OffError, OffFile};
pub use undo::{Owner, TakenBack, take_back};

use jiff::Timestamp;

/// The beginning of the names of all files here.
pub const FILES: &str = "off.";

/// Who turned the agent off, when and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Off {
    /// The user, in words.
    pub by: String,
    /// When. `None` where the file cannot be understood.
    pub since: Option<Timestamp>,
    /// The reason, in words. May be empty.
    pub reason: String,
    /// Why the file cannot be understood. It counts all the same.
    pub problem: Option<String>,
}

impl Off {
    /// A user turns the agent off now.
    pub fn now(by: String, reason: String) -> Self {
        // Whole seconds: the text is for people.
        let now = Timestamp::now();
        let since = Timestamp::from_second(now.as_second()).unwrap_or(now);
        Self { by, since: Some(since), reason, problem: None }
    }
}
