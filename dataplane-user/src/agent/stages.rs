//! In which stages an agent starts. A start that fails says in which one.

use std::{fmt, time::Instant};

/// A stage of the start. Each needs what those before it did.
///
/// Where an agent runs already it is left alone until the third: all that can keep this one from running is found out before, and the other one's lock and the renewal of its verdicts are
/// taken over after [`Stage::View`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stage {
    /// What can be known before anything is touched.
    Checks,
    /// The run folder's lock.
    Lock,
    /// What an earlier agent left is renewed from now on.
    Bridge,
    /// Who exists, which node this is, what this kernel does and how kube-proxy forwards.
    View,
    /// Programs and maps; verdicts and tables as the view wants them.
    Dataplane,
    /// Devices are attached to.
    Routes,
    /// All others begin.
    Actors,
    /// Requests are heard.
    Serving,
}

impl fmt::Display for Stage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Checks => "checks",
            Self::Lock => "lock",
            Self::Bridge => "bridge",
            Self::View => "view",
            Self::Dataplane => "dataplane",
            Self::Routes => "routes",
            Self::Actors => "actors",
            Self::Serving => "serving",
        })
    }
}

/// How far a start is. Dropped before [`Self::over`], it tells the log where the start ended.
pub(super) struct Stages {
    now: Stage,
    since: Instant,
    over: bool,
}

impl Stages {
    /// A start begins.
    pub(super) fn begin() -> Self {
        Self { now: Stage::Checks, since: Instant::now(), over: false }
    }

    /// The next stage begins.
    pub(super) fn enter(&mut self, stage: Stage) {
        tracing::debug!(stage = %self.now, took = ?self.since.elapsed(), "a stage of the start is over");
        self.now = stage;
        self.since = Instant::now();
    }

    /// The agent runs, or was told not to.
    pub(super) fn over(mut self) {
        self.over = true;
    }
}

impl Drop for Stages {
    fn drop(&mut self) {
        if !self.over {
            tracing::error!(stage = %self.now, "the start failed");
        }
    }
}
