use clap::Args;

use super::shared::Help;
use crate::cli::values::ModeArg;

const MODE: Help = Help {
    facts: "\
The next agent goes by its own command line. The first line is what holds. The second line says \
what is set, by whom and when, and with what the agent was started. What holds `enforce` back is a warning.",
    short: "\
Without an argument it prints what holds. The weaker of this and of what else keeps the agent from cutting holds: what forwards in \
kube-proxy's place (without --force), --auto for claims that no person made, a view that is older than --max-view-age. With observe all \
verdicts are taken back before the command returns, as by `unflag`, and what was drained from IPVS is restored. What would be cut is \
counted.

Example:
  nodefence mode observe",
};

/// How the agent is to go on.
#[derive(Clone, Debug, Args)]
#[command(after_help = MODE.short, after_long_help = MODE.long())]
pub struct ModeArgs {
    /// What to do from now on
    pub mode: Option<ModeArg>,
}

const LOG_LEVEL: Help = Help {
    facts: "`status` says who changed it. docs/log.md lists the log's lines.",
    short: "\
Without an argument it prints what holds.

Examples:
  nodefence log-level debug
  nodefence log-level info,nodefence::agent=debug",
};

/// What the agent is to log.
#[derive(Clone, Debug, Args)]
#[command(after_help = LOG_LEVEL.short, after_long_help = LOG_LEVEL.long())]
pub struct LogLevelArgs {
    /// error, warn, info, debug, trace or off; or directives as in RUST_LOG
    pub level: Option<String>,
}
