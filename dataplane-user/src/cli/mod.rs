//! The verbs of the `nodefence` binary. All but `agent`, `crds`, `detach` and `doctor` only talk to the agent's socket. Where no agent runs,
//! `off` and `on` do the work themselves.

mod adjust;
mod args;
mod audit;
mod claims;
mod cluster;
mod crds;
mod doctor;
mod environment;
mod exit;
mod explain;
mod fault;
mod flag;
#[cfg(test)]
pub(crate) mod golden;
mod journal;
mod log;
mod needs;
mod nodes;
mod off;
mod output;
mod ready;
#[cfg(test)]
mod reference;
mod replacement;
#[cfg(test)]
mod schemas;
mod status;
mod status_wide;
mod tables;
mod values;
mod verbs;

pub use args::{AgentArgs, Cli, Verb};
pub use exit::Exit;

use clap::{CommandFactory as _, FromArgMatches as _};

use crate::source::Objects;

/// Runs the binary: as `kubectl nodefence` where it is called so. Returns the process's exit code.
pub fn main() -> std::process::ExitCode {
    match cluster::called(std::env::args_os()) {
        Some(typed) => cluster::main(&typed),
        None => main_with(None),
    }
}

/// As [`main`], for another program whose agent follows these objects in place of a cluster file.
pub fn main_with(objects: Option<Objects>) -> std::process::ExitCode {
    let mut command = environment::with_variables(Cli::command());
    if objects.is_some() {
        command = command
            .mut_subcommand("agent", |agent| agent.mut_group(args::SOURCE, |source| source.required(false)));
    }
    let typed: Vec<_> = std::env::args_os().collect();
    let matches = command.try_get_matches_from_mut(&typed);
    let parsed = matches.and_then(|matches| {
        needs::check(&matches, &mut command)?;
        Cli::from_arg_matches(&matches)
    });
    let parsed = parsed.and_then(Cli::checked);
    let cli = match parsed {
        Ok(cli) => cli,
        Err(error) => {
            // clap reports `--help` and `--version` as errors too.
            let exit = if error.use_stderr() { Exit::Usage } else { Exit::Ok };
            let blamed = environment::blamed(&error, &command, &typed);
            return match fault::tell_usage(&error, &typed, blamed.as_deref()) {
                Ok(()) => exit.into(),
                Err(error) => {
                    let error = anyhow::Error::from(error).context(output::NOT_TAKEN);
                    fault::tell(args::Format::Table, Exit::Error, &error);
                    Exit::Error.into()
                }
            };
        }
    };
    let format = cli.output;
    match verbs::run(cli, objects) {
        Ok(exit) => exit.into(),
        Err(error) => {
            let exit = Exit::of(&error);
            fault::tell(format, exit, &error);
            exit.into()
        }
    }
}
