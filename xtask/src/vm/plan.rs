//! A guest's plan, and its reports over the second serial line.

use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use serde::{Deserialize, Serialize};

use crate::test::job::{End, Event, Job};

/// The parameter of the kernel's command line that names the plan. Init exports `nodefence.x=y` as `NODEFENCE_X=y`.
pub(super) const PARAMETER: &str = "nodefence.plan";
/// The name of this parameter in init's environment.
pub(super) const VARIABLE: &str = "NODEFENCE_PLAN";
/// The folder of plans and programs in the guest.
pub(super) const FOLDER: &str = "nodefence";

/// The work of a guest, one piece after the other.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Plan {
    /// The environment of all pieces.
    pub(super) environment: Vec<(String, String)>,
    pub(super) work: Vec<Work>,
}

/// One piece of the work.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Work {
    /// A test executable.
    Tests(Job),
    /// Another program. Its output and its exit code are reported.
    Program { name: String, program: PathBuf, arguments: Vec<String>, ipvs: bool },
}

impl Plan {
    /// The plan's path in the guest.
    pub(super) fn at(name: &str) -> String {
        format!("{FOLDER}/{name}.json")
    }

    pub(super) fn load(file: &Path) -> Result<Self> {
        let text =
            std::fs::read_to_string(file).with_context(|| format!("cannot read {}", file.display()))?;
        serde_json::from_str(&text).with_context(|| format!("{} is no plan", file.display()))
    }
}

const BEGIN: &str = "@@begin ";
const AGAIN: &str = "@@again ";
const END: &str = "@@end ";
/// The last line. It says that the whole plan was run.
pub(super) const DONE: &str = "@@done";
/// The character between the parts of a line.
const BETWEEN: char = '\t';

/// The line that reports an event of a piece of work.
pub(super) fn line(title: &str, event: Event<'_>) -> String {
    match event {
        Event::Begin => format!("{BEGIN}{title}"),
        Event::Again(why) => format!("{AGAIN}{title}{BETWEEN}{why}"),
        Event::Line(line) => line.to_owned(),
        Event::End(end) => {
            let code = match end {
                End::Code(Some(code)) => code.to_string(),
                End::Code(None) => "signal".to_owned(),
                End::Killed => "killed".to_owned(),
            };
            format!("{END}{title}{BETWEEN}{code}")
        }
    }
}

/// Reads such a line: the piece of work, if the line names it, and the event.
pub(super) fn read(line: &str) -> (Option<&str>, Event<'_>) {
    if let Some(title) = line.strip_prefix(BEGIN) {
        return (Some(title), Event::Begin);
    }
    if let Some((title, why)) = line.strip_prefix(AGAIN).and_then(|rest| rest.split_once(BETWEEN)) {
        return (Some(title), Event::Again(why));
    }
    // If a program was killed in the middle of a line, the mark follows that half of a line.
    if let Some((title, code)) = line.rsplit_once(END).and_then(|(_, rest)| rest.split_once(BETWEEN)) {
        let end = match code {
            "killed" => End::Killed,
            code => End::Code(code.parse().ok()),
        };
        return (Some(title), Event::End(end));
    }
    (None, Event::Line(line))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_guest_tells_is_read_back() {
        for event in [
            Event::Begin,
            Event::Again("one: it stood still"),
            Event::End(End::Killed),
            Event::End(End::Code(None)),
            Event::End(End::Code(Some(101))),
        ] {
            assert_eq!(read(&line("tests::file (ipvs)", event)), (Some("tests::file (ipvs)"), event));
        }
        assert_eq!(read("test one ... ok"), (None, Event::Line("test one ... ok")));
        let half = format!("test one ... {}", line("a", Event::End(End::Killed)));
        assert_eq!(read(&half), (Some("a"), Event::End(End::Killed)));
    }
}
