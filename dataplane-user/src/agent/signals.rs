//! The signals that end the agent.

use anyhow::Context as _;
use tokio::signal::unix::{Signal, SignalKind, signal};

/// The signals that end the agent. They have handlers from the first moment on: the first process of a container does not get
/// signals that it has no handler for (pid_namespaces(7)), and a signal that comes while the agent starts is not lost.
pub(crate) struct Signals {
    term: Signal,
    int: Signal,
    /// The agent's terminal was closed.
    hup: Signal,
}

impl Signals {
    pub(crate) fn new() -> anyhow::Result<Self> {
        let of = |kind| signal(kind).context("cannot take signals");
        let [term, int, hup] = [SignalKind::terminate(), SignalKind::interrupt(), SignalKind::hangup()];
        Ok(Self { term: of(term)?, int: of(int)?, hup: of(hup)? })
    }

    /// Waits for a signal. Returns its name.
    pub(crate) async fn come(&mut self) -> &'static str {
        tokio::select! {
            _ = self.term.recv() => "SIGTERM",
            _ = self.int.recv() => "SIGINT",
            _ = self.hup.recv() => "SIGHUP",
        }
    }

    /// The name of a signal that has already come.
    pub(super) async fn came(&mut self) -> Option<&'static str> {
        tokio::select! {
            biased;
            why = self.come() => Some(why),
            () = std::future::ready(()) => None,
        }
    }
}
