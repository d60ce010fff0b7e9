//! Counts results: one row for each stage, and the last line of a run.

use std::fmt::Write as _;
use std::time::{Duration, Instant};

use super::measured::Figure;

/// The result of one stage.
#[derive(Debug, Clone, Default)]
pub(crate) struct Stage {
    pub(crate) name: String,
    pub(crate) passed: usize,
    /// The names of the failures.
    pub(crate) failures: Vec<String>,
    /// The names of tests that failed and passed when they were run again, each with what had held it up.
    pub(crate) again: Vec<String>,
    /// A note in the stage's row, for example what could not be reached.
    pub(crate) note: String,
    pub(crate) took: Duration,
    /// How long each test executable ran, and how long other steps before them took.
    pub(crate) files: Vec<(String, Duration)>,
    /// The output of executables with failed tests, until it is shown.
    pub(crate) printed: Vec<String>,
    /// The figures that tests measured, each with its executable.
    pub(crate) figures: Vec<(String, Figure)>,
    /// The output of each test, with the test's name.
    pub(crate) said: Vec<(String, String)>,
}

/// How many of the slowest executables the summary names.
const SLOWEST: usize = 10;

impl Stage {
    pub(crate) fn new(name: impl Into<String>) -> Self {
        Self { name: name.into(), ..Self::default() }
    }

    /// Makes a stage without tests, which began at `started` and ends now.
    pub(crate) fn since(name: &str, started: Instant) -> Self {
        Self { took: started.elapsed(), ..Self::new(name) }
    }

    pub(crate) fn pass(&mut self) {
        self.passed += 1;
    }

    pub(crate) fn fail(&mut self, what: impl Into<String>) {
        self.failures.push(what.into());
    }

    /// Adds the counts and texts of another stage, but not its name and time.
    pub(crate) fn add(&mut self, other: Self) {
        self.passed += other.passed;
        self.failures.extend(other.failures);
        self.again.extend(other.again);
        self.files.extend(other.files);
        self.printed.extend(other.printed);
        self.figures.extend(other.figures);
        self.said.extend(other.said);
    }

    /// Prints the output of executables with failed tests. Does so once.
    pub(crate) fn show(&mut self) {
        for text in self.printed.drain(..) {
            eprintln!("{text}");
        }
    }
}

/// The summary: the table of all stages, the slowest test executables, the name of each failure, the time `all` of the whole run, and
/// `N passed, N failed` as the last line.
pub(crate) fn summary(stages: &[Stage], all: Duration) -> String {
    let mut text = String::new();
    let width = stages.iter().map(|stage| stage.name.len()).max().unwrap_or(0).max(5);
    let _infallible =
        writeln!(text, "\n{:<width$}  {:>6}  {:>6}  {:>7}", "STAGE", "PASSED", "FAILED", "SECONDS");
    for Stage { name, passed, failures, note, took, .. } in stages {
        let seconds = took.as_secs_f64();
        let row = format!("{name:<width$}  {passed:>6}  {:>6}  {seconds:>7.1}  {note}", failures.len());
        let _infallible = writeln!(text, "{}", row.trim_end());
    }
    for (took, stage, file) in slowest(stages) {
        let _infallible = writeln!(text, "SLOWEST {:>7.1} s  {stage}: {file}", took.as_secs_f64());
    }
    for stage in stages {
        for test in &stage.again {
            let _infallible = writeln!(text, "AGAIN   {}: {test}", stage.name);
        }
    }
    for stage in stages {
        for failure in &stage.failures {
            let _infallible = writeln!(text, "FAILED  {}: {failure}", stage.name);
        }
    }
    let _infallible = writeln!(text, "TOTAL   {:>7.1} s", all.as_secs_f64());
    let passed: usize = stages.iter().map(|stage| stage.passed).sum();
    let _infallible = writeln!(text, "{passed} passed, {} failed", failed(stages));
    text
}

fn slowest(stages: &[Stage]) -> Vec<(Duration, &str, &str)> {
    let mut all: Vec<(Duration, &str, &str)> = stages
        .iter()
        .flat_map(|stage| stage.files.iter().map(|(file, took)| (*took, &*stage.name, &**file)))
        .collect();
    all.sort_by_key(|row| std::cmp::Reverse(*row));
    all.truncate(SLOWEST);
    all
}

/// The number of failures of all stages.
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
        two.again.push("net_cut::x (x: the machine stood still 3 s)".to_owned());
        let text = summary(&[one, two], Duration::from_millis(1_902_340));
        let last: Vec<&str> = text.lines().rev().take(2).collect();
        // The total is not the sum of the stages, since some stages run beside others.
        assert_eq!(last, ["3 passed, 1 failed", "TOTAL    1902.3 s"]);
        assert!(text.contains("FAILED  vm 5.10: net_reset: no result"), "{text}");
        assert!(text.contains("AGAIN   vm 5.10: net_cut::x (x: the machine stood still 3 s)"), "{text}");
    }

    #[test]
    fn the_slowest_are_named_in_order() {
        let mut stages = [Stage::new("unit"), Stage::new("vm 6.1")];
        for seconds in 1..=SLOWEST as u64 {
            let file = format!("tests::file_{seconds}");
            stages[(seconds % 2) as usize].files.push((file, Duration::from_secs(seconds)));
        }
        stages[0].files.push(("tests::quick".to_owned(), Duration::from_millis(10)));
        let text = summary(&stages, Duration::ZERO);
        let named: Vec<&str> = text.lines().filter(|line| line.starts_with("SLOWEST")).collect();
        assert_eq!(named.len(), SLOWEST, "{text}");
        assert_eq!(named[0], "SLOWEST    10.0 s  unit: tests::file_10");
        assert!(named[1].ends_with("vm 6.1: tests::file_9") && !text.contains("quick"), "{text}");
    }
}
