//! The signals that ask for the end.

use anyhow::Context as _;
use tokio::signal::unix::{Signal, SignalKind, signal};

/// The signals that ask for the end. Taken from the first moment on: the first process of a container does not get those that it has no handler for
/// (pid_namespaces(7)), and one that comes while the agent starts is not lost.
pub(super) struct Signals {
    term: Signal,
    int: Signal,
    /// Its terminal was closed.
    hup: Signal,
}

impl Signals {
    pub(super) fn new() -> anyhow::Result<Self> {
        let of = |kind| signal(kind).context("take signals");
        let [term, int, hup] = [SignalKind::terminate(), SignalKind::interrupt(), SignalKind::hangup()];
        Ok(Self { term: of(term)?, int: of(int)?, hup: of(hup)? })
    }

    pub(super) async fn come(&mut self) -> &'static str {
        tokio::select! {
            _ = self.term.recv() => "SIGTERM",
            _ = self.int.recv() => "SIGINT",
            _ = self.hup.recv() => "SIGHUP",
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
