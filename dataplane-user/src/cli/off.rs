//! `off` and `on`: by the agent, or by the command itself where no agent runs.

use std::{
    fmt::Write as _,
    path::Path,
    thread::sleep,
    time::{Duration, Instant},
};

use anyhow::Context as _;
use jiff::Timestamp;

use super::{
    adjust,
    args::{Cli, Format, OffArgs},
    exit::Exit,
    output::{count, print, printable, warn},
};
use crate::{
    agent::{Lock, LockError, requester},
    dataplane::DetachReport,
    flags::{FlagStore, now},
    off::{Off, OffFile, Owner, take_back},
    report::{Client, ClientError, OffReport, OffRow, OffStatus, OnReport, OrOff, Request, Server},
};

/// How long the agent may take to take all back: IPVS alone may take 10 s.
const PATIENCE: Duration = Duration::from_secs(60);
/// How long an agent that starts may take until it answers.
const STARTS: Duration = Duration::from_secs(30);
/// How long an agent that starts may take to find the file, and to be off.
const FINDS: Duration = Duration::from_secs(5);
/// How soon to try again.
const AGAIN: Duration = Duration::from_millis(50);
/// The advice where an agent runs and does not answer.
pub(super) const END_IT: &str = "end it, and call this command once more";

/// Turns the agent off.
pub(super) fn off(cli: &Cli, args: &OffArgs) -> anyhow::Result<Exit> {
    let report = turn_off(cli, args)?;
    warn(&report.warnings);
    print(cli.output, &report, off_text)?;
    Ok(Exit::Ok)
}

fn turn_off(cli: &Cli, args: &OffArgs) -> anyhow::Result<OffReport> {
    let socket = cli.socket();
    let begun = Instant::now();
    let request = Request::Off { reason: args.reason.clone(), sudo_user: adjust::sudo_user() };
    let mut written: Option<Instant> = None;
    loop {
        match ask::<OffReport>(&socket, &request) {
            // This command's own file may have turned the agent off.
            Ok(report) => return Ok(OffReport { was_off: report.was_off && written.is_none(), ..report }),
            Err(error) if !is_away(&error) => return Err(error.into()),
            Err(error) => {
                // An agent that found the file has no lock for a moment, while it starts anew.
                if written.is_none_or(|written| written.elapsed() > FINDS) {
                    match Lock::take(&cli.run_dir, END_IT) {
                        Ok(lock) => return alone(cli, args, &lock),
                        Err(LockError::Busy { .. }) if begun.elapsed() < STARTS => {}
                        Err(busy @ LockError::Busy { .. }) => {
                            return Err(anyhow::Error::from(busy).context(error).context(SILENT));
                        }
                        Err(other) => return Err(other.into()),
                    }
                }
                // An agent starts and does not answer yet. It looks for the file meanwhile.
                if written.is_none() && !OffFile::new(&cli.run_dir).is_there() {
                    write(&cli.run_dir, args)?;
                    written = Some(Instant::now());
                }
                sleep(AGAIN);
            }
        }
    }
}

/// Where an agent has the lock and does not answer.
pub(super) const SILENT: &str =
    "off.json is written, so the next agent is off, but the agent that runs has not answered for 30 s";

fn write(run_dir: &Path, args: &OffArgs) -> anyhow::Result<Off> {
    let off = Off::now(requester(adjust::sudo_user().as_deref()), args.reason.clone());
    OffFile::new(run_dir).write(&off)?;
    Ok(off)
}

/// Whether nobody listens.
fn is_away(error: &ClientError) -> bool {
    matches!(error, ClientError::Unreachable { .. }) && !error.forbidden()
}

fn ask<T: serde::de::DeserializeOwned>(socket: &Path, request: &Request) -> Result<T, ClientError> {
    let mut client = Client::connect(socket)?;
    client.set_patience(PATIENCE)?;
    client.ask(request)
}

/// No agent runs: does what the agent would do.
fn alone(cli: &Cli, args: &OffArgs, _lock: &Lock) -> anyhow::Result<OffReport> {
    let before = OffFile::new(&cli.run_dir).read();
    let was_off = before.is_some();
    let off = match before {
        Some(off) => off,
        None => write(&cli.run_dir, args)?,
    };
    // A killed agent leaves its socket behind.
    Server::remove_stale(&cli.socket())?;
    let taken = take_back(&cli.run_dir, &args.pin_dir, Owner::Other)?;
    let mut warnings: Vec<String> =
        taken.not_restored.as_ref().map(super::output::causes).into_iter().collect();
    warnings.extend(off.problem.clone());
    Ok(OffReport {
        was_off,
        off: OffRow::of_file(off),
        pid: None,
        removed: taken.removed,
        restored: taken.restored,
        flags: FlagStore::new(&cli.run_dir).count(now()),
        warnings,
    })
}

/// Turns the agent on.
pub(super) fn on(cli: &Cli) -> anyhow::Result<Exit> {
    let report = turn_on(cli)?;
    warn(&report.warnings);
    print(cli.output, &report, on_text)?;
    Ok(Exit::Ok)
}

