//! Judges the results that a guest sent over its serial lines. Each expected test counts once.

use std::collections::BTreeMap;

use super::plan;
use crate::test::job::{Event, Job, Record};
use crate::test::libtest::Outcome;
use crate::test::tally::Stage;

/// The content of a line.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Told {
    /// An executable begins to run.
    Begun,
    /// `file::test` and its outcome.
    Test(String, Outcome),
    /// This executable has ended.
    Ended(String),
    /// Tests are run once more, for this reason.
    Again(String),
}

/// Reads a guest's results line by line.
#[derive(Debug, Default)]
pub(crate) struct Reader {
    /// The executable that runs now.
    running: Option<String>,
    records: BTreeMap<String, Record>,
    done: bool,
}

impl Reader {
    /// Takes one line, and returns its content.
    pub(crate) fn line(&mut self, line: &str) -> Option<Told> {
        if self.running.is_none() && line.starts_with(plan::DONE) {
            self.done = true;
            return None;
        }
        let (title, event) = plan::read(line);
        if let (Some(title), Event::Begin) = (title, event) {
            self.records.insert(title.to_owned(), Record::new(title));
        }
        if let Some(title) = title {
            self.running = Some(title.to_owned());
        }
        let title = self.running.clone()?;
        let outcome = self.records.get_mut(&title)?.take(event);
        match event {
            Event::End(_) => {
                self.running = None;
                Some(Told::Ended(title))
            }
            Event::Again(why) => Some(Told::Again(why.to_owned())),
            Event::Begin => Some(Told::Begun),
            Event::Line(_) => outcome.map(|(name, outcome)| Told::Test(format!("{title}::{name}"), outcome)),
        }
    }

    /// Compares the results with the expected tests, and counts them. `console` is the kernel's log.
    pub(crate) fn judge(&self, jobs: &[Job], console: &str, stage: &mut Stage) {
        for job in jobs {
            match self.records.get(&job.title) {
                Some(record) => record.judge(&job.names, stage),
                None => Record::new(&job.title).judge(&job.names, stage),
            }
        }
        for complaint in complaints(console) {
            stage.fail(format!("kernel: {complaint}"));
        }
        if !self.done {
            let place = self.running.as_deref().unwrap_or("no test");
            stage.fail(format!("the guest did not come to its end; {place} was running"));
        }
    }
}

/// The lines of a kernel log that a healthy kernel does not print.
pub(super) fn complaints(console: &str) -> Vec<&str> {
    const SIGNS: [&str; 6] = [
        "Kernel panic",
        "BUG: ",
        "Oops: ",
        "general protection fault",
        "soft lockup",
        "possible recursive locking",
    ];
    // The kernel prints `WARNING: CPU: 0 PID: 1 at net/...`, newer kernels `WARNING: net/... at function, CPU#0`. lockdep and RCU begin lines so too.
    let warned = |line: &str| message(line).starts_with("WARNING: ");
    let bad = |line: &&str| SIGNS.iter().any(|sign| line.contains(sign)) || warned(line);
    console.lines().filter(bad).map(str::trim).collect()
}

/// A line of a kernel log without its time.
fn message(line: &str) -> &str {
    let line = line.trim();
    line.strip_prefix('[').and_then(|rest| rest.split_once("] ")).map_or(line, |(_, message)| message)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn jobs() -> Vec<Job> {
        let job = |title: &str, names: &[&str]| Job {
            title: title.to_owned(),
            program: "/x".into(),
            names: names.iter().map(|&name| name.to_owned()).collect(),
            some: false,
            threads: None,
            limit_ms: 1,
            again: false,
            makes_load: false,
            ipvs: false,
        };
        vec![job("tests::a", &["one", "two"]), job("tests::b", &["three"])]
    }

    fn verdict(text: &str, console: &str) -> Stage {
        let mut reader = Reader::default();
        text.lines().for_each(|line| drop(reader.line(line)));
        let mut stage = Stage::new("vm");
        reader.judge(&jobs(), console, &mut stage);
        stage
    }

    const B: &str = "@@begin tests::b\ntest three ... ok\ntest result: ok. 1 passed; 0 failed\n@@end tests::b\t0\n@@done\n";

    #[test]
    fn a_clean_run_passes() {
        let a = "@@begin tests::a\ntest one ... ok\ntest two ... ok\ntest result: ok. 2 passed; 0 failed\n@@end tests::a\t0\n";
        let stage = verdict(&format!("{a}{B}"), "[    1.0] Linux version");
        assert_eq!((stage.passed, stage.failures.len()), (3, 0), "{:?}", stage.failures);
    }

    #[test]
    fn an_executable_begins_after_what_the_guest_did_before() {
        let mut reader = Reader::default();
        let told =
            ["the kernel boots", "@@begin tests::a", "@@end tests::a\t0"].map(|line| reader.line(line));
        assert_eq!(told, [None, Some(Told::Begun), Some(Told::Ended("tests::a".to_owned()))]);
    }

    #[test]
    fn what_the_guest_ran_again_is_named_with_the_reason() {
        let first = "@@begin tests::a\ntest one ... FAILED\ntest two ... ok\n@@end tests::a\t101\n";
        let again = "@@again tests::a\tone: the machine stood still 3 s\n";
        let stage = verdict(
            &format!(
                "{first}{again}test one ... ok\ntest result: ok. 1 passed; 0 failed\n@@end tests::a\t0\n{B}"
            ),
            "",
        );
        assert_eq!((stage.passed, stage.failures.len()), (3, 0), "{:?}", stage.failures);
        assert_eq!(stage.again, ["tests::a::one (one: the machine stood still 3 s)"]);
        for second in ["", &format!("{again}test one ... FAILED\n@@end tests::a\t101\n")] {
            let stage = verdict(&format!("{first}{second}{B}"), "");
            assert_eq!((stage.passed, stage.again.len()), (2, 0), "{second}");
            assert_eq!(stage.failures, ["tests::a::one"], "{second}");
        }
        let killed = verdict(&format!("{first}{again}@@end tests::a\tkilled\n{B}"), "");
        assert_eq!(killed.failures, ["tests::a::one", "tests::a: hung, and was killed"]);
    }

    #[test]
    fn a_warning_of_the_kernel_fails() {
        let old = "[   12.3] WARNING: CPU: 0 PID: 77 at net/core/dev.c:3125 skb_warn_bad_offload+0xb5/0xc0";
        let new = "[   12.3] WARNING: net/core/dev.c:3125 at skb_warn_bad_offload+0xb5/0xc0, CPU#0: ip/77";
        for line in [old, new, "[    9.1] WARNING: suspicious RCU usage"] {
            assert_eq!(complaints(line), [line]);
        }
        assert_eq!(complaints("[    0.1] Spectre V2 : WARNING: Unprivileged eBPF is enabled"), [""; 0]);
    }

    #[test]
    fn a_panic_a_hang_and_a_missing_result_fail() {
        let begun = "@@begin tests::a\ntest one ... ok\ntest two ... ";
        let stage = verdict(&format!("{begun}\n"), "[ 9.0] Kernel panic - not syncing: x\n");
        assert_eq!(stage.passed, 1);
        let all = stage.failures.join("\n");
        for part in
            ["tests::a::two: no result", "tests::b::three: no result", "Kernel panic", "tests::a was running"]
        {
            assert!(all.contains(part), "{part} in {all}");
        }
        let stage = verdict(&format!("{begun}half@@end tests::a\tkilled\n@@done\n"), "");
        let killed = |failure: &String| failure == "tests::a: hung, and was killed";
        assert!(stage.failures.iter().any(killed), "{:?}", stage.failures);
    }
}
