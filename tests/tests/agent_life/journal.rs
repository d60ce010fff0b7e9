//! The log of an agent whose standard error goes to the journal.

use std::{fs, os::unix::fs::MetadataExt as _, process::Stdio};

use anyhow::{Context as _, Result, ensure};
use nix::sys::signal::Signal;
use nodefence_tests::{Proc, client::wait_until};
use serde_json::Value;

use super::{READY, start};

/// Each line begins with its priority if standard error is the stream that `JOURNAL_STREAM` names.
#[test]
fn the_journal_is_told_how_grave_each_line_is() -> Result<()> {
    let (ns, mut agent) = start(&[])?;
    agent.terminate()?;
    for (is_journal, format) in [(true, "text"), (true, "json"), (false, "text")] {
        let path = agent.cluster_file().with_file_name(format!("{is_journal}-{format}"));
        let log = fs::File::create(&path)?;
        let meta = log.metadata()?;
        let inode = if is_journal { meta.ino() } else { meta.ino() + 1 };
        let begin = |more: &[&str]| {
            let mut command = agent.command(&[more, &["--log-format", format]].concat());
            command.env("JOURNAL_STREAM", format!("{}:{inode}", meta.dev())).env("RUST_LOG", "debug");
            command.stdout(Stdio::null()).stderr(fs::File::options().append(true).open(&path)?);
            Proc::spawn(&ns, command)
        };
        let mut runs = begin(&[])?;
        wait_until("the agent answers", READY, || agent.serves(runs.pid().as_raw()))?;
        runs.signal(Signal::SIGTERM)?;
        ensure!(runs.wait(READY)?.success());
        // This agent cannot start.
        let ended = begin(&["--cluster-file", "/nowhere"])?.wait(READY)?;
        ensure!(ended.code() == Some(1), "{ended}");
        let text = fs::read_to_string(&path)?;
        let mut seen = Vec::new();
        for line in text.lines() {
            let (prefix, rest) =
                if is_journal { line.split_at_checked(3).context("a short line")? } else { ("", line) };
            let (level, of_level) = match format {
                "json" => {
                    let row: Value = serde_json::from_str(rest).with_context(|| rest.to_owned())?;
                    // Lines of libraries have no event.
                    let event = row["event"].as_str().unwrap_or_default().to_owned();
                    (row["level"].as_str().context("no level")?.to_owned(), event)
                }
                _ => {
                    let is_last = rest.starts_with("nodefence: ");
                    let level = if is_last { Some("ERROR") } else { rest.split_whitespace().nth(1) };
                    let level = level.context("no level")?.to_owned();
                    let event = rest.split_once("event=\"").and_then(|(_, rest)| rest.split_once('"'));
                    (level, event.map_or_else(String::new, |(event, _)| event.to_owned()))
                }
            };
            let expected = match (is_journal, level.as_str()) {
                (false, _) => "",
                (true, "ERROR") => "<3>",
                (true, "WARN") => "<4>",
                (true, "INFO") => "<6>",
                (true, _) => "<7>",
            };
            ensure!(prefix == expected, "{line}");
            seen.push(of_level);
        }
        let missing = ["stage-over", "started", "ended", "start-failed", "failed"]
            .into_iter()
            .find(|event| !seen.iter().any(|seen| seen == event));
        ensure!(missing.is_none(), "{missing:?} is missing in {text}");
    }
    Ok(())
}
