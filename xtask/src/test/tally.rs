//! Counting: one row per stage, and the last line.

use std::fmt::Write as _;
use std::time::Duration;

/// The result of one stage.
#[derive(Debug, Clone, Default)]
pub(crate) struct Stage {
    pub(crate) name: String,
    pub(crate) passed: usize,
    /// What failed, by name.
    pub(crate) failures: Vec<String>,
    /// Said beside the row, for example what could not be reached.
    pub(crate) note: String,
    pub(crate) took: Duration,
}

impl Stage {
    pub(crate) fn new(name: impl Into<String>) -> Self {
        Self { name: name.into(), ..Self::default() }
    }

    pub(crate) fn pass(&mut self) {
        self.passed += 1;
    }

    pub(crate) fn fail(&mut self, what: impl Into<String>) {
        self.failures.push(what.into());
    }
}

/// The table of all stages, each failure by name, and `N passed, N failed` as the last line.
pub(crate) fn summary(stages: &[Stage]) -> String {
    let mut text = String::new();
    let width = stages.iter().map(|stage| stage.name.len()).max().unwrap_or(0).max(5);
    let _infallible =
        writeln!(text, "\n{:<width$}  {:>6}  {:>6}  {:>7}", "STAGE", "PASSED", "FAILED", "SECONDS");
    for Stage { name, passed, failures, note, took } in stages {
        let seconds = took.as_secs_f64();
        let row = format!("{name:<width$}  {passed:>6}  {:>6}  {seconds:>7.1}  {note}", failures.len());
        let _infallible = writeln!(text, "{}", row.trim_end());
    }
    for stage in stages {
        for failure in &stage.failures {
            let _infallible = writeln!(text, "FAILED  {}: {failure}", stage.name);
        }
    }
    let passed: usize = stages.iter().map(|stage| stage.passed).sum();
    let _infallible = writeln!(text, "{passed} passed, {} failed", failed(stages));
    text
}

/// All failures of all stages.
pub(crate) fn failed(stages: &[Stage]) -> usize {
    stages.iter().map(|stage| stage.failures.len()).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_line_sums_up_and_failures_are_named() {
        let mut one = Stage::new("unit");
        one.pass();
        one.pass();
        let mut two = Stage::new("vm 5.10");
        two.pass();
        two.fail("net_reset: no result");
        let text = summary(&[one, two]);
        assert_eq!(text.lines().last(), Some("3 passed, 1 failed"));
        assert!(text.contains("FAILED  vm 5.10: net_reset: no result"), "{text}");
    }
}
