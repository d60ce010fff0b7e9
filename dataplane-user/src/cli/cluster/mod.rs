//! `kubectl nodefence`: the binary as it speaks to the API server, for the whole cluster.

mod agent_rows;
mod agents;
mod args;
mod ask;
mod asked_rows;
mod error;
mod flag;
mod flag_rows;
mod known;
mod lines;
mod node_rows;
mod off_rows;
mod off_wait;
mod overview;
mod preflight;
mod preflight_rows;
#[cfg(test)]
mod printed_tests;
mod replacing;
#[cfg(test)]
mod requests_tests;
#[cfg(test)]
mod samples;
#[cfg(test)]
mod server_for_tests;
mod session;
mod settings;
mod settings_rows;
mod status_rows;
mod would;

use std::{ffi::OsString, path::Path, process::ExitCode, time::Duration};

use anyhow::Context as _;
use clap::Parser as _;

use super::{
    args::Format,
    crds::START_CLIENT,
    exit::Exit,
    fault::{tell, tell_usage},
    output::{print, say},
};
use crate::agent;
use args::{KubectlCli, KubectlVerb};
use lines::lines;
use session::Session;

#[cfg(test)]
pub(super) use printed_tests::schemas;

/// The name by which kubectl finds the binary and calls it.
const CALLED: &str = "kubectl-nodefence";

/// The first argument that says the same, where the binary has one name alone: in its image.
const VERB: &str = "kubectl";

/// The command line, where it is one for the API server: of a binary that is called by kubectl's name for it, or with `kubectl` as the first argument.
pub(super) fn called(typed: impl IntoIterator<Item = OsString>) -> Option<Vec<OsString>> {
    let mut typed: Vec<OsString> = typed.into_iter().collect();
    if Path::new(typed.first()?).file_name().is_some_and(|name| name == CALLED) {
        return Some(typed);
    }
    if *typed.get(1)? != *VERB {
        return None;
    }
    typed.remove(1);
    Some(typed)
}

/// Runs the binary as `kubectl nodefence`. Returns the process's exit code.
pub(super) fn main(typed: &[OsString]) -> ExitCode {
    let cli = match KubectlCli::try_parse_from(typed).and_then(KubectlCli::checked) {
        Ok(cli) => cli,
        Err(error) => {
            // clap reports `--help` and `--version` as errors too.
            let exit = if error.use_stderr() { Exit::Usage } else { Exit::Ok };
            return match tell_usage(&error, typed, None) {
                Ok(()) => exit.into(),
                Err(_) => Exit::Error.into(),
            };
        }
    };
    match run(&cli) {
        Ok(exit) => exit.into(),
        Err(error) => {
            let exit = error.downcast_ref::<error::Error>().map_or(Exit::Error, error::Error::exit);
            tell(cli.output, exit, &error);
            exit.into()
        }
    }
}

/// The way out where the API server does not answer.
const WITHOUT_SERVER: &str = "without the API server, `nodefence flag`, `unflag` and `mode` do the same on each sending node (docs/install.md)";

/// Names the way out, for the verbs that have one.
fn with_way_out(verb: &KubectlVerb, error: anyhow::Error) -> anyhow::Error {
    let has_one = matches!(verb, KubectlVerb::Flag(_) | KubectlVerb::Unflag(_) | KubectlVerb::Mode(_));
    match error.downcast_ref() {
        Some(error::Error::Request { .. }) if has_one => error.context(WITHOUT_SERVER),
        _ => error,
    }
}

fn run(cli: &KubectlCli) -> anyhow::Result<Exit> {
    let runtime = agent::runtime().context(START_CLIENT)?;
    let done = runtime.block_on(async {
        let session = Session::open(cli).await?;
        carry_out(cli, &session).await
    });
    // A name server that does not answer must not delay the end.
    runtime.shutdown_background();
    done.map_err(|error| with_way_out(&cli.verb, error))
}

