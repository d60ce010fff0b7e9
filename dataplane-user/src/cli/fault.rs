//! Why a command failed: as a line for people, or as an object for programs.

use std::{ffi::OsString, io};

use clap::ValueEnum as _;

use super::{
    args::Format,
    environment::of_variable,
    exit::Exit,
    output::{causes, document, say},
};
use crate::report::{Fault, Reason};

impl Exit {
    /// The reason for an exit code. `None` where the command did its work.
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

/// The failure as an object for programs. `None` where the format is one for people.
fn object(format: Format, fault: Option<Fault>) -> Option<String> {
    let text = fault.and_then(|fault| document(format, &fault).transpose()?.ok())?;
    Some(text.trim_end().to_owned())
}

/// The text of an error with which a command ends.
pub(super) fn text(format: Format, exit: Exit, error: &anyhow::Error) -> String {
    let mut chain = error.chain().map(ToString::to_string);
    let message = chain.next().unwrap_or_default();
    // A transparent error has the same text as its cause. The text appears once.
    let nearest_first = chain.filter(|cause| !message.contains(cause.as_str())).collect();
    let line = || format!("nodefence: {}", causes(error));
    object(format, fault(exit, message, nearest_first)).unwrap_or_else(line)
}

/// Prints an error with which a command ends.
pub(super) fn tell(format: Format, exit: Exit, error: &anyhow::Error) {
    say(&text(format, exit, error));
}

/// The text about requested nodes that do not exist. `None` where all of them exist.
pub(super) fn not_found_text(format: Format, names: &[String]) -> Option<String> {
    let one = |name: &String| format!("there is no node `{name}` (see `nodefence nodes`)");
    let all = names.iter().map(one).collect::<Vec<_>>();
    if all.is_empty() {
        return None;
    }
    let lines = || all.iter().map(|line| format!("nodefence: {line}")).collect::<Vec<_>>().join("\n");
    Some(object(format, fault(Exit::Unknown, all.join("; "), Vec::new())).unwrap_or_else(lines))
}

/// Prints which requested nodes do not exist.
pub(super) fn not_found(format: Format, names: &[String]) {
    not_found_text(format, names).iter().for_each(|text| say(text));
}

/// The object about a wrong command line. `None` where the format is one for people. `blamed`: the environment variable that has the wrong
/// value.
pub(super) fn usage_object(format: Format, error: &clap::Error, blamed: Option<&str>) -> Option<String> {
    let notes = blamed.map(of_variable).into_iter().collect();
    object(format, fault(Exit::Usage, usage(error), notes))
}

/// Prints what is wrong with a command line, or the help that it asks for.
///
/// # Errors
/// Fails if the help cannot be written, unless its reader is gone.
pub(super) fn tell_usage(error: &clap::Error, typed: &[OsString], blamed: Option<&str>) -> io::Result<()> {
    let format = asked_for(typed).filter(|_| error.use_stderr());
    match format.and_then(|format| usage_object(format, error, blamed)) {
        Some(object) => say(&object),
        None => {
            let printed = error.print();
            blamed.map(of_variable).iter().for_each(|line| say(line));
            match printed {
                Err(error) if error.kind() != io::ErrorKind::BrokenPipe => return Err(error),
                _ => {}
            }
        }
    }
    Ok(())
}

/// The parser's message without its hints.
fn usage(error: &clap::Error) -> String {
    let text = error.render().to_string();
    let text = text.split("\n\n").next().unwrap_or_default();
    let words: Vec<&str> = text.lines().map(str::trim).collect();
    words.join(" ").trim_start_matches("error: ").to_owned()
}

/// The format for programs that a command line requests which cannot be parsed as a whole. Where it names no format, the environment
/// decides.
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
