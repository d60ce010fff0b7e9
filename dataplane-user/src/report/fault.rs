//! Why a command failed, for programs.

use schemars::JsonSchema;
use serde::Serialize;

use super::document::Document;

/// The kind of reason why a command failed. Each kind has its own exit code.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Reason {
    /// Something failed (exit code 1).
    Failed,
    /// The command line, or a variable of the environment, is wrong (exit code 2).
    Usage,
    /// No agent answers at the socket (exit code 3).
    Unreachable,
    /// The request is unwise and `--force` is missing, or the user is not allowed to make it (exit code 4).
    Refused,
    /// Another agent runs on this node (exit code 6).
    Busy,
    /// There is no such node, or no such Service (exit code 7).
    NotFound,
}

/// Why a command failed. The command prints this object to standard error.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Fault {
    /// The exit code of the command.
    pub exit_code: u8,
    /// The kind of reason.
    pub reason: Reason,
    /// What failed, in words.
    pub message: String,
    /// The causes, in words. The nearest cause is first.
    pub causes: Vec<String>,
}

impl Document for Fault {
    const KIND: &'static str = "Error";
    const PRINTED_BY: &'static str = "nodefence VERB";
}
