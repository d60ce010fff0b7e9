//! Checks what the machine must have for the cut to work. Each fact is one line: ok, warn or fail, with the remedy.
//!
//! The doctor reads the kernel's own files and the attributes of devices. It changes nothing and needs no agent. Reading facts
//! ([`Facts::gather`]) is separate from judging them ([`judge`]), so that tests can judge every kernel and setting on any machine.

mod facts;
mod judge;
mod pressure;
#[cfg(test)]
mod tests;

pub use facts::{Capabilities, DeviceFacts, Facts, KernelVersion, Lockdown};
pub use judge::judge;
pub use pressure::{Counting, Pressure};

use schemars::JsonSchema;
use serde::Serialize;

use crate::report::Document;

/// The remedy where this user lacks the rights to check something.
pub(crate) const AS_ROOT: &str = "sudo nodefence doctor";

/// How a line of the doctor's ends.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Level {
    /// As it should be.
    Ok,
    /// Works, with a limit that the line names.
    Warn,
    /// Does not work.
    Fail,
}

/// One line of the doctor's.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, JsonSchema)]
pub struct Check {
    /// What was looked at, in a word or two.
    pub name: String,
    /// How it is.
    pub level: Level,
    /// What was found.
    pub found: String,
    /// What to do about it, as a command for the shell (notes after a `#`); `None` where nothing need be done.
    pub remedy: Option<String>,
}

impl Check {
    /// A check whose result is as it should be.
    pub fn ok(name: impl Into<String>, found: impl Into<String>) -> Self {
        Self { name: name.into(), level: Level::Ok, found: found.into(), remedy: None }
    }

    /// A check whose result limits what the cut promises.
    pub fn warn(name: impl Into<String>, found: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self { name: name.into(), level: Level::Warn, found: found.into(), remedy: Some(remedy.into()) }
    }

    /// A check whose result breaks what the cut promises.
    pub fn fail(name: impl Into<String>, found: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self { name: name.into(), level: Level::Fail, found: found.into(), remedy: Some(remedy.into()) }
    }
}

/// All lines of the doctor's.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, JsonSchema)]
pub struct DoctorReport {
    /// The worst level of them; with `fail` the exit code is 5.
    pub level: Level,
    /// The lines.
    pub items: Vec<Check>,
}

impl Document for DoctorReport {
    const KIND: &'static str = "DoctorReport";
    const PRINTED_BY: &'static str = "nodefence doctor";
}

impl From<Vec<Check>> for DoctorReport {
    fn from(items: Vec<Check>) -> Self {
        Self { level: worst(&items), items }
    }
}

/// The worst level of a list; [`Level::Ok`] for an empty one.
pub fn worst(checks: &[Check]) -> Level {
    checks.iter().map(|check| check.level).max().unwrap_or(Level::Ok)
}
