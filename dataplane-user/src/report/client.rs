use std::{
    io::{self, BufRead as _, BufReader, Write as _},
    os::unix::net::UnixStream,
    path::{Path, PathBuf},
    time::Duration,
};

use nix::sys::socket::{getsockopt, sockopt::PeerCredentials};
use serde::de::DeserializeOwned;

use super::api::{Failure, Reply, Request};

/// How long an answer may take: `flows` waits for a dump of conntrack.
const PATIENCE: Duration = Duration::from_secs(15);
/// How long an answer may take that waits for a round of challenges.
pub const PATIENCE_WITH_CHALLENGE: Duration = Duration::from_secs(60);

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// Nobody listens.
    #[error(
        "{} {}: {source}; {}",
        if permission(source) { "this user may not reach the agent's socket" } else { "no agent answers at" },
        path.display(),
        if permission(source) { "run as root" } else { "is `nodefence agent` running on this node? (--socket chooses another)" }
    )]
    Unreachable {
        /// The socket.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// Somebody listens and says nothing.
    #[error(
        "the agent at {} has not answered within {}; is it stopped, or starved of processor time?",
        path.display(),
        humantime::format_duration(*patience)
    )]
    Silent {
        /// The socket.
        path: PathBuf,
        /// How long the client waited.
        patience: Duration,
    },
    /// The agent went away, or answers in another way.
    #[error("the agent at {}: {source}", path.display())]
    Broken {
        /// The socket.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// The agent would not carry out the request, or could not.
    #[error(transparent)]
    Failure(#[from] Failure),
}

fn permission(source: &io::Error) -> bool {
    source.kind() == io::ErrorKind::PermissionDenied
}

impl ClientError {
    /// Whether this user may not reach the socket.
    pub fn forbidden(&self) -> bool {
        matches!(self, Self::Unreachable { source, .. } if permission(source))
    }
}

/// The CLI's end of the socket.
#[derive(Debug)]
pub struct Client {
    path: PathBuf,
    stream: BufReader<UnixStream>,
    patience: Duration,
}

impl Client {
    /// Connects to an agent.
    ///
    /// # Errors
    /// Where nobody listens, or this user may not.
    pub fn connect(path: &Path) -> Result<Self, ClientError> {
        let unreachable = |source| ClientError::Unreachable { path: path.to_owned(), source };
        let stream = UnixStream::connect(path).map_err(unreachable)?;
        stream.set_read_timeout(Some(PATIENCE)).map_err(unreachable)?;
        stream.set_write_timeout(Some(PATIENCE)).map_err(unreachable)?;
        Ok(Self { path: path.to_owned(), stream: BufReader::new(stream), patience: PATIENCE })
    }

    /// The process at the other end, as it was when it began to listen (SO_PEERCRED, unix(7)); `None` where it is in another PID namespace.
    pub fn agent_pid(&self) -> Option<i32> {
        let peer = getsockopt(self.stream.get_ref(), PeerCredentials).ok()?;
        Some(peer.pid()).filter(|pid| *pid > 0)
    }

    /// How long to wait for an answer from now on.
    ///
    /// # Errors
    /// Where the socket refuses it.
    pub fn set_patience(&mut self, patience: Duration) -> Result<(), ClientError> {
        self.patience = patience;
        self.stream.get_ref().set_read_timeout(Some(patience)).map_err(|source| self.broken(source))
    }

    /// Sends a request, and waits for the answer.
    ///
    /// # Errors
    /// The agent's own words where it would not or could not carry out the request; else what broke.
    pub fn ask<T: DeserializeOwned>(&mut self, request: &Request) -> Result<T, ClientError> {
        let reply = self.exchange(request).map_err(|source| self.broken(source))?;
        Ok(reply.into_value()?)
    }

    fn exchange(&mut self, request: &Request) -> io::Result<Reply> {
        let mut line = serde_json::to_string(request)?;
        line.push('\n');
        // An agent that hangs up early may have said why.
        let written = self.stream.get_mut().write_all(line.as_bytes());
        line.clear();
        if self.stream.read_line(&mut line)? == 0 {
            written?;
            return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "it hung up"));
        }
        Ok(serde_json::from_str(&line)?)
    }

    fn broken(&self, source: io::Error) -> ClientError {
        // What a socket's timeout looks like (SO_RCVTIMEO, socket(7)).
        if matches!(source.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut) {
            return ClientError::Silent { path: self.path.clone(), patience: self.patience };
        }
        ClientError::Broken { path: self.path.clone(), source }
    }
}
