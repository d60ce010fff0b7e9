//! Reads the output of a test executable: one outcome for each test.

use std::collections::BTreeMap;

use super::measured::{self, Figure, Measured, Told};

/// How one test ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Outcome {
    Passed,
    Failed,
    /// Marked `#[ignore]`. This counts as a failure, since no test may be skipped.
    Ignored,
}

/// Collects outcomes line by line.
#[derive(Debug, Default)]
pub(crate) struct Parser {
    /// The test whose outcome is still to come. With one thread libtest prints `test NAME ... ` first, and the outcome when the test is done. Output
    /// of child processes comes between the two.
    pending: Option<String>,
    outcomes: BTreeMap<String, Outcome>,
    /// libtest's own count of passed and failed tests.
    counted: Option<(usize, usize)>,
    /// The watchdog's findings in the tests' process, by test.
    measured: BTreeMap<String, Measured>,
    figures: Vec<Figure>,
    /// The test whose output libtest shows now.
    section: Option<String>,
    /// The output of each test.
    printed: BTreeMap<String, String>,
}

impl Parser {
    /// Takes one line. Returns the test and its outcome, if the line has one.
    pub(crate) fn line(&mut self, line: &str) -> Option<(String, Outcome)> {
        // The tests' process writes some lines past libtest. Such a line may follow the beginning of a line that libtest has not ended yet.
        let line = match measured::read(line) {
            Some((before, told)) => {
                self.told(told);
                before
            }
            None => line,
        };
        self.counted = counted(line).or(self.counted);
        self.output(line);
        let told = self.read(line)?;
        self.outcomes.insert(told.0.clone(), told.1.clone());
        self.pending = None;
        Some(told)
    }

    fn told(&mut self, told: Told) {
        match told {
            Told::Watched(test, seen) => {
                let all = self.measured.entry(test).or_default();
                // A test that makes several namespaces, one after the other, has a finding for each.
                all.stood_still = all.stood_still.max(seen.stood_still);
                all.agent_waited = all.agent_waited.max(seen.agent_waited);
            }
            Told::Figure(figure) => self.figures.push(figure),
        }
    }

    /// Collects the output of tests. libtest shows it after all outcomes.
    fn output(&mut self, line: &str) {
        if let Some(test) = line.strip_prefix("---- ").and_then(|rest| rest.strip_suffix(" stdout ----")) {
            self.section = Some(test.to_owned());
        } else if line == "successes:" || line == "failures:" || line.starts_with("test result: ") {
            self.section = None;
        } else if let Some(test) = &self.section {
            let printed = self.printed.entry(test.clone()).or_default();
            printed.push_str(line);
            printed.push('\n');
        }
    }

    fn read(&mut self, line: &str) -> Option<(String, Outcome)> {
        if let Some((name, rest)) = line.strip_prefix("test ").and_then(|rest| rest.split_once(" ... ")) {
            let name = name.strip_suffix(" - should panic").unwrap_or(name);
            if let Some(outcome) = outcome(rest) {
                return Some((name.to_owned(), outcome));
            }
            self.pending = Some(name.to_owned());
            return None;
        }
        let pending = self.pending.as_ref()?;
        // The outcome may follow output of a child that did not end its line.
        let outcome = match line {
            "ok" => Outcome::Passed,
            "FAILED" => Outcome::Failed,
            _ if line.ends_with("FAILED") && !line.starts_with("test result") => Outcome::Failed,
            _ => return None,
        };
        Some((pending.clone(), outcome))
    }

    /// The difference between libtest's own count and the outcomes that were read. There is one if a child process printed a line that looks like
    /// an outcome.
    pub(crate) fn miscounted(&self) -> Option<String> {
        let count = |wanted: Outcome| self.outcomes.values().filter(|outcome| **outcome == wanted).count();
        let told = (count(Outcome::Passed), count(Outcome::Failed));
        let counted = self.counted.filter(|counted| *counted != told)?;
        Some(format!(
            "libtest counted {} passed, {} failed; read were {} and {}",
            counted.0, counted.1, told.0, told.1
        ))
    }

    /// Whether libtest printed its count, which it does at its end. It does not if a test ended the process.
    pub(crate) fn is_counted(&self) -> bool {
        self.counted.is_some()
    }

    /// The names of the failed tests.
    pub(crate) fn failed(&self) -> Vec<String> {
        let failed = self.outcomes.iter().filter(|(_, outcome)| **outcome == Outcome::Failed);
        failed.map(|(name, _)| name.clone()).collect()
    }

    /// The watchdog's findings during a test. `None` if it printed none.
    pub(crate) fn measured(&self, test: &str) -> Option<Measured> {
        self.measured.get(test).copied()
    }

    /// The bound that a failed test missed. `None` if it failed for another reason.
    pub(crate) fn missed(&self, test: &str) -> Option<measured::Missed> {
        measured::missed(self.printed.get(test)?)
    }

    /// The figures that tests measured.
    pub(crate) fn figures(&self) -> &[Figure] {
        &self.figures
    }

    /// The output of each test, as far as libtest showed it.
    pub(crate) fn printed(&self) -> &BTreeMap<String, String> {
        &self.printed
    }

    /// All outcomes that were read so far.
    pub(crate) fn outcomes(&self) -> &BTreeMap<String, Outcome> {
        &self.outcomes
    }
}

