//! The command line of `kubectl nodefence`.

use std::{path::PathBuf, time::Duration};

use clap::{Args, Parser, Subcommand, ValueEnum};
use jiff::Timestamp;

use crate::{
    cli::{args::Format, values::reason},
    crds::SettingsMode,
};

const GLOBAL: &str = "Options of all commands";

const EXIT_CODES: &str = "Exit codes:
  0  done
  1  something failed, and the message says what
  2  the command line is wrong
  4  refused: it would be unwise, or is not allowed
  5  something was found: by preflight or status --check
  7  there is no such node, or no such flag";

const EXAMPLES: &str = "Examples:
  # Node-b hangs: every agent refuses to send it anything, for ten minutes at most.
  kubectl nodefence flag node-b --for 10m --reason \"disk is gone\"

  # Who is flagged, and does every agent answer?
  kubectl nodefence nodes --flagged
  kubectl nodefence status

  # It is back.
  kubectl nodefence unflag node-b";

/// Stops traffic to hung nodes, in the whole cluster.
///
/// It writes and reads objects of the API server, which every agent follows. The binary is `nodefence`, called by another name. As
/// `nodefence` it speaks to the agent of its own node, and needs no API server.
#[derive(Debug, Parser)]
#[command(
    name = "kubectl nodefence",
    bin_name = "kubectl nodefence",
    version,
    propagate_version = true,
    max_term_width = 110,
    after_help = EXIT_CODES,
    after_long_help = format!("{EXAMPLES}\n\n{EXIT_CODES}")
)]
pub(super) struct KubectlCli {
    /// How the API server is reached [default: KUBECONFIG, else ~/.kube/config, else the service account of the pod]
    #[arg(long, global = true, value_name = "FILE", help_heading = GLOBAL)]
    pub(super) kubeconfig: Option<PathBuf>,

    /// The API server's address, in place of the one that is configured
    #[arg(long, global = true, value_name = "URL", help_heading = GLOBAL)]
    pub(super) api_server: Option<String>,

    /// The context of the kubeconfig file [default: its current one]
    #[arg(long, global = true, value_name = "NAME", help_heading = GLOBAL)]
    pub(super) context: Option<String>,

    /// The namespace of the agents' pods, for nodes, status, preflight and mode off --wait; flags and settings are in none
    #[arg(short, long, global = true, value_name = "NAME", default_value = "nodefence", help_heading = GLOBAL)]
    pub(super) namespace: String,

    /// How to print results; name is for lists of flags and nodes, wide for nodes
    #[arg(short, long, global = true, value_name = "FORMAT", default_value = "table", help_heading = GLOBAL)]
    pub(super) output: Format,

    /// What to do
    #[command(subcommand)]
    pub(super) verb: KubectlVerb,
}

/// What to do.
#[derive(Debug, Subcommand)]
pub(super) enum KubectlVerb {
    /// Have every agent cut the traffic to a node
    Flag(FlagNode),
    /// Delete the flags of a node
    Unflag(UnflagNode),
    /// List flags
    Flags,
    /// List nodes with their flags and agents
    Nodes(ListNodes),
    /// Say in one page whether agents cut, and what is wrong
    Status(ShowStatus),
    /// Show the settings of all agents
    Settings,
    /// Set whether agents cut
    Mode(SetMode),
    /// Let agents only observe for a time
    Pause(PauseAgents),
    /// End pauses
    Resume(ResumeAgents),
    /// Say before an install what keeps nodefence from working on nodes
    Preflight(CheckNodes),
}

const FLAG: &str = "The flag is a NodeFlag object. An earlier flag that the same user set on the same node is deleted once the new one is \
there. Times count by the API server's clock.

Exit code 4: refused without --force, since the node is the only or the last usable one, or since more nodes than the settings allow \
would be flagged. Exit code 7: there is no such node.";

/// What is flagged.
#[derive(Clone, Debug, Args)]
#[command(after_help = FLAG)]
pub(super) struct FlagNode {
    /// Name of the node
    pub(super) node: String,

    /// Why, for whoever reads `flags`
    #[arg(long, value_name = "TEXT", value_parser = reason)]
    pub(super) reason: String,

    /// When the flag ends by itself, as in 90s, 10m, 2h [default: 1h]
    #[arg(long = "for", value_name = "TIME", value_parser = lasting, conflicts_with = "until")]
    pub(super) lasts: Option<Duration>,

    /// When the flag ends by itself, as in 2026-12-01T08:00:00Z
    #[arg(long, value_name = "TIME", value_parser = instant)]
    pub(super) until: Option<Timestamp>,

