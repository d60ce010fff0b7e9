//! The command line. The texts of `--help` are also the page `docs/cli.md` (`cli/reference.rs`).

mod agent;
mod api_server;
mod audit;
mod controller;
mod crds;
mod flags;
mod lists;
mod machine;
mod off;
mod running;
mod shared;

pub use agent::AgentArgs;
pub(super) use agent::SOURCE;
pub(super) use audit::{RepairArgs, StatusArgs};
pub(super) use controller::ControllerArgs;
pub(super) use crds::CrdsArgs;
pub(super) use flags::{FlagArgs, UnflagArgs};
pub(super) use lists::{FlowsArgs, NodesArgs};
pub(super) use machine::{CompletionsArgs, DetachArgs, DoctorArgs, GuardArgs, ManArgs};
pub(super) use off::{OffArgs, OnArgs};
pub(super) use running::{LogLevelArgs, ModeArgs};
pub(super) use shared::PIN_DIR;

use std::path::PathBuf;

use clap::{
    CommandFactory as _, Parser, Subcommand, ValueEnum,
    builder::{OsStringValueParser, TypedValueParser as _},
};

const GLOBAL: &str = "Options of all commands";

const EXIT_CODES: &str =
    "Every option is a variable of the environment too, which its help names. The command line takes precedence over the variable.

Exit codes:
  0  done
  1  something failed, and the message says what
  2  the command line, or a variable of the environment, is wrong
  3  no agent answers at the socket
  4  refused: it would be unwise, or is not allowed
  5  something was found: by audit, doctor, status --check or flag --strict
  6  another agent runs on this node
  7  there is no such node, or no such Service";

const EXAMPLES: &str = "Examples:
  # Run the agent on this node; the devices are found by routes and policy rules.
  nodefence agent --cluster-file /etc/nodefence/cluster.yaml

  # Node-b hangs: refuse to send it anything, for ten minutes at most.
  nodefence flag node-b --for 10m --reason \"disk is gone\"

  # What is cut, and how often?
  nodefence nodes --flagged
  nodefence counters

  # It is back.
  nodefence unflag node-b

  # Let every agent know: a flag in the cluster file.
  #   flags:
  #     - { node: node-b, until: 2026-12-01T00:00:00Z, reason: disk }

  # Try it without cutting: counted in `nodefence counters` as observed.
  nodefence agent --cluster-file cluster.yaml --interface eth0 --mode observe

  # Something does not work: what is in the way?
  nodefence doctor";

/// Refuses to send traffic to backends on flagged Kubernetes nodes.
///
/// An agent runs on each node that sends. `flag` tells the agent of the machine it is typed on that a node hangs: from then on
/// that machine sends its backends nothing, and clients are reset or refused at once instead of waiting.
///
/// Every verb concerns the node that it runs on. A flag that is set on one node is known to that node's agent alone. The cluster
/// file can carry flags to all nodes.
///
/// Results go to standard output. Warnings and errors go to standard error. NO_COLOR turns colours off; there are none in a pipe.
#[derive(Debug, Parser)]
#[command(
    name = "nodefence",
    version,
    propagate_version = true,
    max_term_width = 110,
    after_help = EXIT_CODES,
    after_long_help = format!("{EXAMPLES}\n\n{EXIT_CODES}")
)]
pub struct Cli {
    /// The agent's socket [default: agent.sock in the run folder]
    // An empty path, which is usual in unit files, means no path. The usual parser of paths would refuse it.
    #[arg(long, global = true, value_name = "PATH", help_heading = GLOBAL,
          value_parser = OsStringValueParser::new().map(PathBuf::from))]
    pub socket: Option<PathBuf>,

    /// Folder of the agent's lock, socket and flags
    #[arg(long, global = true, value_name = "DIR", default_value = "/run/nodefence", help_heading = GLOBAL)]
    pub run_dir: PathBuf,

    /// How to print results; json and yaml are one object, and so is an error (docs/json.md)
    #[arg(short, long, global = true, value_name = "FORMAT", default_value = "table", help_heading = GLOBAL)]
    pub output: Format,

    /// What to do
    #[command(subcommand)]
    pub verb: Verb,
}

impl Cli {
    /// Checks what the parser itself cannot check.
    pub(super) fn checked(self) -> Result<Self, clap::Error> {
        match (self.output, &self.verb) {
            (Format::Name, Verb::Nodes(_)) => Ok(self),
            // The variable sets the format for all verbs. There `name` is meant for `nodes` alone.
            (Format::Name, _)
                if std::env::var_os("NODEFENCE_OUTPUT").is_some_and(|format| format == "name") =>
            {
                Ok(Self { output: Format::Table, ..self })
            }
            (Format::Name, _) => {
                let text = "-o name is for `nodes` alone; expected table, wide, json or yaml";
                Err(Self::command().error(clap::error::ErrorKind::ArgumentConflict, text))
            }
            _ => Ok(self),
        }
    }

    /// The socket to talk to.
    pub fn socket(&self) -> PathBuf {
        let socket = self.socket.clone().filter(|socket| !socket.as_os_str().is_empty());
        socket.unwrap_or_else(|| self.run_dir.join("agent.sock"))
    }
}

/// How results are printed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Format {
    /// Columns, for people.
    Table,
    /// More, where there is more (`nodes`, `status`).
    Wide,
    /// Names alone, a line each (`nodes`).
    Name,
    /// JSON, for programs.
    Json,
    /// YAML.
    Yaml,
}

/// What to do. What a verb's help has besides its first line stands with its options.
#[derive(Debug, Subcommand)]
pub enum Verb {
    /// Run the agent on this node
    Agent(Box<AgentArgs>),

    /// Cut all traffic from here to a node's backends
    Flag(FlagArgs),

    /// Let traffic to a flagged node pass again, from the next packet on
    Unflag(UnflagArgs),

    /// List nodes and their flags
    Nodes(NodesArgs),

    /// List backends and the devices that cover them
    #[command(after_help = lists::BACKENDS.short, after_long_help = lists::BACKENDS.long())]
    Backends,

    /// List the flows to backends that conntrack knows
    Flows(FlowsArgs),

    /// Show what was cut and what was passed, by reason
    #[command(after_help = lists::COUNTERS.short, after_long_help = lists::COUNTERS.long())]
    Counters,

    /// Show the agent's state and what is wrong with it
    Status(StatusArgs),

    /// Show what differs between endpoints, IPVS, conntrack and affinity, for how long, and what to do about it
    #[command(after_help = audit::AUDIT.short, after_long_help = audit::AUDIT.long())]
    Audit,

    /// Repair faults of the kinds that are named
    Repair(RepairArgs),

    /// Show whether the agent cuts, or change that until it ends
    Mode(ModeArgs),

    /// Show what the agent logs, or change that until it ends
    LogLevel(LogLevelArgs),

    /// Stop cutting at once, and take everything of ours out of the kernel, until `on`
    Off(OffArgs),

    /// Start again after `off`
    On(OnArgs),

    /// Remove everything of ours from the kernel
    Detach(DetachArgs),

    /// Restore in IPVS what a dead agent drained; for agents in containers and units
    Guard(GuardArgs),

    /// Say what keeps nodefence from working on this node, with the remedy
    Doctor(DoctorArgs),

    /// Print the definitions (CRDs) of the objects that agents read from the API server, or apply them
    Crds(CrdsArgs),

    /// Run the controller, which makes NodeMembers of Nodes and says what becomes of NodeFlags
    Controller(ControllerArgs),

    /// Print a completion script
    Completions(CompletionsArgs),

    /// Print the man page (roff), or write one per verb into a folder
    Man(ManArgs),
}
