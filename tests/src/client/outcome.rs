//! How a request went.

use std::io::ErrorKind;

/// How one request went.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Outcome {
    /// The request was answered in time.
    Answered,
    /// ECONNRESET; for TCP also EPIPE, which follows it.
    Reset,
    /// ECONNREFUSED: for TCP in answer to a SYN, for UDP by ICMP.
    Refused,
    /// No answer within the time limit.
    TimedOut,
    /// Anything else, such as an orderly end.
    Other,
}

impl Outcome {
    /// The outcome that an error means.
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
