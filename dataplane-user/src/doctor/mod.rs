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

/// The result of a check.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Level {
    /// The check passed.
    Ok,
    /// The cut works, with the limit that `found` names.
    Warn,
    /// Something that the cut needs does not work.
    Fail,
}

/// The result of one check of the doctor.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, JsonSchema)]
pub struct Check {
    /// The name of the check: one or two words.
    pub name: String,
    /// The result: `ok`, `warn` or `fail`.
    pub level: Level,
    /// The state that the check found, in words.
    pub found: String,
    /// The remedy: a command for the shell, with notes after a `#`. `None` if nothing has to be done.
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

/// The results of all checks of the doctor.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, JsonSchema)]
pub struct DoctorReport {
    /// The worst level of all checks. If it is `fail`, the exit code is 5.
    pub level: Level,
    /// The results of the checks, in the order of printing.
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