fn outcome(text: &str) -> Option<Outcome> {
    // A time (`--report-time`) or a reason for ignoring may follow the word.
    match text.split([' ', ',']).next()? {
        "ok" => Some(Outcome::Passed),
        "FAILED" => Some(Outcome::Failed),
        "ignored" => Some(Outcome::Ignored),
        _ if text.ends_with("ok") && text.len() > 2 => Some(Outcome::Passed),
        _ if text.ends_with("FAILED") => Some(Outcome::Failed),
        _ => None,
    }
}

/// The counts of passed and failed tests in a line such as `test result: FAILED. 2 passed; 1 failed; ...`.
fn counted(line: &str) -> Option<(usize, usize)> {
    let mut words = line.strip_prefix("test result: ")?.split(' ').skip(1);
    let passed = words.next()?.parse().ok()?;
    let failed = words.nth(1)?.parse().ok()?;
    Some((passed, failed))
}

/// The names in the output of `--list --format terse`, whose lines are `NAME: test`.
pub(crate) fn names(listed: &str) -> Vec<String> {
    listed.lines().filter_map(|line| line.strip_suffix(": test")).map(str::to_owned).collect()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn parse(text: &str) -> BTreeMap<String, Outcome> {
        let mut parser = Parser::default();
        for line in text.lines() {
            parser.line(line);
        }
        parser.outcomes
    }

    #[test]
    fn plain_lines() {
        let told = parse(
            "running 4 tests\ntest a::one ... ok\ntest two ... FAILED\ntest three ... ignored, needs a reason\n\
             test four - should panic ... ok\n\nfailures:\n\n---- two stdout ----\ntest result: FAILED. 2 passed; 1 failed;\n",
        );
        assert_eq!(told.len(), 4, "{told:?}");
        assert_eq!(told["a::one"], Outcome::Passed);
        assert_eq!(told["two"], Outcome::Failed);
        assert_eq!(told["three"], Outcome::Ignored);
        assert_eq!(told["four"], Outcome::Passed);
    }

    #[test]
    fn an_outcome_split_off_by_other_output_is_still_told() {
        let told =
            parse("test one ... some child speaks\nmore of it\nok\ntest two ... x\nbroken offFAILED\n");
        assert_eq!(told["one"], Outcome::Passed);
        assert_eq!(told["two"], Outcome::Failed);
    }

    #[test]
    fn a_test_that_never_ends_has_no_outcome() {
        let told = parse("test one ... ok\ntest two ... \n[   12.0] Kernel panic - not syncing\n");
        assert_eq!(told.keys().collect::<Vec<_>>(), ["one"]);
    }

    #[test]
    fn the_final_result_line_is_no_outcome() {
        let told = parse("test one ... \ntest result: FAILED. 0 passed; 1 FAILED\n");
        assert!(told.is_empty(), "{told:?}");
    }

    #[test]
    fn what_a_child_printed_does_not_hide_a_failure() {
        let mut parser = Parser::default();
        for line in
            "test one ... a child speaks\nok\nFAILED\n\ntest result: FAILED. 0 passed; 1 failed; 0 ignored"
                .lines()
        {
            parser.line(line);
        }
        let told = parser.miscounted().expect("a difference");
        assert!(told.contains("0 passed, 1 failed") && told.contains("1 and 0"), "{told}");
        let mut parser = Parser::default();
        parser.line("test one ... ok");
        parser.line("test result: ok. 1 passed; 0 failed; 0 ignored; 0 measured");
        assert_eq!(parser.miscounted(), None);
    }

    #[test]
    fn what_was_measured_is_read_wherever_it_stands() {
        let mut parser = Parser::default();
        let text = "test a ... @@watched {\"test\":\"a\",\"still_ms\":1200,\"waited_ms\":7}\nok\n\
            @@watched {\"test\":\"a\",\"still_ms\":300,\"waited_ms\":5}\n\
            @@figure {\"test\":\"a\",\"name\":\"lapse\",\"value\":3.5,\"unit\":\"s\"}\nsuccesses:\n\n---- a stdout ----\nhello\n\nsuccesses:\n    a\n";
        text.lines().for_each(|line| drop(parser.line(line)));
        assert_eq!(parser.outcomes()["a"], Outcome::Passed);
        let measured = parser.measured("a").expect("told");
        assert_eq!((measured.stood_still.as_millis(), measured.agent_waited.as_millis()), (1_200, 7));
        assert_eq!(parser.figures()[0].name, "lapse");
        assert_eq!(parser.printed()["a"], "hello\n\n");
    }

    /// A missed bound counts for the test that printed it.
    #[test]
    fn a_missed_bound_is_the_test_s_that_failed_for_it() {
        let mut parser = Parser::default();
        let text = "test a ... FAILED\ntest b ... FAILED\n\nfailures:\n\n---- a stdout ----\n\
            Error: the cut: 2s (missed bound: 1000 ms)\n\n---- b stdout ----\nError: a flow was cut\n\n\nfailures:\n    a\n    b\n";
        text.lines().for_each(|line| drop(parser.line(line)));
        assert_eq!(parser.missed("a").map(|missed| missed.bound), Some(Duration::from_secs(1)));
        assert_eq!((parser.missed("b"), parser.missed("c")), (None, None));
    }

    #[test]
    fn names_of_a_listing() {
        assert_eq!(names("a::b: test\nc: test\nd: benchmark\n\n2 tests, 1 benchmark\n"), ["a::b", "c"]);
    }
}
