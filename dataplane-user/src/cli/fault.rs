//! How a command says why it failed: as a line for people, or as an object for programs.

use std::ffi::OsString;

use clap::ValueEnum as _;

use super::{
    args::Format,
    exit::Exit,
    output::{causes, document, say},
};
use crate::report::{Fault, Reason};

impl Exit {
    /// Why a command ends so; `None` where it did what it was to do.
    const fn reason(self) -> Option<Reason> {
        match self {
            Self::Ok | Self::Findings => None,
            Self::Error => Some(Reason::Failed),
            Self::Usage => Some(Reason::Usage),
            Self::Unreachable => Some(Reason::Unreachable),
            Self::Refused => Some(Reason::Refused),
            Self::Busy => Some(Reason::Busy),
            Self::Unknown => Some(Reason::NotFound),
        }
    }
}

fn fault(exit: Exit, message: String, causes: Vec<String>) -> Option<Fault> {
    Some(Fault { exit_code: exit as u8, reason: exit.reason()?, message, causes })
}

/// Tells of an error that reached the edge.
pub(super) fn tell(format: Format, exit: Exit, error: &anyhow::Error) {
    let line = || say(&format!("nodefence: {}", causes(error)));
    let mut chain = error.chain().map(ToString::to_string);
    let message = chain.next().unwrap_or_default();
    // Of a transparent error the cause says the same once more.
    let causes = chain.filter(|cause| !message.contains(cause.as_str())).collect();
    say_as(format, fault(exit, message, causes), line);
}

/// Tells that what was asked for by its name is not there.
pub(super) fn not_found(format: Format, names: &[String]) {
    let one = |name: &String| format!("there is no node `{name}` (see `nodefence nodes`)");
    let all = names.iter().map(one).collect::<Vec<_>>();
    let lines = || all.iter().for_each(|line| say(&format!("nodefence: {line}")));
    if !all.is_empty() {
        say_as(format, fault(Exit::Unknown, all.join("; "), Vec::new()), lines);
    }
}

/// Tells of a command line that is wrong. `blamed`: the variable of the environment that has the wrong value.
pub(super) fn tell_usage(error: &clap::Error, typed: &[OsString], blamed: Option<&str>) {
    let blamed = blamed.map(|name| format!("This value is that of the environment's variable {name}."));
    let lines = || {
        let _closed_pipe = error.print();
        blamed.iter().for_each(|line| say(line));
    };
    match asked_for(typed) {
        Some(format) if error.use_stderr() => {
            say_as(format, fault(Exit::Usage, usage(error), blamed.iter().cloned().collect()), lines);
        }
        _ => lines(),
    }
}

fn say_as(format: Format, fault: Option<Fault>, lines: impl FnOnce()) {
    match fault.and_then(|fault| document(format, &fault).transpose()?.ok()) {
        Some(text) => say(text.trim_end()),
        None => lines(),
    }
}

/// The parser's words without its hints.
fn usage(error: &clap::Error) -> String {
    let text = error.render().to_string();
    let text = text.split("\n\n").next().unwrap_or_default();
    let words: Vec<&str> = text.lines().map(str::trim).collect();
    words.join(" ").trim_start_matches("error: ").to_owned()
}

/// Which format for programs the command line asks for, where it cannot be parsed as a whole; else the environment.
fn asked_for(typed: &[OsString]) -> Option<Format> {
    let mut words = typed.iter().skip(1).map(|word| word.to_string_lossy()).take_while(|word| word != "--");
    let mut last = None;
    while let Some(word) = words.next() {
        let value = match &*word {
            "-o" | "--output" => words.next().map(|value| value.to_string()),
            word => {
                let long = word.strip_prefix("--output=");
                let short = || word.strip_prefix("-o").map(|value| value.trim_start_matches('='));
                long.or_else(short).map(str::to_owned)
            }
        };
        last = value.or(last);
    }
    let name = last.or_else(|| std::env::var("NODEFENCE_OUTPUT").ok())?;
    let format = Format::from_str(&name, false).ok()?;
    matches!(format, Format::Json | Format::Yaml).then_some(format)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_format_is_found_in_a_command_line_that_is_wrong() {
        let asked = |line: &str| asked_for(&line.split_whitespace().map(OsString::from).collect::<Vec<_>>());
        for (line, format) in [
            ("nodefence flag -o json", Some(Format::Json)),
            ("nodefence -ojson flag", Some(Format::Json)),
            ("nodefence flag -o=yaml", Some(Format::Yaml)),
            ("nodefence --output json flag --for soon", Some(Format::Json)),
            ("nodefence --output=yaml dance", Some(Format::Yaml)),
            ("nodefence nodes -o json -o table --colour", None),
            ("nodefence nodes -o xml", None),
            ("nodefence nodes -o", None),
            ("nodefence flag -- -o json", None),
            ("nodefence flag", None),
        ] {
            assert_eq!(asked(line), format, "{line}");
        }
    }

    #[test]
    fn every_exit_code_of_a_failure_has_a_reason() {
        let reasons = [
            (Exit::Error, "failed"),
            (Exit::Usage, "usage"),
            (Exit::Unreachable, "unreachable"),
            (Exit::Refused, "refused"),
            (Exit::Busy, "busy"),
            (Exit::Unknown, "not_found"),
        ];
        for (exit, reason) in reasons {
            let fault = fault(exit, "why".to_owned(), Vec::new()).unwrap();
            let json = serde_json::to_value(&fault).unwrap();
            assert_eq!((&json["reason"], &json["exit_code"]), (&reason.into(), &(exit as u8).into()));
        }
        for exit in [Exit::Ok, Exit::Findings] {
            assert_eq!(fault(exit, "why".to_owned(), Vec::new()), None);
        }
    }
}