fn turn_on(cli: &Cli) -> anyhow::Result<OnReport> {
    let socket = cli.socket();
    let begun = Instant::now();
    let request = Request::On { sudo_user: adjust::sudo_user() };
    loop {
        match ask::<OnReport>(&socket, &request) {
            Ok(report) if report.was.is_some() && report.still.is_none() => {
                return Ok(await_run(&socket, report));
            }
            Ok(report) => return Ok(report),
            Err(error) if !is_away(&error) => return Err(error.into()),
            Err(error) => match Lock::take(&cli.run_dir, END_IT) {
                Ok(_lock) => {
                    let file = OffFile::new(&cli.run_dir);
                    let was = file.read().map(OffRow::of_file);
                    let path = file.remove()?.then(|| file.path().to_owned());
                    return Ok(OnReport {
                        was,
                        still: by_settings(&cli.run_dir),
                        pid: None,
                        runs: false,
                        file: path,
                        warnings: Vec::new(),
                    });
                }
                // An agent starts.
                Err(LockError::Busy { .. }) if begun.elapsed() < STARTS => sleep(AGAIN),
                Err(LockError::Busy { .. }) => return Err(anyhow::Error::from(error).context(STILL_STARTS)),
                Err(other) => return Err(other).context("no agent answers"),
            },
        }
    }
}

/// What the settings in the API server said last to an agent of this run folder, if that was to be off. The next agent starts off unless they say
/// otherwise.
fn by_settings(run_dir: &Path) -> Option<OffRow> {
    let off = OffFile::of_settings(run_dir).read()?;
    Some(OffRow::of_settings(off.since.unwrap_or_else(Timestamp::now)))
}

pub(super) const STILL_STARTS: &str = "an agent is starting, and does not answer yet";

/// Waits until the agent runs.
fn await_run(socket: &Path, mut report: OnReport) -> OnReport {
    let begun = Instant::now();
    while !report.runs && begun.elapsed() < STARTS {
        let answer = ask::<OrOff<serde_json::Value>>(socket, &Request::Status);
        report.runs = matches!(answer, Ok(OrOff::Runs(_)));
        if !report.runs {
            sleep(AGAIN);
        }
    }
    if !report.runs {
        let late = "the agent is starting, and does not answer yet: its log says what it waits for";
        report.warnings.push(late.to_owned());
    }
    report
}

/// The text of the status of an agent that is off.
pub(super) fn status(status: &OffStatus) -> String {
    let mut text = format!("OFF: {}\n", printable(&status.why));
    let mut line = |name: &str, value: &str| {
        let _ = writeln!(text, "{name:<16}{}", printable(value));
    };
    for problem in &status.problems {
        line("Not taken back", problem);
    }
    if let Some(problem) = &status.off.problem {
        line("File", problem);
    }
    let OffStatus { version, pid, started, .. } = status;
    line("Agent", &format!("nodefence {version}, process {pid}, off since {started}"));
    line("Flags", &flags(status.flags));
    text
}

fn flags(kept: Option<usize>) -> String {
    match kept {
        Some(0) => "none is kept".to_owned(),
        Some(kept) => format!("{} kept for `nodefence on`", count(kept, "flag")),
        None => "the flags file cannot be read".to_owned(),
    }
}

pub(super) fn off_text(report: &OffReport) -> String {
    let OffReport { was_off, off, pid, removed, restored, flags: kept, .. } = report;
    let before = if *was_off { "was off already: " } else { "" };
    let mut text = format!("{before}{}\n", printable(&off.text()));
    let DetachReport { links, filters, qdiscs, maps } = removed;
    let done = [
        (*links as usize, "link"),
        (*filters as usize, "clsact filter"),
        (*qdiscs as usize, "clsact qdisc"),
        (*maps as usize, "pinned map"),
    ];
    let done: Vec<String> = done
        .into_iter()
        .filter(|(number, _)| *number > 0)
        .map(|(number, what)| count(number, what))
        .collect();
    if !done.is_empty() {
        let _ = writeln!(text, "removed {}", done.join(", "));
    }
    if *restored > 0 {
        let _ = writeln!(text, "restored {}", count(*restored, "IPVS destination"));
    }
    let _ = writeln!(text, "flags: {}", flags(*kept));
    if pid.is_none() {
        text.push_str("no agent runs; the next one starts off\n");
    }
    text
}

pub(super) fn on_text(report: &OnReport) -> String {
    let was = |row: &OffRow| format!("it was {}", printable(&row.text()));
    let agent = match (report.runs, report.pid) {
        (true, _) => "the agent runs",
        (false, Some(_)) => "the agent is starting",
        (false, None) => "no agent runs; the next one starts on",
    };
    match (&report.was, &report.still) {
        (_, Some(still)) => format!("the agent stays {}; {}\n", printable(&still.text()), still.end()),
        (Some(row), None) => format!("{agent}; {}\n", was(row)),
        (None, None) => format!("{agent}; it was not off\n"),
    }
}

/// The status of an agent as `status` and `mode` print it.
pub(super) fn print_status(format: Format, report: &OffStatus) -> anyhow::Result<()> {
    print(format, report, status)
}

#[cfg(test)]
#[path = "off_tests.rs"]
mod tests;
