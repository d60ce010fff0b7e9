use std::process::ExitCode;

use crate::{
    agent, dataplane,
    report::{ClientError, ErrorKind, ServerError},
};

/// What the binary's exit code says. `docs/cli.md` and `--help` list them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exit {
    /// Done.
    Ok = 0,
    /// Something failed, and the message says what; or `audit` found faults.
    Error = 1,
    /// The command line is wrong.
    Usage = 2,
    /// No agent answers at the socket.
    Unreachable = 3,
    /// It would be unwise, or is not allowed; the message says how to insist, where that is possible.
    Refused = 4,
    /// `doctor` found something that keeps nodefence from working.
    Unhealthy = 5,
    /// Another agent runs on this node.
    Busy = 6,
}

impl Exit {
    /// The code for an error that reached the edge.
    pub fn of(error: &anyhow::Error) -> Self {
        match error.downcast_ref() {
            Some(agent::LockError::Busy { .. }) => return Self::Busy,
            Some(forbidden @ agent::LockError::Folder { .. }) if forbidden.is_forbidden() => {
                return Self::Refused;
            }
            _ => {}
        }
        if let Some(dataplane::Error::Busy { .. }) = error.downcast_ref() {
            return Self::Busy;
        }
        if error.downcast_ref::<ServerError>().is_some_and(ServerError::is_busy) {
            return Self::Busy;
        }
        match error.downcast_ref::<ClientError>() {
            Some(error) if error.forbidden() => Self::Refused,
            Some(ClientError::Unreachable { .. } | ClientError::Silent { .. }) => Self::Unreachable,
            Some(ClientError::Failure(failure)) if failure.kind == ErrorKind::Refused => Self::Refused,
            _ => Self::Error,
        }
    }
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        Self::from(exit as u8)
    }
}
