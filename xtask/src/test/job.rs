//! A job: the run of one test executable, and a second run of those of its tests that were held up. A guest's init runs jobs by the same code.

use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use anyhow::Result;
use serde::{Deserialize, Serialize};

use super::libtest::{Outcome, Parser};
use super::measured::{self, Measured};
use super::tally::Stage;
use super::ticker::Ticker;
use crate::process;

/// Tests of one executable. Durations are in milliseconds, since a guest reads them from JSON.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Job {
    /// The job's name: `package::file`, or `package::file (module)`.
    pub(crate) title: String,
    pub(crate) program: PathBuf,
    /// The tests that must have a result.
    pub(crate) names: Vec<String>,
    /// Whether `names` are only some of the executable's tests.
    pub(crate) some: bool,
    /// The number of libtest's threads. `None`: libtest's default.
    pub(crate) threads: Option<usize>,
    /// The limit. An executable that takes longer hangs, and is killed.
    pub(crate) limit_ms: u64,
    /// Whether a failed test may be run again.
    pub(crate) again: bool,
    pub(crate) makes_load: bool,
    /// Whether the modules of kube-proxy's IPVS mode are loaded first.
    pub(crate) ipvs: bool,
}

/// How an executable ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum End {
    /// It ended by itself with this exit code. `None`: a signal ended it.
    Code(Option<i32>),
    /// It was killed at its limit.
    Killed,
}

