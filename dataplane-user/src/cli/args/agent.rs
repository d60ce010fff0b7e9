use std::{net::SocketAddr, path::PathBuf, time::Duration};

use clap::{ArgGroup, Args, builder::NonEmptyStringValueParser};
use nodefence_common::{DEFAULT_ICMP_PER_SECOND, DEFAULT_MAX_BACKENDS, DEFAULT_RESCUE_PER_SECOND};

use super::shared::{Help, PIN_DIR};
use crate::{
    cli::values::{
        AnswerArg, AutoArg, GuardArg, LogFormat, ModeArg, ProxyArg, TcArg, XdpArg, kind, patience, share,
        view_age,
    },
    enforce::{Auto, Share},
    plan::audit::{Cidr, Kind},
};

/// Headings of the agent's options.
const CLUSTER: &str = "Cluster";
const CUT: &str = "What is cut";
const DEVICES: &str = "Devices";
const KUBE_PROXY: &str = "kube-proxy";
const LIMITS: &str = "Limits";
const PROCESS: &str = "Process and log";

/// The options that say where nodes come from: one of them is needed.
pub(in crate::cli) const SOURCE: &str = "source";

const AGENT: Help = Help {
    facts: "\
The agent runs until SIGTERM, SIGINT or SIGHUP. docs/operating.md says what becomes of the cut when it ends, is killed or is started \
anew, and how it runs in containers and under systemd.

What can be checked is checked before anything is attached: the kernel, the privilege, the BPF filesystem (mounted where there is none), \
the socket's path, the flags file, the cluster file, and that at least one of the named devices exists. An agent that cannot run ends \
with a message and attaches nothing.

A second agent on the same run folder ends with exit code 6 and the first one's process id.",
    short: "\
SIGTERM leaves the pinned dataplane in place: verdicts lapse within 3 s unless another agent takes over. `nodefence detach` removes it.

Examples:
  nodefence agent --cluster-file cluster.yaml
  nodefence agent --kubernetes --kubeconfig /etc/nodefence/kubeconfig
  nodefence agent --cluster-file cluster.yaml --interface eth0 --interface vxlan0 --mode observe",
};

/// How the agent runs.
#[derive(Clone, Debug, Args)]
#[command(after_help = AGENT.short, after_long_help = AGENT.long())]
#[command(group = ArgGroup::new(SOURCE).required(true).args(["cluster_file", "kubernetes"]))]
pub struct AgentArgs {
    /// Nodes, backends and Services of the cluster: YAML or JSON, followed as it changes
    ///
    /// docs/cluster-file.md has its format.
    #[arg(long, help_heading = CLUSTER, value_name = "FILE")]
    pub cluster_file: Option<PathBuf>,

    /// Take nodes, Services and endpoints from the Kubernetes API server, in place of a cluster file
    ///
    /// The agent watches NodeMembers, Services and EndpointSlices, and writes nothing. docs/kubernetes.md says what it needs.
    #[arg(long, help_heading = CLUSTER)]
    pub kubernetes: bool,

    /// How the API server is reached [default: by the service account of the agent's pod]
    #[arg(long, help_heading = CLUSTER, value_name = "FILE")]
    pub kubeconfig: Option<PathBuf>,