/// Carries out a verb, and prints its result.
async fn carry_out(cli: &KubectlCli, session: &Session) -> anyhow::Result<Exit> {
    let format = cli.output;
    let namespace = cli.namespace.as_str();
    match &cli.verb {
        KubectlVerb::Flag(args) => {
            let report = flag::flag(session, args).await?;
            warn(&report.warnings);
            print(format, &report, |report| flag_rows::flagged(report, format))?;
        }
        KubectlVerb::Unflag(args) => {
            let report = flag::unflag(session, args).await?;
            print(format, &report, |report| flag_rows::unflagged(report, format))?;
        }
        KubectlVerb::Flags => {
            let list = flag::flags(session).await?;
            warn(&list.unread);
            print(format, &list, |list| flag_rows::flags(list, format))?;
        }
        KubectlVerb::Nodes(args) => {
            let list = overview::nodes(session, namespace, args).await?;
            warn(&node_rows::notes(&list));
            print(format, &list, |list| node_rows::nodes(list, format))?;
            return Ok(unknown(format, &list.not_found));
        }
        KubectlVerb::Status(args) => {
            let status = overview::status(session, namespace).await?;
            print(format, &status, status_rows::text)?;
            return Ok(if args.check && !status.problems.is_empty() { Exit::Findings } else { Exit::Ok });
        }
        KubectlVerb::Settings => print(format, &settings::show(session).await?, settings_rows::text)?,
        KubectlVerb::Mode(args) => {
            let mut report = settings::mode(session, args.mode.into()).await?;
            let mut missing = None;
            if let Some(seconds) = args.wait {
                let patience = Duration::from_secs(seconds.into());
                let waited = off_wait::wait(session, namespace, patience).await?;
                missing = waited.is_without_agents().then(|| error::Error::NoAgents(namespace.to_owned()));
                report.waited = Some(waited);
            }
            print(format, &report, settings_rows::text)?;
            return Ok(
                missing.map_or(Exit::Ok, |missing| none_waited_for(session, namespace, format, missing))
            );
        }
        KubectlVerb::Pause(args) => {
            print(format, &settings::pause(session, args).await?, settings_rows::text)?;
        }
        KubectlVerb::Resume(args) => {
            print(format, &settings::resume(session, args.all).await?, settings_rows::text)?;
        }
        KubectlVerb::Preflight(args) => {
            let report = preflight::preflight(session, namespace, args).await?;
            warn(&report.notes);
            print(format, &report, preflight_rows::text)?;
            let exit = unknown(format, &report.not_found);
            return Ok(if exit == Exit::Ok && report.has_findings() { Exit::Findings } else { exit });
        }
    }
    Ok(Exit::Ok)
}

/// Tells which requested nodes do not exist.
fn unknown(format: Format, names: &[String]) -> Exit {
    if names.is_empty() {
        return Exit::Ok;
    }
    tell(format, Exit::Unknown, &error::Error::UnknownNode(names.join("`, `")).into());
    Exit::Unknown
}

/// Tells that there was no agent to wait for, which is an error unless this process runs in a pod of the same namespace, as the Job before a
/// removal does. Its namespace is surely the right one, and a removal must not fail where no agent was ever scheduled.
fn none_waited_for(session: &Session, namespace: &str, format: Format, missing: error::Error) -> Exit {
    if session.own_namespace.as_deref() == Some(namespace) {
        warn(&[missing.to_string()]);
        return Exit::Ok;
    }
    tell(format, Exit::Error, &missing.into());
    Exit::Error
}

fn warn(warnings: &[String]) {
    for warning in warnings {
        say(&lines([format!("warning: {warning}")]));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn only_in_a_pod_of_the_namespace_it_is_no_error_that_no_agent_is_there() {
        let session = server_for_tests::Server::new().session().await.unwrap();
        for (own, exit) in
            [(None, Exit::Error), (Some("default"), Exit::Error), (Some("nodefence"), Exit::Ok)]
        {
            let session = Session {
                own_namespace: own.map(str::to_owned),
                client: session.client.clone(),
                server: session.server.clone(),
            };
            let missing = error::Error::NoAgents("nodefence".to_owned());
            assert_eq!(none_waited_for(&session, "nodefence", Format::Table, missing), exit, "{own:?}");
        }
    }

    #[test]
    fn where_the_server_is_away_the_way_out_is_named() {
        let said = |words: &[&str], error: error::Error| {
            let cli = KubectlCli::try_parse_from([&["kubectl-nodefence"], words].concat()).unwrap();
            with_way_out(&cli.verb, error.into())
        };
        let away = || error::Error::Request {
            verb: "get",
            resource: "/version".to_owned(),
            source: "connection refused".into(),
        };
        for words in [&["flag", "b", "--reason", "r"][..], &["unflag", "b"], &["mode", "off"]] {
            let error = said(words, away());
            let causes: Vec<String> = error.chain().map(ToString::to_string).collect();
            assert_eq!(causes, [WITHOUT_SERVER, "cannot get /version", "connection refused"]);
            assert!(error.is::<error::Error>(), "its exit code");
        }
        assert_eq!(said(&["flags"], away()).to_string(), "cannot get /version");
        let other = error::Error::Busy;
        let text = other.to_string();
        assert_eq!(said(&["mode", "off"], other).to_string(), text);
    }

    #[test]
    fn the_name_or_the_first_argument_decides() {
        let called = |typed: &[&str]| {
            let typed = called(typed.iter().map(OsString::from))?;
            Some(typed.iter().skip(1).map(|word| word.to_str().unwrap().to_owned()).collect::<Vec<_>>())
        };
        for program in ["kubectl-nodefence", "/usr/local/bin/kubectl-nodefence"] {
            assert_eq!(called(&[program, "kubectl"]).unwrap(), ["kubectl"]);
        }
        assert_eq!(called(&["/nodefence", "kubectl", "mode", "off"]).unwrap(), ["mode", "off"]);
        for typed in
            [&[][..], &["nodefence"], &["nodefence", "flag", "kubectl"], &["/kubectl-nodefence/nodefence"]]
        {
            assert_eq!(called(typed), None);
        }
    }
}