    /// Flag it even if it is the last usable node, or a limit would withhold the flag
    #[arg(long)]
    pub(super) force: bool,

    /// Allow an end that is more than 24 hours ahead
    #[arg(long)]
    pub(super) long: bool,

    /// Only ask the API server whether it would take the flag, and say what agents would do
    #[arg(long, conflicts_with = "wait")]
    pub(super) dry_run: bool,

    /// Wait until the controller has said what agents do about the flag, for 10 s at most
    #[arg(long)]
    pub(super) wait: bool,
}

/// Which flags are deleted.
#[derive(Clone, Debug, Args)]
pub(super) struct UnflagNode {
    /// Name of the node, all of whose flags are deleted
    #[arg(required_unless_present_any = ["name", "all"])]
    pub(super) node: Option<String>,

    /// Delete the flag of this name alone
    #[arg(long, value_name = "FLAG", conflicts_with = "node")]
    pub(super) name: Option<String>,

    /// Delete the flags of all nodes
    #[arg(long, conflicts_with_all = ["node", "name"])]
    pub(super) all: bool,
}

/// Which nodes are listed.
#[derive(Clone, Debug, Args)]
pub(super) struct ListNodes {
    /// Only these nodes
    #[arg(value_name = "NAME")]
    pub(super) names: Vec<String>,

    /// Only nodes that bear a flag
    #[arg(long)]
    pub(super) flagged: bool,
}

/// How the state is told.
#[derive(Clone, Debug, Args)]
pub(super) struct ShowStatus {
    /// Exit code 5 where something is wrong
    #[arg(long)]
    pub(super) check: bool,
}

const MODE: &str = "With --wait, agents that are not off by then are named with their nodes, and the exit code is 0 all the same: a node that hangs cannot take \
anything back. `nodefence detach` on such a node does, once it answers. Where the namespace has no agent at all, the exit code is 1.";

/// The mode that is set.
#[derive(Clone, Debug, Args)]
#[command(after_help = MODE)]
pub(super) struct SetMode {
    /// What agents do
    pub(super) mode: ModeWord,

    /// With off: wait until each agent that answers has taken back all that it did, for so many seconds at most [default: 60]
    #[arg(
        long,
        value_name = "SECONDS",
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = "60",
        value_parser = seconds
    )]
    pub(super) wait: Option<u16>,
}

/// What agents do about flags.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum ModeWord {
    /// Cut nothing; count what would have been cut
    Observe,
    /// Cut what goes to a flagged node
    Enforce,
    /// Have nothing in the kernel
    Off,
}

impl From<ModeWord> for SettingsMode {
    fn from(mode: ModeWord) -> Self {
        match mode {
            ModeWord::Observe => Self::Observe,
            ModeWord::Enforce => Self::Enforce,
            ModeWord::Off => Self::Off,
        }
    }
}

/// A time in which agents only observe.
#[derive(Clone, Debug, Args)]
pub(super) struct PauseAgents {
    /// How long, as in 10m or 2h
    #[arg(long = "for", value_name = "TIME", default_value = "1h", value_parser = lasting)]
    pub(super) lasts: Duration,

    /// Why, for whoever reads `status`
    #[arg(long, value_name = "TEXT", value_parser = reason)]
    pub(super) reason: String,
}

/// Which pauses end.
#[derive(Clone, Debug, Args)]
pub(super) struct ResumeAgents {
    /// End the pauses of others too
    #[arg(long)]
    pub(super) all: bool,
}

const PREFLIGHT: &str = "It knows only what the API server knows of the nodes. Whether lockdown or the devices of a node are in the way \
is said by `nodefence doctor` on that node.";

/// Which nodes are looked at.
#[derive(Clone, Debug, Args)]
#[command(after_help = PREFLIGHT)]
pub(super) struct CheckNodes {
    /// Only this node; may be given several times
    #[arg(long = "node", value_name = "NAME")]
    pub(super) nodes: Vec<String>,
}

/// The longest time that an option takes. A longer one is surely a mistake.
const LONGEST: Duration = Duration::from_secs(3_650 * 24 * 3_600);

fn lasting(text: &str) -> Result<Duration, String> {
    let lasts = humantime::parse_duration(text)
        .map_err(|_| "expected numbers with their units (s, m, h, d), as in 90s, 10m or 1h 30m".to_owned())?;
    if lasts < Duration::from_secs(1) || lasts > LONGEST {
        return Err("expected a time between 1s and 3650d".to_owned());
    }
    Ok(lasts)
}