    /// The API server's address, in place of the one that is configured
    ///
    /// The address that pods have by default is that of a Service, whose endpoint may be on a node that hangs.
    #[arg(long, help_heading = CLUSTER, value_name = "URL",
          value_parser = NonEmptyStringValueParser::new())]
    pub api_server: Option<String>,

    /// Leave headless Services out. Their endpoints are then cut only where another Service has them too
    #[arg(long, help_heading = CLUSTER)]
    pub no_headless: bool,

    /// A device by which packets leave to backends (repeatable, or separated by commas), and `auto`: those that routes and policy rules give
    ///
    /// `auto`, alone or beside names, takes every device by which packets to a node or backend may leave. It follows routes and policy
    /// rules as these change. A device that is needed no more is left after a minute.
    #[arg(long = "interface", help_heading = DEVICES, value_name = "NAME", default_value = "auto", value_delimiter = ',',
          value_parser = NonEmptyStringValueParser::new())]
    pub interfaces: Vec<String>,

    /// This node's name [default: the node in the file whose address is local]
    ///
    /// Where no node's address is local, or those of two nodes are, the agent ends with an error.
    #[arg(long, help_heading = CLUSTER, value_name = "NAME")]
    pub node: Option<String>,

    /// Believe a cluster file without nodes; else it is an error, and the last good view stays
    #[arg(long, help_heading = CLUSTER)]
    pub allow_empty: bool,

    /// Cut, or only count what would be cut
    ///
    /// `nodefence mode` changes it until the agent ends.
    #[arg(long, help_heading = CUT, default_value = "enforce")]
    pub mode: ModeArg,

    /// Cut also where something else than kube-proxy forwards Services (Cilium, kube-router, ...), beside which nothing is cut otherwise. Whether clients then get their RSTs is not known: connections may hang, and new ones be refused again and again
    ///
    /// Cilium, Calico's eBPF data plane, kube-router, Antrea and OVN-Kubernetes are found by their devices, which docs/coverage.md lists.
    /// Without --force the agent only observes, as with --mode observe, as long as such a device is there. The weaker of --mode and --auto
    /// holds as ever.
    #[arg(long, help_heading = CUT)]
    pub force: bool,

    /// What is done about claims on nodes that no person made; the weaker of this and --mode holds [default: observe; with --kubernetes: what NodefenceSettings say]
    ///
    /// This version has no cause of its own that makes such claims. With --kubernetes the weaker of this and of `automatic` in
    /// NodefenceSettings holds.
    #[arg(long, help_heading = CUT)]
    pub auto: Option<AutoArg>,

    /// How many nodes such claims may cut, of all, of each zone and of each pool: a part, and at least one. Where more are claimed, none of these claims is enforced there [default: 1/3; with --kubernetes: what NodefenceSettings say]
    ///
    /// With --kubernetes flags without `force` count as such claims, and the stricter of this and of `limit` in NodefenceSettings holds.
    ///
    /// `status` and the log name such claims. For 5 min after they are withheld, only claims count that were first raised after that. A
    /// claim that was withheld and is raised anew in that time is as old as it was. Flagged nodes use the limit up too, and stay cut.
    #[arg(long, help_heading = CUT, value_name = "PART/OF", value_parser = share)]
    pub auto_limit: Option<Share>,

    /// Cut nothing, and only count, while the source of nodes has not confirmed its view for so long [default: a view holds however old it is]
    ///
    /// Addresses of pods that went may be others' by then. All of a node's backends pass then, host-network ports too, since a node has one
    /// verdict. What would be cut is counted as with --mode observe, until the source confirms its view.
    ///
    /// A cluster file is confirmed when it is read: whoever writes it must write or touch it at least that often, be it unchanged. Single
    /// objects are confirmed by whatever their source tells. An agent that waits for its first view counts from its start. The shortest time
    /// is 1 s, the longest 3,650 days. A source that is cut off ends no cut by itself.
    #[arg(long, help_heading = CLUSTER, value_name = "TIME", value_parser = view_age)]
    pub max_view_age: Option<Duration>,

    /// What senders to a flagged node are told: refuse (RST, ICMP port unreachable) or drop (nothing)
    ///
    /// A process of this node whose packet is dropped without an answer may see ENOBUFS.
    #[arg(long, help_heading = CUT, default_value = "refuse")]
    pub answer: AnswerArg,

    /// kube-proxy's mode, by which its tables are read and changed: found out (auto), told, or none for the datapath alone
    ///
    /// In mode IPVS flagged nodes are drained. In modes nftables and iptables what keeps clients at a flagged node is deleted: Service
    /// affinity and conntrack entries.
    ///
    /// `auto` asks kube-proxy (`/proxyMode` on port 10249). Its word counts while that mode's own trace is there (`kube-ipvs0`, the chain
    /// `KUBE-SERVICES`, the table `kube-proxy`). Otherwise, and while it does not answer, what it said last holds as long as that mode's
    /// trace is there. Then traces alone count.
    #[arg(long, help_heading = KUBE_PROXY, value_name = "MODE", default_value = "auto")]
    pub proxy: ProxyArg,

    /// The conntrack zone in which flows to backends are tracked; entries of other zones are neither read nor deleted
    ///
    /// The number is 0 to 65535; 0 is the zone of what no rule puts into another one. Entries of other zones may be another tenant's with
    /// the same addresses. Entries that have a zone for one direction alone are neither listed nor challenged nor deleted.
    #[arg(long, help_heading = KUBE_PROXY, value_name = "N", default_value_t = 0)]
    pub conntrack_zone: u16,

    /// Who restores IPVS where the agent is killed: a process that it starts (child), or `nodefence guard`, started apart (external)
    ///
    /// With `external` the agent starts none. `status` and `doctor` say whether one is there. The agent drains in any case.
    #[arg(long, help_heading = KUBE_PROXY, value_name = "WHO", default_value = "child")]
    pub guard: GuardArg,

    /// Repair faults of these kinds without a command (see `nodefence repair`); none by default
    ///
    /// With --mode observe nothing is repaired.
    #[arg(long, help_heading = KUBE_PROXY, value_name = "KIND", value_delimiter = ',', value_parser = kind())]
    pub repair: Vec<Kind>,

    /// After how long a difference is a fault for `audit` and `repair`: two of kube-proxy's syncs
    ///
    /// kube-proxy's option is `syncPeriod`. The shortest time is 1 s, the longest 24 h.
    #[arg(long, help_heading = KUBE_PROXY, value_name = "TIME", default_value = "60s", value_parser = patience)]
    pub fault_after: Duration,

    /// How often all that lies in the maps is compared; for tests
    #[arg(long, value_name = "TIME", default_value = "10m", value_parser = patience, hide = true)]
    pub compare_every: Duration,

    /// How often the last good view of the API server is stored at most; for tests
    #[arg(long, value_name = "TIME", default_value = "60s", value_parser = patience, hide = true)]
    pub view_store_every: Duration,

    /// How many times sooner the watches of the API server find faults and begin anew; for tests
    #[arg(long, value_name = "TIMES", default_value_t = 1, hide = true)]
    pub watch_faster: u32,

    /// Virtual servers of others, which no Service has (repeatable, or separated by commas): kube-proxy's ipvs.excludeCIDRs
    #[arg(long = "exclude-cidr", help_heading = KUBE_PROXY, value_name = "CIDR", value_delimiter = ',')]
    pub excluded: Vec<Cidr>,

    /// Cut transit packets before the stack sees them; attaching makes many drivers rebuild their rings
    ///
    /// In generic mode TCP that gets an answer is left to TC egress of the device it leaves by. In native mode untagged TCP below VLAN
    /// devices is left to it (see docs/design/datapath.md). Generic mode slows the healthy path. On a veth device (nodes that are
    /// containers) native answers are lost unless its peer runs XDP too: use generic or off there.
    #[arg(long, help_heading = DEVICES, default_value = "off")]
    pub xdp: XdpArg,

    /// How TC programs are attached: auto (tcx where the kernel has it) or clsact
    ///
    /// tcx is in Linux 6.6 and later.
    #[arg(long, help_heading = DEVICES, default_value = "auto")]
    pub tc: TcArg,

    /// Backends that fit into the map
    ///
    /// Traffic to what does not fit passes. It is counted and reported.
    #[arg(long, help_heading = LIMITS, value_name = "N", default_value_t = DEFAULT_MAX_BACKENDS, value_parser = clap::value_parser!(u32).range(1..=16_777_216))]
    pub max_backends: u32,

    /// ICMP answers a second of the whole machine; the rest, and what a sender gets beyond six in a row and one a second, is dropped and counted
    ///
    /// The agent's answers for what it does not rescue are included. Addresses of this machine have no limit of their own as senders. The
    /// counters are `icmp_limited` and `icmp_sender_limited`.
    #[arg(long, help_heading = LIMITS, value_name = "N", default_value_t = DEFAULT_ICMP_PER_SECOND)]
    pub icmp_per_second: u32,

    /// New connections and datagrams a second that are balanced anew in place of being refused, at most
    ///
    /// What is beyond is refused at once, and `status` counts it.
    #[arg(long, help_heading = LIMITS, value_name = "N", default_value_t = DEFAULT_RESCUE_PER_SECOND)]
    pub rescue_per_second: u32,

    /// Log sampled cuts (at most 20 a second and CPU) from the kernel programs, for debugging
    #[arg(long, help_heading = PROCESS)]
    pub log_cuts: bool,

    /// Folder of the pins; must end in nodefence/v3, inside a BPF filesystem
    ///
    /// A folder in which others could change what is pinned is refused, with the command that puts it right.
    #[arg(long, help_heading = PROCESS, value_name = "DIR", default_value = PIN_DIR)]
    pub pin_dir: PathBuf,

    /// Serve /metrics, /livez, /readyz and /v1/status over HTTP [default: nothing is served]
    ///
    /// Anybody who reaches the address may read there, and nobody can change anything. docs/metrics.md has the metrics. While another
    /// process has the port, the agent runs without it and tries again each second.
    #[arg(long, help_heading = PROCESS, value_name = "ADDRESS:PORT")]
    pub http: Option<SocketAddr>,

    /// The UID of the pod that the agent runs in
    ///
    /// It tells the agents of two pods of one node apart, as during a rollout. With --take-over the agent that runs closes its HTTP port as soon as
    /// this one waits. An agent of a pod that was taken over from does not end, since the kubelet would start it again. It does nothing until
    /// SIGTERM, and no later agent of that pod takes over again. Once no agent has had the node for 10 s, it takes the node again.
    #[arg(long, help_heading = PROCESS, value_name = "UID", value_parser = NonEmptyStringValueParser::new())]
    pub pod_uid: Option<String>,

    /// For how long no agent must have had the node before that of a pod that was taken over from takes it again; for tests
    #[arg(long = "vacant-for", value_name = "TIME", value_parser = patience, hide = true)]
    pub vacant: Option<Duration>,

    /// Take over from an agent that runs: it ends, the dataplane stays
    ///
    /// The cut has no gap. What an agent with another map layout had flagged passes until this one has cut it anew. Rescue has a gap of some
    /// tenths of a second, in which new connections are refused.
    ///
    /// An agent that stands still (SIGSTOP) does not end: 20 s later this one says so and ends, and flags lapse meanwhile. An agent that has
    /// handed over ends in any case, and is waited for for 3 min: it renews its verdicts while it reads large IPVS tables to the end.
    #[arg(long, help_heading = PROCESS)]
    pub take_over: bool,

    /// How to log, to standard error; RUST_LOG sets what
    ///
    /// RUST_LOG counts at the start, and `nodefence log-level` from then on. docs/log.md lists the log's lines.
    #[arg(long, help_heading = PROCESS, value_name = "FORMAT", default_value = "text")]
    pub log_format: LogFormat,
}

impl AgentArgs {
    /// What is done about automatic claims at most. With `--kubernetes` an option that was not given holds nothing back.
    pub(in crate::cli) const fn auto(&self) -> Auto {
        match self.auto {
            Some(AutoArg::Off) => Auto::Off,
            Some(AutoArg::Observe) => Auto::Observe,
            Some(AutoArg::Enforce) => Auto::Enforce,
            None if self.kubernetes => Auto::Enforce,
            None => Auto::Observe,
        }
    }

    /// The limit at most, as [`Self::auto`] has it.
    pub(in crate::cli) fn auto_limit(&self) -> Share {
        self.auto_limit.unwrap_or(if self.kubernetes { Share::ALL } else { Share::default() })
    }
}
