use std::{path::PathBuf, time::Duration};

use clap::{
    Args, CommandFactory as _, Parser, Subcommand, ValueEnum,
    builder::{NonEmptyStringValueParser, OsStringValueParser, TypedValueParser as _},
};
use nodefence_common::{DEFAULT_ICMP_PER_SECOND, DEFAULT_MAX_BACKENDS, DEFAULT_RESCUE_PER_SECOND};

use super::{
    guard_help::GUARD,
    values::{
        AnswerArg, AutoArg, GuardArg, Lasts, LogFormat, ModeArg, ProxyArg, TcArg, XdpArg, kind, lasting,
        patience, reason, share, view_age,
    },
};
use crate::{
    cluster::Protocol,
    enforce::Share,
    plan::audit::{Cidr, Kind},
    report::{Place, ServiceFilter},
};

/// Where the pins are, where nothing else is said.
pub(super) const PIN_DIR: &str = "/sys/fs/bpf/nodefence/v3";

const GLOBAL: &str = "Options of all commands";

/// Headings of the agent's options.
const NODES: &str = "Who exists";
const CUT: &str = "What is cut";
const DEVICES: &str = "Devices";
const KUBE_PROXY: &str = "Beside kube-proxy";
const AT_MOST: &str = "At most";
const PROCESS: &str = "The agent itself";

const EXIT_CODES: &str =
    "Every option is a variable of the environment too, which its help names. What is typed goes before.

Exit codes:
  0  done
  1  something failed, and the message says what
  2  the command line is wrong
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
    // An empty one means none, as in a unit file: the usual parser of paths would refuse it.
    #[arg(long, global = true, value_name = "PATH", help_heading = GLOBAL,
          value_parser = OsStringValueParser::new().map(PathBuf::from))]
    pub socket: Option<PathBuf>,

    /// Folder of the agent's lock, socket and flags
    #[arg(long, global = true, value_name = "DIR", default_value = "/run/nodefence", help_heading = GLOBAL)]
    pub run_dir: PathBuf,

    /// How to print results
    #[arg(short, long, global = true, value_name = "FORMAT", default_value = "table", help_heading = GLOBAL)]
    pub output: Format,

    /// What to do
    #[command(subcommand)]
    pub verb: Verb,
}

impl Cli {
    /// What the parser itself cannot tell.
    pub(super) fn checked(self) -> Result<Self, clap::Error> {
        match (self.output, &self.verb) {
            (Format::Name, Verb::Nodes(_)) => Ok(self),
            // Set for all verbs by the variable, it means `nodes`.
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
    /// More columns, where there are more (`nodes`).
    Wide,
    /// Names alone, a line each (`nodes`).
    Name,
    /// JSON, for programs.
    Json,
    /// YAML.
    Yaml,
}

/// What to do.
#[derive(Debug, Subcommand)]
pub enum Verb {
    /// Run the agent on this node
    #[command(
        after_help = "Examples:\n  nodefence agent --cluster-file cluster.yaml\n  nodefence agent --cluster-file \
                            cluster.yaml --interface eth0 --interface vxlan0 --mode observe\n\nSIGTERM leaves the pinned dataplane in place: verdicts lapse within 3 s unless another agent \
                            takes over. `nodefence detach` removes it."
    )]
    Agent(Box<AgentArgs>),

