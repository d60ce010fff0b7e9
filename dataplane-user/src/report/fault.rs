//! Why a command failed, for programs.

use schemars::JsonSchema;
use serde::Serialize;

use super::document::Document;

/// The kind of reason. Each has its exit code.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Reason {
    /// Something failed (exit code 1).
    Failed,
    /// The command line is wrong (exit code 2).
    Usage,
    /// No agent answers at the socket (exit code 3).
    Unreachable,
    /// It would be unwise, or is not allowed (exit code 4).
    Refused,
    /// Another agent runs on this node (exit code 6).
    Busy,
    /// There is no such node, or no such Service (exit code 7).
    NotFound,
}

/// Why a command failed. It goes to standard error.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Fault {
    /// With which code the command ends.
    pub exit_code: u8,
    /// The kind of reason.
    pub reason: Reason,
    /// What failed, in words.
    pub message: String,
    /// What it followed from, the nearest first; in words.
    pub causes: Vec<String>,
}

impl Document for Fault {
    const KIND: &'static str = "Error";
    const PRINTED_BY: &'static str = "nodefence VERB";
}
