use std::process::ExitCode;

use crate::{
    agent, dataplane,
    report::{ClientError, ErrorKind, ServerError},
};

/// The binary's exit codes. `--help` lists them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exit {
    /// Done.
    Ok = 0,
    /// Something failed, and the message says what.
    Error = 1,
    /// The command line, or a variable of the environment, is wrong.
    Usage = 2,
    /// No agent answers at the socket.
    Unreachable = 3,
    /// The request would be unwise, or is not allowed. Where one can insist, the message says how.
    Refused = 4,
    /// All was done, and something was found: faults by `audit`, obstacles to nodefence's work by `doctor`, a problem by `status --check`,
    /// traffic that is not cut by `flag --strict`.
    Findings = 5,
    /// Another agent runs on this node.
    Busy = 6,
    /// There is no such node, or no such Service.
    Unknown = 7,
}

impl Exit {
    /// The code for an error with which a command ends.
    pub fn of(error: &anyhow::Error) -> Self {
        match error.downcast_ref() {
            Some(agent::LockError::Busy { .. }) => return Self::Busy,
            Some(forbidden @ agent::LockError::Folder { .. }) if forbidden.is_forbidden() => {
                return Self::Refused;
            }
            _ => {}
        }
        // The next start would find the same value: units do not start a process again that ended with this code.
        if error.is::<agent::FilterError>() {
            return Self::Usage;
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
            Some(ClientError::Failure(failure)) => match failure.kind {
                ErrorKind::Refused => Self::Refused,
                ErrorKind::NotFound => Self::Unknown,
                ErrorKind::Invalid | ErrorKind::Failed => Self::Error,
            },
            _ => Self::Error,
        }
    }
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        Self::from(exit as u8)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::Failure;

    #[test]
    fn what_the_agent_answers_has_its_code() {
        for (kind, exit) in [
            (ErrorKind::Invalid, Exit::Error),
            (ErrorKind::Failed, Exit::Error),
            (ErrorKind::Refused, Exit::Refused),
            (ErrorKind::NotFound, Exit::Unknown),
        ] {
            let error = ClientError::from(Failure::new(kind, "why"));
            assert_eq!(Exit::of(&error.into()), exit);
        }
    }
}
