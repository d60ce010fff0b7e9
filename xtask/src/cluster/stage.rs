//! The cluster as a stage of `cargo xtask test`.

use std::time::{Duration, Instant};

use anyhow::Result;

use crate::process;
use crate::say::say;
use crate::test::{checks, tally::Stage};

/// How long the parts may take where nothing is built yet: Go programs, and the image's program with all of its dependencies.
const BUILT: Duration = Duration::from_secs(60 * 60);
/// How long the cluster may take, with three runs of the incident. A cluster that takes longer hangs.
const ENDED: Duration = Duration::from_secs(20 * 60);

/// The beginnings of the lines that name a promise.
const HELD: &str = "held: ";
const BROKEN: &str = "broken: ";
/// The beginning of a line about a run that was repeated.
const AGAIN: &str = "AGAIN  ";

/// Builds all parts of the cluster, in time that nothing else wants. What the build prints is shown if it fails.
pub(crate) fn prepare() -> Result<Stage> {
    say!("the image and the cluster's parts, beside the tests");
    let started = Instant::now();
    let mut command = process::idle(&process::verb(&["cluster-test", "--until", "built"])?);
    let mut stage = Stage::new("cluster's parts");
    checks::quietly(&mut command, BUILT, &mut stage)?;
    stage.took = started.elapsed();
    Ok(stage)
}

/// Runs the cluster. Each promise counts as a test.
pub(crate) fn stage() -> Result<Stage> {
    say!("the cluster of real kubelets");
    let started = Instant::now();
    let mut command = process::verb(&["cluster-test", "--until", "incident"])?;
    let mut read = Read::default();
    let ended = process::stream(&mut command, ENDED, |line| {
        println!("{line}");
        read.line(line);
    })?;
    let mut stage = read.judge(ended.map(|status| status.success()));
    stage.took = started.elapsed();
    Ok(stage)
}

/// What was read of the cluster's output.
#[derive(Debug, Default)]
struct Read {
    held: usize,
    broken: Vec<String>,
    again: Vec<String>,
}

impl Read {
    fn line(&mut self, line: &str) {
        if line.starts_with(HELD) {
            self.held += 1;
        } else if let Some(promise) = line.strip_prefix(BROKEN) {
            self.broken.push(promise.to_owned());
        } else if let Some(run) = line.strip_prefix(AGAIN) {
            self.again.push(run.to_owned());
        }
    }

    /// The results. `succeeded`: how `cluster-test` ended; `None` if it hung.
    fn judge(self, succeeded: Option<bool>) -> Stage {
        let mut stage =
            Stage { passed: self.held, failures: self.broken, again: self.again, ..Stage::new("cluster") };
        match succeeded {
            Some(true) if self.held == 0 => {
                stage.fail("`cargo xtask cluster-test` named no promise that was held")
            }
            Some(true) => {}
            Some(false) if stage.failures.is_empty() => stage.fail("`cargo xtask cluster-test` failed"),
            Some(false) => {}
            None => stage.fail("`cargo xtask cluster-test` hung, and was killed"),
        }
        stage
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn judged(lines: &[&str], succeeded: Option<bool>) -> (usize, Vec<String>, usize) {
        let mut read = Read::default();
        lines.iter().for_each(|line| read.line(line));
        let stage = read.judge(succeeded);
        (stage.passed, stage.failures, stage.again.len())
    }

    #[test]
    fn each_promise_is_a_test() {
        let lines = ["  a table", "held: one", "held: two", "AGAIN  run 1 does not count"];
        assert_eq!(judged(&lines, Some(true)), (2, vec![], 1));
        let broken = ["held: one", "broken: two: 3 of 4", "  the evidence"];
        assert_eq!(judged(&broken, Some(false)), (1, vec!["two: 3 of 4".to_owned()], 0));
    }

    #[test]
    fn a_cluster_that_tells_nothing_has_failed() {
        assert_eq!(judged(&["a table"], Some(true)).1.len(), 1);
        assert_eq!(judged(&["held: one"], Some(false)).1, ["`cargo xtask cluster-test` failed"]);
        assert_eq!(judged(&["held: one"], None).1, ["`cargo xtask cluster-test` hung, and was killed"]);
    }
}
