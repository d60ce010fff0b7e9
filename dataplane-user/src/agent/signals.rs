//! The signals that ask for the end.

use anyhow::Context as _;
use tokio::signal::unix::{Signal, SignalKind, signal};

/// The signals that ask for the end. Taken from the first moment on: the first process of a container does not get those that it has no handler for
/// (pid_namespaces(7)), and one that comes while the agent starts is not lost.
pub(super) struct Signals {
    term: Signal,
    int: Signal,
}

impl Signals {
    pub(super) fn new() -> anyhow::Result<Self> {
        let of = |kind| signal(kind).context("take signals");
        Ok(Self { term: of(SignalKind::terminate())?, int: of(SignalKind::interrupt())? })
    }

    pub(super) async fn come(&mut self) -> &'static str {
        tokio::select! {
            _ = self.term.recv() => "SIGTERM",
            _ = self.int.recv() => "SIGINT",
        }
    }

    /// Whether one came already.
    pub(super) async fn came(&mut self) -> Option<&'static str> {
        tokio::select! {
            biased;
            why = self.come() => Some(why),
            () = std::future::ready(()) => None,
        }
    }
}