/// The events of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Event<'a> {
    Begin,
    /// Failed tests are run once more, for this reason.
    Again(&'a str),
    Line(&'a str),
    End(End),
}

/// libtest's exit code if a test failed.
const FAILED: End = End::Code(Some(101));

impl Job {
    /// Runs the job. `command` makes the command of the executable. `on_event` gets the events.
    pub(crate) fn run(
        &self,
        command: impl Fn() -> Command,
        mut on_event: impl FnMut(Event<'_>),
    ) -> Result<()> {
        on_event(Event::Begin);
        let mut first = command();
        first.arg("--show-output");
        if let Some(threads) = self.threads {
            first.args(["--test-threads", &threads.to_string()]);
        }
        if self.some {
            first.arg("--exact").args(&self.names);
        }
        let ticker = Ticker::start();
        let ran = self.one(&mut first, &mut on_event);
        let stood_still = ticker.end();
        let (parser, end) = ran?;
        let again = self.again(&parser, stood_still);
        // A crash or a hang is a failure, also if the tests were held up.
        if again.is_empty() || end != FAILED {
            return Ok(());
        }
        let reasons: Vec<String> = again.iter().map(|(test, why)| format!("{test}: {why}")).collect();
        on_event(Event::Again(&reasons.join("; ")));
        let mut second = command();
        second.args(["--show-output", "--test-threads", "1", "--exact"]);
        second.args(again.iter().map(|(test, _)| test));
        self.one(&mut second, &mut on_event).map(drop)
    }

    fn one(&self, command: &mut Command, on_event: &mut impl FnMut(Event<'_>)) -> Result<(Parser, End)> {
        let mut parser = Parser::default();
        let ended = process::stream(command, Duration::from_millis(self.limit_ms), |line| {
            parser.line(line);
            on_event(Event::Line(line));
        })?;
        let end = ended.map_or(End::Killed, |status| End::Code(status.code()));
        on_event(Event::End(end));
        Ok((parser, end))
    }

    /// The tests to run again, each with the reason: tests that missed a bound and were held up for longer than that bound. `stood_still` is the
    /// longest time that the machine stood still meanwhile.
    fn again(&self, parser: &Parser, stood_still: Duration) -> Vec<(String, String)> {
        if !self.again {
            return Vec::new();
        }
        let why = |test: &String| {
            let told = parser.measured(test)?;
            let measured = Measured { stood_still: told.stood_still.min(stood_still), ..told };
            measured::exceeds(&measured, parser.missed(test)?, self.makes_load)
        };
        parser.failed().into_iter().filter_map(|test| why(&test).map(|why| (test, why))).collect()
    }
}

/// The record of a job, made from its events.
#[derive(Debug)]
pub(crate) struct Record {
    pub(crate) title: String,
    tries: Vec<Parser>,
    /// How each run of the executable ended.
    ends: Vec<End>,
    /// All lines that the executable printed.
    printed: Vec<String>,
    /// The reason why tests were run once more.
    why: Option<String>,
}

impl Record {
    pub(crate) fn new(title: &str) -> Self {
        Self { title: title.to_owned(), tries: Vec::new(), ends: Vec::new(), printed: Vec::new(), why: None }
    }

    /// Takes the next event. Returns the test and its outcome, if the event has one.
    pub(crate) fn take(&mut self, event: Event<'_>) -> Option<(String, Outcome)> {
        match event {
            Event::Begin => self.tries.push(Parser::default()),
            Event::Again(why) => {
                self.tries.push(Parser::default());
                self.printed.push(format!("-- once more: {why}"));
                self.why = Some(why.to_owned());
            }
            Event::Line(line) => {
                self.printed.push(line.to_owned());
                return self.tries.last_mut()?.line(line);
            }
            Event::End(end) => self.ends.push(end),
        }
        None
    }

    /// Counts each expected test once. A test without an outcome has failed. If a test was run twice, its last outcome counts. A test that failed
    /// before it passed is noted with the reason that held it up.
    pub(crate) fn judge(&self, names: &[String], stage: &mut Stage) {
        let title = &self.title;
        let before = stage.failures.len();
        for name in names {
            let mut outcomes = self.tries.iter().filter_map(|parser| parser.outcomes().get(name));
            let first = outcomes.next();
            match outcomes.next_back().or(first) {
                Some(Outcome::Passed) => {
                    stage.pass();
                    if first != Some(&Outcome::Passed) {
                        let why = self.why.as_deref().unwrap_or_default();
                        stage.again.push(format!("{title}::{name} ({why})"));
                    }
                }
                Some(Outcome::Failed) => stage.fail(format!("{title}::{name}")),
                Some(Outcome::Ignored) => {
                    stage.fail(format!("{title}::{name}: ignored; no test may be skipped"));
                }
                None => stage.fail(format!("{title}::{name}: no result")),
            }
        }
        for difference in self.tries.iter().filter_map(Parser::miscounted) {
            stage.fail(format!("{title}: {difference}"));
        }
        for (parser, end) in self.tries.iter().zip(&self.ends) {
            match *end {
                End::Code(Some(0)) if parser.is_counted() => {}
                End::Code(Some(0)) => stage.fail(format!("{title}: ended before libtest had counted")),
                FAILED if !parser.failed().is_empty() => {}
                // The executable crashed outside any test, or aborted in the middle of one.
                End::Code(Some(code)) => stage.fail(format!("{title}: ended with code {code}")),
                End::Code(None) => stage.fail(format!("{title}: ended by a signal")),
                End::Killed => stage.fail(format!("{title}: hung, and was killed")),
            }
        }
        if stage.failures.len() > before || self.tries.len() > 1 {
            stage.printed.push(format!("---- {title}\n{}", self.printed.join("\n")));
        }
        for parser in &self.tries {
            stage.figures.extend(parser.figures().iter().map(|figure| (title.clone(), figure.clone())));
            let printed =
                parser.printed().iter().map(|(test, text)| (format!("{title}::{test}"), text.clone()));
            stage.said.extend(printed);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;
    use crate::cache::Scratch;

    const NAMES: [&str; 2] = ["one", "two"];

    /// Runs a job whose executable is a shell script. The script runs `first` on its first call, and `second` on its second call.
    fn run(again: bool, first: &str, second: &str) -> Stage {
        static COUNT: AtomicUsize = AtomicUsize::new(0);
        let at = format!("nodefence-xtask-job-{}", COUNT.fetch_add(1, Ordering::Relaxed));
        let dir = Scratch::new(&std::env::temp_dir().join(at)).unwrap();
        let flag = dir.path().join("called");
        let script = format!(
            "if [ -e {0} ]; then [ \"$2 $3 $4 $5\" = '--test-threads 1 --exact two' ] || exit 9; {second}; else : >{0}; {first}; fi",
            flag.display()
        );
        let job = Job {
            title: "tests::file".to_owned(),
            program: "/bin/sh".into(),
            names: NAMES.map(str::to_owned).to_vec(),
            some: false,
            threads: None,
            limit_ms: 20_000,
            again,
            makes_load: false,
            ipvs: false,
        };
        let mut record = Record::new(&job.title);
        let command = || {
            let mut command = process::command(&job.program);
            command.args(["-c", &script, "sh"]);
            command
        };
        job.run(command, |event| drop(record.take(event))).unwrap();
        let mut stage = Stage::new("here");
        record.judge(&job.names, &mut stage);
        stage
    }

    const HELD_UP: &str = "echo 'test one ... ok'; echo 'test two ... FAILED'; \
        echo '@@watched {\"test\":\"two\",\"still_ms\":0,\"waited_ms\":1500}' >&2; \
        echo '---- two stdout ----'; echo 'Error: a cut (missed bound: 1000 ms)'; exit 101";

    /// A second call in which the test passes.
    const PASSED: &str = "echo 'test two ... ok'; echo 'test result: ok. 1 passed; 0 failed; 0 ignored'";

    #[test]
    fn what_was_held_up_is_run_again() {
        let stage = run(true, HELD_UP, PASSED);
        assert_eq!((stage.passed, stage.failures.len()), (2, 0), "{:?}", stage.failures);
        assert_eq!(
            stage.again,
            [
                "tests::file::two (two: the agent waited for a processor 1.5 s, and the bound that it missed is 1 s)"
            ]
        );
        let stage = run(true, HELD_UP, "echo 'test two ... FAILED'; exit 101");
        assert_eq!((stage.passed, stage.failures), (1, vec!["tests::file::two".to_owned()]));
    }

    #[test]
    fn what_was_not_held_up_has_failed() {
        let longer = HELD_UP.replace("1000 ms", "1500 ms");
        let for_no_bound = HELD_UP.replace(" (missed bound: 1000 ms)", "");
        let unseen = HELD_UP.replace("\"two\"", "\"one\"");
        // The test's process alone was stopped, and not the machine: the runner went on meanwhile.
        let alone = HELD_UP.replace("\"still_ms\":0,\"waited_ms\":1500", "\"still_ms\":1500,\"waited_ms\":0");
        let cases =
            [(true, &*longer), (false, HELD_UP), (true, &for_no_bound), (true, &unseen), (true, &alone)];
        for (again, first) in cases {
            let stage = run(again, first, PASSED);
            assert_eq!((stage.passed, stage.again.len()), (1, 0), "{first}");
            assert_eq!(stage.failures, ["tests::file::two"], "{first}");
        }
    }

    #[test]
    fn a_crash_is_not_run_again_and_a_failure_without_a_test_is_one() {
        let crashed = HELD_UP.replace("exit 101", "exit 7");
        let stage = run(true, &crashed, PASSED);
        assert_eq!(stage.failures, ["tests::file::two", "tests::file: ended with code 7"]);
        let stage = run(true, HELD_UP, "echo 'test two ... ok'; exit 101");
        assert_eq!(stage.failures, ["tests::file: ended with code 101"]);
    }

    #[test]
    fn a_crash_and_a_missing_result_fail() {
        let stage = run(false, "echo 'test one ... ok'; echo 'test two ... ok'; exit 7", "true");
        assert_eq!(stage.failures, ["tests::file: ended with code 7"]);
        let stage = run(
            false,
            "echo 'test one ... ok'; echo 'test result: ok. 1 passed; 0 failed; 0 ignored'",
            "true",
        );
        assert_eq!(stage.failures, ["tests::file::two: no result"]);
        // A test ends its process, and its child prints what libtest would have printed.
        let stage = run(false, "echo 'test one ... ok'; echo 'test two ... ok'; exit 0", "true");
        assert_eq!(stage.failures, ["tests::file: ended before libtest had counted"]);
        let stage = run(false, "echo 'test one ... ok'; echo 'test two ... ok'; exit 101", "true");
        assert_eq!(stage.failures, ["tests::file: ended with code 101"]);
    }
}
