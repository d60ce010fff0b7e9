use std::path::PathBuf;

use clap::Args;

use super::shared::{Help, PIN_DIR};
use crate::cli::values::reason;

const OFF: Help = Help {
    facts: "\
Verdicts are taken back first: traffic passes before the command returns. Then IPVS is restored, every program of ours is detached, and the \
pins are removed. The agent's process stays, attaches nothing, and `status` begins with OFF. Flags are kept, each with its end. While the \
agent is off it refuses to flag nodes (exit code 4).

`off.json` in the run folder says who turned the agent off, when and why. The agent is off as long as the file is there, even if nobody can \
read it. Where the run folder is in /run, a restart of the machine removes it.

Where no agent runs, the command itself removes what an agent left, and the next agent starts off. Where an agent is starting and does not \
serve its socket yet, the command waits until the agent is off.",
    short: "\
At once, without the API server. It outlives the agent: the next agent is off too. Off wins over the mode of the agent, of commands and of \
the settings. It ends with `nodefence on`.

Example:
  nodefence off --reason \"is it nodefence? INC-4711\"",
};

/// Why it is turned off, and what an agent left.
#[derive(Clone, Debug, Args)]
#[command(after_help = OFF.short, after_long_help = OFF.long())]
pub struct OffArgs {
    /// Why, for whoever reads `status`
    ///
    /// It may have 1,000 characters.
    #[arg(long, value_name = "TEXT", default_value = "", hide_default_value = true, value_parser = reason)]
    pub reason: String,

    /// Folder of the pins, where no agent runs; must end in nodefence/v3, inside a BPF filesystem
    #[arg(long, value_name = "DIR", default_value = PIN_DIR)]
    pub pin_dir: PathBuf,
}

const ON: Help = Help {
    facts: "\
The process starts anew with its command line, as after a restart: it attaches, reads the flags that it kept, and cuts the nodes whose flags \
have not ended. The command waits up to 30 s for that. An agent that waits for its source of nodes longer than that goes on waiting, and the \
command says so.

Where the settings in the API server turn the agent off, the command is refused (exit code 4), or says that the agent stays off.",
    short: "\
Where no agent runs, the next agent starts on.

Example:
  nodefence on",
};

/// Nothing but what all commands have.
#[derive(Clone, Copy, Debug, Args)]
#[command(after_help = ON.short, after_long_help = ON.long())]
pub struct OnArgs {}
