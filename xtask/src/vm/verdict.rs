//! What a guest told over its serial lines, judged: one count per expected test.

use super::guest::{AGAIN, BEGIN, DONE, END, Run};
use crate::test::libtest::{Outcome, Parser};
use crate::test::local::judge;
use crate::test::tally::Stage;

/// What a line told.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Told {
    /// `file::test` and its outcome.
    Test(String, Outcome),
    /// An executable came to its end.
    Ended(String),
}

/// Reads the results line by line.
#[derive(Debug, Default)]
pub(crate) struct Reader {
    /// Executable that runs now.
    running: Option<String>,
    /// Finished or begun executables, in order; once more those of which failed tests were run again.
    parsers: Vec<(String, Parser, Vec<String>)>,
    /// Exit codes other than 0 that no failed test explains.
    crashed: Vec<String>,
    done: bool,
}

impl Reader {
    /// Takes one line; gives what it told.
    pub(crate) fn line(&mut self, line: &str) -> Option<Told> {
        if let Some(title) = line.strip_prefix(BEGIN).or_else(|| line.strip_prefix(AGAIN)) {
            let title = title.trim().to_owned();
            self.parsers.push((title.clone(), Parser::default(), Vec::new()));
            self.running = Some(title);
        } else if line.contains(END) {
            // A program killed in the middle of a line leaves the mark behind it.
            let rest = line.rsplit(END).next().unwrap_or_default();
            let told = |title: &str| {
                let parser =
                    self.parsers.iter().rfind(|(name, ..)| name == title).map(|(_, parser, _)| parser);
                parser.is_some_and(|p| p.outcomes().values().any(|outcome| *outcome != Outcome::Passed))
            };
            // 101 is what a failed test ends its executable with; without one it is as odd as any other code.
            if let Some((title, code)) = rest
                .trim()
                .rsplit_once(' ')
                .filter(|(title, code)| *code != "0" && !(*code == "101" && told(title)))
            {
                self.crashed.push(match code {
                    "137" => format!("{title}: hung or killed"),
                    _ => format!("{title}: ended with code {code}"),
                });
            }
            return self.running.take().map(Told::Ended);
        } else if line.starts_with(DONE) {
            self.done = true;
        } else {
            let (title, parser, printed) = self.parsers.last_mut().filter(|_| self.running.is_some())?;
            printed.push(line.to_owned());
            let (name, outcome) = parser.line(line)?;
            return Some(Told::Test(format!("{title}::{name}"), outcome));
        }
        None
    }

    /// Counts what was told against what was expected. `console` is the kernel's log.
    pub(crate) fn judge(&self, runs: &[Run], console: &str, stage: &mut Stage) {
        for run in runs {
            let of = self.parsers.iter().filter(|(title, ..)| *title == run.title);
            let tries: Vec<&Parser> = of.map(|(_, parser, _)| parser).collect();
            judge(&run.title, &run.names, &tries, stage);
        }
        for crash in &self.crashed {
            stage.fail(crash.clone());
        }
        for complaint in complaints(console) {
            stage.fail(format!("kernel: {complaint}"));
        }
        if !self.done {
            let place = self.running.as_deref().unwrap_or("no test");
            stage.fail(format!("the guest did not come to its end; {place} was running"));
        }
    }

    /// All that the failed executables printed.
    pub(crate) fn printed(&self) -> String {
        let failed = |parser: &Parser| parser.outcomes().values().any(|outcome| *outcome != Outcome::Passed);
        let parts = self.parsers.iter().filter(|(title, parser, _)| {
            failed(parser)
                || self.running.as_ref() == Some(title)
                || self.crashed.iter().any(|crash| crash.starts_with(title))
        });
        parts.map(|(title, _, printed)| format!("---- {title}\n{}\n", printed.join("\n"))).collect()
    }
}

/// Lines of a kernel log that no healthy run prints.
pub(super) fn complaints(console: &str) -> Vec<&str> {
    const SIGNS: [&str; 6] = [
        "Kernel panic",
        "BUG: ",
        "Oops: ",
        "general protection fault",
        "soft lockup",
        "possible recursive locking",
    ];
    // `WARNING: CPU: 0 PID: 1 at net/...`, on newer kernels `WARNING: net/... at function, CPU#0`; also lockdep's and RCU's.
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
    use crate::test::executables::Level;

    fn runs() -> Vec<Run> {
        let run = |title: &str, names: &[&str]| Run {
            title: title.to_owned(),
            executable: "/x".into(),
            names: names.iter().map(|&name| name.to_owned()).collect(),
            some: false,
            level: Level::Vm,
        };
        vec![run("tests::a", &["one", "two"]), run("tests::b", &["three"])]
    }

    fn verdict(text: &str, console: &str) -> Stage {
        let mut reader = Reader::default();
        text.lines().for_each(|line| drop(reader.line(line)));
        let mut stage = Stage::new("vm");
        reader.judge(&runs(), console, &mut stage);
        stage
    }

    #[test]
    fn a_clean_run_passes() {
        let stage = verdict(
            "@@begin tests::a\ntest one ... ok\ntest two ... ok\n@@end tests::a 0\n@@begin tests::b\ntest three ... ok\n@@end tests::b 0\n@@done\n",
            "[    1.0] Linux version",
        );
        assert_eq!((stage.passed, stage.failures.len()), (3, 0), "{:?}", stage.failures);
    }

    #[test]
    fn what_passes_when_it_is_run_again_passes_and_is_named() {
        let first = "@@begin tests::a\ntest one ... FAILED\ntest two ... ok\n@@end tests::a 101\n";
        let rest = "@@begin tests::b\ntest three ... ok\n@@end tests::b 0\n@@done\n";
        let stage =
            verdict(&format!("{first}@@again tests::a\ntest one ... ok\n@@end tests::a 0\n{rest}"), "");
        assert_eq!((stage.passed, stage.failures.len()), (3, 0), "{:?}", stage.failures);
        assert_eq!(stage.again, ["tests::a::one"]);
        for second in [
            "",
            "@@again tests::a\ntest one ... FAILED\n@@end tests::a 101\n",
            "@@again tests::a\n@@end tests::a 0\n",
            "@@again tests::a\ntest one ... FAILED\n@@end tests::a 101\n@@again tests::a\n@@end tests::a 0\n",
        ] {
            let stage = verdict(&format!("{first}{second}{rest}"), "");
            assert_eq!((stage.passed, stage.again.len()), (2, 0), "{second}");
            assert_eq!(stage.failures, ["tests::a::one"], "{second}");
        }
        let killed = format!("{first}@@again tests::a\n@@end tests::a 137\n{rest}");
        assert_eq!(verdict(&killed, "").failures, ["tests::a::one", "tests::a: hung or killed"]);
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
        let stage = verdict(
            "@@begin tests::a\ntest one ... ok\ntest two ... \n",
            "[ 9.0] Kernel panic - not syncing: x\n",
        );
        assert_eq!(stage.passed, 1);
        let all = stage.failures.join("\n");
        for part in
            ["tests::a::two: no result", "tests::b::three: no result", "Kernel panic", "tests::a was running"]
        {
            assert!(all.contains(part), "{part} in {all}");
        }
        let stage =
            verdict("@@begin tests::a\ntest one ... ok\ntest two ... half@@end tests::a 137\n@@done\n", "");
        assert!(
            stage.failures.iter().any(|failure| failure == "tests::a: hung or killed"),
            "{:?}",
            stage.failures
        );
    }
}
