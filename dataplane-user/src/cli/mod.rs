//! The verbs of the `nodefence` binary. All but `agent`, `detach` and `doctor` only talk to the agent's socket.

mod args;
mod audit;
mod claims;
mod doctor;
mod exit;
mod output;
mod status;
mod tables;
mod values;
mod verbs;

pub use args::{AgentArgs, Cli, Verb};
pub use exit::Exit;

use clap::Parser as _;

/// Runs the binary; the process ends with what is returned.
pub fn main() -> std::process::ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => {
            // `--help` and `--version` come this way too.
            let exit = if error.use_stderr() { Exit::Usage } else { Exit::Ok };
            let _closed_pipe = error.print();
            return exit.into();
        }
    };
    match verbs::run(cli) {
        Ok(exit) => exit.into(),
        Err(error) => {
            output::say(&format!("nodefence: {}", causes(&error)));
            Exit::of(&error).into()
        }
    }
}

/// The error and its causes in one line; a cause that the text before it has already said is left out.
fn causes(error: &anyhow::Error) -> String {
    error.chain().map(ToString::to_string).fold(String::new(), |said, cause| match said {
        said if said.contains(&cause) => said,
        said if said.is_empty() => cause,
        said => format!("{said}: {cause}"),
    })
}