    /// Cut all traffic from here to a node's backends
    #[command(
        after_help = "Example:\n  nodefence flag node-b --for 10m --reason \"ext4 journal blocked\"\n\n\
                            Only this node's agent is told; every node has its own. Returns once the verdict is in the \
                            kernel; the node's idle clients are challenged meanwhile (`nodefence status` shows what came of \
                            it, and --wait waits for it). With --strict the exit code is 5 where something of the node is not \
                            cut; the flag is set all the same."
    )]
    Flag {
        /// Name of the node
        node: String,
        /// When the flag ends by itself, as in 90s, 10m, 2h; with `forever`, when `unflag` is called
        #[arg(long = "for", value_name = "TIME", default_value = "1h", value_parser = lasting)]
        lasts: Lasts,
        /// Why, for whoever reads `nodes`
        #[arg(long, value_name = "TEXT", default_value = "", hide_default_value = true, value_parser = reason)]
        reason: String,
        /// Flag it even if it is this very node, or more than a third of all nodes would bear a flag
        #[arg(long)]
        force: bool,
        /// Return only once the node's idle clients were challenged, with what came of it
        #[arg(long)]
        wait: bool,
        /// Exit code 5 where something of the node is exempt, or not covered, or only counted
        #[arg(long)]
        strict: bool,
    },

    /// Let traffic to a flagged node pass again, from the next packet on
    #[command(
        after_help = "Example:\n  nodefence unflag node-b\n\nTakes back what `nodefence flag` set on this machine. A flag in the \
                            cluster file stays until it is removed there."
    )]
    Unflag {
        /// Name of the node
        node: String,
    },

    /// List nodes and their flags
    #[command(
        after_help = "ACTION is what happens to packets for the node: pass, refuse, drop or observe (counted only). FLAG is the flag that holds, and \
                            behind it what else is claimed of the node, and how that stands.\n\n\
                            Examples:\n  nodefence nodes node-b node-c -o wide\n  nodefence nodes --flagged --watch -o json"
    )]
    Nodes(NodesArgs),

    /// List backends and the devices that cover them
    #[command(
        after_help = "INTERFACE is the attached device by which packets to the backend leave; `none` with a reason means that \
                            traffic to it is not cut on this machine.\n\nExample:\n  nodefence backends -o json"
    )]
    Backends,

    /// List the flows to backends that conntrack knows
    #[command(
        after_help = "Examples:\n  nodefence flows --node node-b --limit 20\n  nodefence flows --service default/web --protocol udp"
    )]
    Flows {
        /// Only flows to this node's backends
        #[arg(long, value_name = "NODE")]
        node: Option<String>,
        /// Only flows to this backend, as in 10.244.2.7 or 10.244.2.7:8080
        #[arg(long, value_name = "ADDRESS[:PORT]")]
        backend: Option<Place>,
        /// Only flows through this Service: its name, as in default/web, or what its clients connect to
        #[arg(long, value_name = "SERVICE")]
        service: Option<ServiceFilter>,
        /// Only flows of this protocol: tcp, udp or sctp
        #[arg(long, value_name = "PROTOCOL")]
        protocol: Option<Protocol>,
        /// So many flows at most, the first by node, backend and client
        #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
        limit: Option<u32>,
    },

    /// Show what was cut and what was passed, by reason
    #[command(
        after_help = "Packets are counted since the maps were made; a restart of the agent keeps them.\n\nExample:\n  nodefence counters -o json"
    )]
    Counters,

    /// Show the agent's state and what is wrong with it
    #[command(
        after_help = "Lines that say `problem:` want attention. `nodefence doctor` looks at the machine instead of the agent.\n\n\
                            Example:\n  nodefence status --check"
    )]
    Status {
        /// Exit code 5 where a line says `problem:`
        #[arg(long)]
        check: bool,
    },

    /// Show what differs between endpoints, IPVS, conntrack and affinity, for how long, and what to do about it
    #[command(
        after_help = "A difference is a fault once it has been there for two of kube-proxy's syncs (--fault-after of the agent). Exit code 5 \
                            where there are faults.\n\nExample:\n  nodefence audit -o json"
    )]
    Audit,

    /// Mend faults of the kinds that are named
    #[command(
        after_help = "Only what `audit` calls a fault is mended. Virtual servers and destinations of flagged nodes are \
                            reported, with what to do, and left as they are. Exit code 1 where something could not be mended.\n\n\
                            Examples:\n  nodefence repair --kind stale-udp --dry-run\n  nodefence repair --kind \
                            stale-destination,missing-destination"
    )]
    Repair {
        /// What to mend (repeatable, or separated by commas)
        #[arg(long = "kind", value_name = "KIND", required = true, value_delimiter = ',', value_parser = kind())]
        kinds: Vec<Kind>,
        /// Show what would be done, and change nothing
        #[arg(long)]
        dry_run: bool,
    },

    /// Show whether the agent cuts, or change that until it ends
    #[command(
        after_help = "Without an argument it prints what holds. The weaker of this and of what else keeps the agent from cutting holds: what forwards in \
                            kube-proxy's place, --auto, --max-view-age. With observe all verdicts are taken back as by `unflag`, behind IPVS too; what would be cut is \
                            counted.\n\nExample:\n  nodefence mode observe"
    )]
    Mode {
        /// What to do from now on
        mode: Option<ModeArg>,
    },

    /// Show what the agent logs, or change that until it ends
    #[command(
        after_help = "Without an argument it prints what holds.\n\nExamples:\n  nodefence log-level debug\n  nodefence log-level info,nodefence::agent=debug"
    )]
    LogLevel {
        /// error, warn, info, debug, trace or off; or directives as in RUST_LOG
        level: Option<String>,
    },

    /// Remove everything of ours from the kernel
    #[command(
        after_help = "Programs, links, maps, pins and the flags in the run folder are removed; a clsact qdisc only if \
                            we made it and it is empty. Refused (exit code 6) while an agent runs: end it first.\n\n\
                            Example:\n  nodefence detach"
    )]
    Detach {
        /// Folder of the pins; must end in nodefence/v3, inside a BPF filesystem
        #[arg(long, value_name = "DIR", default_value = PIN_DIR)]
        pin_dir: PathBuf,
    },

    /// Put back into IPVS what a dead agent drained; for agents in containers and units
    #[command(after_help = GUARD)]
    Guard {
        /// Process id of the agent that started it: it ends with that one
        #[arg(long, hide = true)]
        parent: Option<u32>,
        /// Folder of the pins, the agent's own
        #[arg(long, value_name = "DIR", default_value = PIN_DIR)]
        pin_dir: PathBuf,
    },

    /// Say what keeps nodefence from working on this node, with the remedy
    #[command(
        after_help = "Works without an agent; best as root, since what an ordinary user may not look at is shown as unknown. Each \
                            remedy can be pasted into a shell. Exit code 5 if a line says fail.\n\nExample:\n  nodefence doctor \
                            --interface eth0"
    )]
    Doctor {
        /// Check these devices only (repeatable, or separated by commas) [default: all but the loopback device]
        #[arg(long, value_name = "NAME", value_delimiter = ',')]
        interface: Vec<String>,
        /// Folder of the pins [default: that of the agent that answers, else /sys/fs/bpf/nodefence/v3]
        #[arg(long, value_name = "DIR")]
        pin_dir: Option<PathBuf>,
    },

    /// Print a completion script
    #[command(after_help = "Example:\n  nodefence completions bash > /etc/bash_completion.d/nodefence")]
    Completions {
        /// The shell
        shell: clap_complete::Shell,
    },

    /// Print the man page (roff), or write one per verb into a folder
    #[command(
        after_help = "Examples:\n  nodefence man | man -l -\n  nodefence man --dir /usr/local/share/man/man1"
    )]
    Man {
        /// Folder to write one page per command into, instead of printing
        #[arg(long, value_name = "DIR")]
        dir: Option<PathBuf>,
    },
}

