//! The stages in which an agent starts. A start that fails says in which one. Each stage needs what those before it did:
//! - `checks`: what can be checked before anything is touched.
//! - `lock`: the lock of the run folder is taken.
//! - `bridge`: what an earlier agent left is renewed from now on. Where the last agent was off, this comes after `settings`.
//! - `settings`: whether the settings in the API server turn the agent off, as far as they come within a second.
//! - `view`: which nodes exist, which of them this is, what this kernel does and how kube-proxy forwards.
//! - `dataplane`: programs and maps; verdicts and tables as the view wants them.
//! - `routes`: devices are attached to.
//! - `actors`: all other actors begin.
//! - `serving`: requests are answered.
//!
//! Where an agent runs already, `lock` and `bridge` come after `view`. The other agent is left alone until then: all that can keep this
//! one from running is found out before its lock and the renewal of its verdicts are taken over.

use std::time::Instant;

/// How far a start is. Where this is dropped before [`Self::over`], the log says in which stage the start failed.
pub(super) struct Stages {
    now: &'static str,
    since: Instant,
    over: bool,
}

impl Stages {
    /// A start begins.
    pub(super) fn begin() -> Self {
        Self { now: "checks", since: Instant::now(), over: false }
    }

    /// The next stage begins.
    pub(super) fn enter(&mut self, stage: &'static str) {
        tracing::debug!(
            event = "stage-over",
            stage = %self.now,
            took = ?self.since.elapsed(),
            "a stage of the start is over"
        );
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
            tracing::error!(event = "start-failed", stage = %self.now, "the start failed");
        }
    }
}