fn seconds(text: &str) -> Result<u16, String> {
    let seconds = text.parse().ok().filter(|seconds| (1..=3_600).contains(seconds));
    seconds.ok_or_else(|| "expected a number of seconds from 1 to 3600, as in --wait=60".to_owned())
}

fn instant(text: &str) -> Result<Timestamp, String> {
    text.parse()
        .map_err(|_| "expected a time with its zone (RFC 3339), as in 2026-12-01T08:00:00Z".to_owned())
}

impl KubectlCli {
    /// Checks what the parser itself cannot check.
    pub(super) fn checked(self) -> Result<Self, clap::Error> {
        use clap::{CommandFactory as _, error::ErrorKind};
        let takes_name = matches!(
            self.verb,
            KubectlVerb::Flag(_) | KubectlVerb::Unflag(_) | KubectlVerb::Flags | KubectlVerb::Nodes(_)
        );
        if self.output == Format::Name && !takes_name {
            let text = "-o name is for flag, unflag, flags and nodes; expected table, json or yaml";
            return Err(Self::command().error(ErrorKind::ArgumentConflict, text));
        }
        if matches!(&self.verb, KubectlVerb::Mode(SetMode { mode, wait: Some(_) }) if *mode != ModeWord::Off)
        {
            let text = "--wait is for `mode off`: agents that run need no time to follow another mode";
            return Err(Self::command().error(ErrorKind::ArgumentConflict, text));
        }
        Ok(self)
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    use super::*;

    fn parsed(words: &[&str]) -> Result<KubectlCli, String> {
        let all = [&["kubectl-nodefence"], words].concat();
        let cli = KubectlCli::try_parse_from(all).and_then(KubectlCli::checked);
        cli.map_err(|error| error.to_string())
    }

    #[test]
    fn the_parser_is_consistent() {
        KubectlCli::command().debug_assert();
    }

    #[test]
    fn a_flag_needs_a_reason_and_one_end() {
        assert!(parsed(&["flag", "b"]).unwrap_err().contains("--reason"));
        let both = &["flag", "b", "--reason", "r", "--for", "1h", "--until", "2026-12-01T08:00:00Z"];
        assert!(parsed(both).unwrap_err().contains("cannot be used with"));
        assert!(parsed(&["flag", "b", "--reason", "r", "--for", "soon"]).unwrap_err().contains("10m"));
        assert!(parsed(&["flag", "b", "--reason", "r", "--for", "0s"]).unwrap_err().contains("between 1s"));
        assert!(parsed(&["flag", "b", "--reason", "r", "--until", "8:00"]).unwrap_err().contains("RFC 3339"));
        let KubectlVerb::Flag(flag) = parsed(&["flag", "b", "--reason", "r"]).unwrap().verb else { panic!() };
        assert_eq!((flag.lasts, flag.until, flag.force), (None, None, false));
    }

    #[test]
    fn unflag_needs_to_know_what() {
        assert!(parsed(&["unflag"]).is_err());
        assert!(parsed(&["unflag", "b", "--all"]).is_err());
        assert!(parsed(&["unflag", "b", "--name", "b-1"]).is_err());
        for words in [&["unflag", "b"][..], &["unflag", "--all"], &["unflag", "--name", "b-1"]] {
            assert!(parsed(words).is_ok(), "{words:?}");
        }
    }

    #[test]
    fn only_the_mode_off_is_waited_for() {
        let wait = |words: &[&str]| match parsed(&[&["mode"], words].concat())?.verb {
            KubectlVerb::Mode(args) => Ok::<_, String>(args.wait),
            other => panic!("{other:?}"),
        };
        assert_eq!(wait(&["off"]), Ok(None));
        assert_eq!(wait(&["off", "--wait"]), Ok(Some(60)));
        assert_eq!(wait(&["--wait=5", "off"]), Ok(Some(5)));
        for words in [&["off", "--wait=0"][..], &["off", "--wait=1h"], &["off", "--wait=3601"]] {
            assert!(wait(words).unwrap_err().contains("--wait"), "{words:?}");
        }
        assert!(wait(&["observe", "--wait"]).unwrap_err().contains("--wait is for `mode off`"));
    }

    #[test]
    fn names_alone_are_for_lists_of_objects() {
        assert!(parsed(&["nodes", "-o", "name"]).is_ok());
        assert!(parsed(&["status", "-o", "name"]).unwrap_err().contains("-o name is for"));
    }
}