/// Which nodes are listed, and how.
#[derive(Clone, Debug, Default, Args)]
pub struct NodesArgs {
    /// Only these nodes
    #[arg(value_name = "NAME")]
    pub names: Vec<String>,
    /// Only nodes that bear a flag, or a claim that no person made
    #[arg(long)]
    pub flagged: bool,
    /// Print a row again whenever it changes, until Ctrl-C; with -o json an object a line
    #[arg(short, long)]
    pub watch: bool,
    /// Without the line that names the columns
    #[arg(long)]
    pub no_headers: bool,
}

/// How the agent runs.
#[derive(Clone, Debug, Args)]
pub struct AgentArgs {
    /// Who exists: YAML or JSON, followed as it changes
    #[arg(long, help_heading = NODES, value_name = "FILE", required = true)]
    pub cluster_file: Option<PathBuf>,

    /// A device by which packets leave to backends (repeatable, or separated by commas), and `auto`: those that routes and policy rules give
    #[arg(long = "interface", help_heading = DEVICES, value_name = "NAME", default_value = "auto", value_delimiter = ',',
          value_parser = NonEmptyStringValueParser::new())]
    pub interfaces: Vec<String>,

    /// This node's name [default: the node in the file whose address is local]
    #[arg(long, help_heading = NODES, value_name = "NAME")]
    pub node: Option<String>,

    /// Believe a cluster file without nodes; else it is an error, and the last good view stays
    #[arg(long, help_heading = NODES)]
    pub allow_empty: bool,

    /// Cut, or only count what would be cut
    #[arg(long, help_heading = CUT, default_value = "enforce")]
    pub mode: ModeArg,

    /// Cut also where something else than kube-proxy forwards Services (Cilium, kube-router, ...), beside which nothing is cut otherwise. Whether clients then get their RSTs is not known: connections may hang, and new ones be refused again and again
    #[arg(long, help_heading = CUT)]
    pub force: bool,

    /// What is done about claims on nodes that no person made; the weaker of this and --mode holds
    #[arg(long, help_heading = CUT, default_value = "observe")]
    pub auto: AutoArg,

    /// How many nodes such claims may cut, of all, of each zone and of each pool: a part, and at least one. Where more are claimed, none of these claims is enforced there
    #[arg(long, help_heading = CUT, value_name = "PART/OF", default_value = "1/3", value_parser = share)]
    pub auto_limit: Share,

    /// Cut nothing, and only count, while the source of nodes has not confirmed its view for so long [default: a view holds however old it is]
    #[arg(long, help_heading = NODES, value_name = "TIME", value_parser = view_age)]
    pub max_view_age: Option<Duration>,

    /// What senders to a flagged node are told: refuse (RST, ICMP port unreachable) or drop (nothing)
    #[arg(long, help_heading = CUT, default_value = "refuse")]
    pub answer: AnswerArg,

    /// kube-proxy's mode, by which its tables are read and changed: found out (auto), told, or none for the datapath alone
    #[arg(long, help_heading = KUBE_PROXY, value_name = "MODE", default_value = "auto")]
    pub proxy: ProxyArg,

    /// The conntrack zone in which flows to backends are tracked; entries of other zones are neither read nor deleted
    #[arg(long, help_heading = KUBE_PROXY, value_name = "N", default_value_t = 0)]
    pub conntrack_zone: u16,

    /// Who restores IPVS where the agent is killed: a process that it starts (child), or `nodefence guard`, started apart (external)
    #[arg(long, help_heading = KUBE_PROXY, value_name = "WHO", default_value = "child")]
    pub guard: GuardArg,

    /// Mend faults of these kinds without being asked (see `nodefence repair`); none by default
    #[arg(long, help_heading = KUBE_PROXY, value_name = "KIND", value_delimiter = ',', value_parser = kind())]
    pub repair: Vec<Kind>,

    /// After how long a difference is a fault for `audit` and `repair`: two of kube-proxy's syncs
    #[arg(long, help_heading = KUBE_PROXY, value_name = "TIME", default_value = "60s", value_parser = patience)]
    pub fault_after: Duration,

    /// How often all that lies in the maps is compared; for tests
    #[arg(long, value_name = "TIME", default_value = "10m", value_parser = patience, hide = true)]
    pub compare_every: Duration,

    /// Virtual servers of others, which no Service has (repeatable, or separated by commas): kube-proxy's ipvs.excludeCIDRs
    #[arg(long = "exclude-cidr", help_heading = KUBE_PROXY, value_name = "CIDR", value_delimiter = ',')]
    pub excluded: Vec<Cidr>,

    /// Cut transit packets before the stack sees them; attaching makes many drivers rebuild their rings
    #[arg(long, help_heading = DEVICES, default_value = "off")]
    pub xdp: XdpArg,

    /// How TC programs are attached: auto (tcx where the kernel has it) or clsact
    #[arg(long, help_heading = DEVICES, default_value = "auto")]
    pub tc: TcArg,

    /// Backends that fit into the map
    #[arg(long, help_heading = AT_MOST, value_name = "N", default_value_t = DEFAULT_MAX_BACKENDS, value_parser = clap::value_parser!(u32).range(1..=16_777_216))]
    pub max_backends: u32,

    /// ICMP answers a second of the whole machine; the rest, and what a sender gets beyond six in a row and one a second, is dropped and counted
    #[arg(long, help_heading = AT_MOST, value_name = "N", default_value_t = DEFAULT_ICMP_PER_SECOND)]
    pub icmp_per_second: u32,

    /// New connections and datagrams a second that are balanced anew in place of being refused, at most
    #[arg(long, help_heading = AT_MOST, value_name = "N", default_value_t = DEFAULT_RESCUE_PER_SECOND)]
    pub rescue_per_second: u32,

    /// Log sampled cuts (at most 20 a second and CPU) from the kernel programs, for debugging
    #[arg(long, help_heading = PROCESS)]
    pub log_cuts: bool,

    /// Folder of the pins; must end in nodefence/v3, inside a BPF filesystem
    #[arg(long, help_heading = PROCESS, value_name = "DIR", default_value = PIN_DIR)]
    pub pin_dir: PathBuf,

    /// Take over from an agent that runs: it ends, the dataplane stays
    #[arg(long, help_heading = PROCESS)]
    pub take_over: bool,

    /// How to log, to standard error; RUST_LOG sets what
    #[arg(long, help_heading = PROCESS, value_name = "FORMAT", default_value = "text")]
    pub log_format: LogFormat,
}
