//! How a request went.

use std::io::ErrorKind;

/// How one request went.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Outcome {
    /// Answered in time.
    Answered,
    /// ECONNRESET (TCP, also EPIPE after it).
    Reset,
    /// ECONNREFUSED: TCP in answer to a SYN, UDP by ICMP.
    Refused,
    /// No answer within the time limit.
    TimedOut,
    /// Anything else, an orderly end included.
    Other,
}

impl Outcome {
    /// The outcome of an error.
    pub fn of(error: &std::io::Error) -> Self {
        match error.kind() {
            ErrorKind::ConnectionReset | ErrorKind::BrokenPipe => Self::Reset,
            ErrorKind::ConnectionRefused => Self::Refused,
            ErrorKind::WouldBlock | ErrorKind::TimedOut => Self::TimedOut,
            _ => Self::Other,
        }
    }

    pub(super) fn from_result<T>(result: std::io::Result<T>) -> Self {
        match result {
            Ok(_) => Self::Answered,
            Err(error) => Self::of(&error),
        }
    }
}
