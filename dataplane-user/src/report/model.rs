//! The rows and reports that the CLI prints. JSON and YAML output have exactly these fields.

use std::{fmt, net::IpAddr, time::Duration};

use jiff::Timestamp;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{
    adjusted::Adjusted,
    claim::{ClaimRow, FlagRow, WithheldRow},
    cluster::ClusterRow,
    devices::{InterfaceRow, NeighbourRow},
    ipvs::IpvsRow,
    replacement::ReplacementRow,
    rescue::RescueRow,
};
use crate::{
    cluster::{NodeName, Protocol},
    dataplane::probe::Findings,
    enforce::Auto,
    plan::{Answer, Mode},
    proxy::Judgement,
};

/// After how long the kernel ignores a verdict that was not renewed.
pub(super) const VERDICT_LIFETIME: Duration = Duration::from_nanos(nodefence_common::VERDICT_LIFETIME_NS);

/// What the datapath does with packets to a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum NodeAction {
    /// They pass.
    Pass,
    /// They are dropped, and their sender is told: by a RST or an ICMP port unreachable.
    Refuse,
    /// They are dropped.
    Drop,
    /// They pass, and are counted.
    Observe,
    /// There is no such node any more. Only `nodes --watch` says so.
    Gone,
}

impl fmt::Display for NodeAction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Pass => "pass",
            Self::Refuse => "refuse",
            Self::Drop => "drop",
            Self::Observe => "observe",
            Self::Gone => "gone",
        })
    }
}

/// A node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct NodeRow {
    /// Its name.
    pub name: String,
    /// The address by which the other nodes reach it; `None` where none is known.
    pub address: Option<IpAddr>,
    /// All of its addresses that are known, that one first.
    pub addresses: Vec<IpAddr>,
    /// Its zone.
    pub zone: Option<String>,
    /// Its pool.
    pub pool: Option<String>,
    /// Its index in the maps.
    pub index: u32,
    /// Its index's generation.
    pub generation: u32,
    /// How many backends it has.
    pub backends: usize,
    /// Whether the agent runs on it.
    pub own: bool,
    /// What the datapath does with packets to it.
    pub action: NodeAction,
    /// How many ports of its backends pass all the same, because a Service has nothing else.
    pub exempt: usize,
    /// The flag it bears.
    pub flag: Option<FlagRow>,
    /// All that is held against it, the flag too.
    pub claims: Vec<ClaimRow>,
}

/// A backend.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct BackendRow {
    /// Its address.
    pub address: IpAddr,
    /// Its port, where only that one is its own (host network).
    pub port: Option<u16>,
    /// That port's protocol.
    pub protocol: Option<Protocol>,
    /// The node it runs on.
    pub node: String,
    /// Whether that node bears a flag.
    pub flagged: bool,
    /// The attached device by which packets to it leave; `None` where no attached device is known to carry them.
    pub interface: Option<String>,
    /// Why there is none.
    pub uncovered: Option<String>,
}

/// A port of a flagged node's backend that is not cut.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ExemptRow {
    /// The node.
    pub node: String,
    /// The backend's address.
    pub address: IpAddr,
    /// Its port.
    pub port: u16,
    /// That port's protocol.
    pub protocol: Protocol,
    /// The first Service that needs it.
    pub service: String,
    /// Why.
    pub why: String,
}

/// A counter of the datapath.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct CounterRow {
    /// Its name.
    pub reason: String,
    /// Packets, summed over all CPUs.
    pub packets: u64,
    /// Bytes from the network header on.
    pub bytes: u64,
    /// What it counts.
    pub help: String,
}

/// What came of challenging a node's idle clients: each answers with a packet, and that packet is reset.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ChallengeRow {
    /// Flows to the node that conntrack listed.
    pub listed: usize,
    /// Flows whose client was challenged.
    pub challenged: usize,
    /// Of those, gone or reset at the end.
    pub closed: usize,
    /// Not challenged: conntrack has them in CLOSE.
    pub skipped_closed: usize,
    /// Not challenged: no TCP; cut when the client next sends.
    pub skipped_not_tcp: usize,
    /// Not challenged: being opened or closed in order.
    pub skipped_opening_or_ended: usize,
    /// Not challenged: no attached device leads to the backend, or the segment could not be injected.
    pub unreachable: usize,
    /// Flows made liberal in the reply direction.
    pub liberal: usize,
    /// How long it took.
    pub seconds: f64,
    /// What went wrong, or was cut short.
    pub problem: Option<String>,
}

/// What was deleted of the conntrack entries and the affinity that tied clients to a flagged node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct StaleRow {
    /// Nodes that were cut together; the counts are of all of them. 1 where it was alone.
    pub nodes: usize,
    /// Sets or lists of clients that stick to an endpoint, from which all of them were taken.
    pub affinity: usize,
    /// Sets that may be such but were left alone: the name is cut off, and the Service not known.
    pub affinity_unknown: usize,
    /// conntrack entries of UDP and SCTP, deleted one by one.
    pub datagrams: usize,
    /// conntrack entries of TCP, deleted one by one after idle clients were challenged.
    pub tcp: usize,
    /// Requests that deleted by filter; the kernel does not tell how many entries each took.
    pub by_filter: usize,
    /// Entries that the kernel would not delete.
    pub refused: usize,
    /// What went wrong, or was left as it is for a reason.
    pub problem: Option<String>,
}

const fn yes() -> bool {
    true
}

/// What a `flag` did.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct FlagReport {
    /// The node.
    pub node: String,
    /// The node whose agent was told: no other one knows of the flag.
    #[serde(default)]
    pub on: String,
    /// Who set it: the user that the kernel names, and the one that sudo names.
    #[serde(default)]
    pub by: String,
    /// Its index in the maps.
    pub index: u32,
    /// What the datapath does with packets to it from now on.
    pub action: NodeAction,
    /// Seconds until the flag ends by itself.
    pub for_seconds: Option<u64>,
    /// How many backends it has.
    pub backends: usize,
    /// How many of these no attached device covers: traffic to them is not cut.
    pub uncovered_count: usize,
    /// Some of them, with the reason.
    pub uncovered: Vec<String>,
    /// How many of its ports pass, because a Service has nothing else.
    #[serde(default)]
    pub exempt_count: usize,
    /// Some of them, with the reason.
    #[serde(default)]
    pub exempt: Vec<String>,
    /// How many of its endpoints are left out, since each may be the node's own address: traffic to them is not cut.
    #[serde(default)]
    pub left_out: usize,
    /// How many backends of all nodes do not fit in the maps: traffic to them is not cut.
    #[serde(default)]
    pub beyond_maps: u64,
    /// Why new connections are refused in place of being balanced anew; `None` where they are balanced anew.
    #[serde(default)]
    pub new_refused: Option<String>,
    /// The flag of an earlier command that this one takes the place of.
    pub replaced: Option<FlagRow>,
    /// Whether the verdict is in the map. An agent of before, which does not say, warns where it is not.
    #[serde(default = "yes")]
    pub written: bool,
    /// Microseconds from reading the request to the end of the map write.
    pub flip_micros: u64,
    /// When the request was read: CLOCK_MONOTONIC nanoseconds, the clock of the datapath.
    pub received_ns: u64,
    /// Whether idle clients are being challenged at this moment; what comes of it stands in `challenged` of `nodefence status`.
    pub challenging: bool,
    /// The round of challenging idle clients, where it was waited for.
    pub challenged: Option<ChallengeRow>,
    /// What the operator should know.
    pub warnings: Vec<String>,
}

/// What an `unflag` did.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct UnflagReport {
    /// The node.
    pub node: String,
    /// Whether there was a flag of the CLI to take back.
    pub was_flagged: bool,
    /// The flag that still holds: the source's, or one that another command set meanwhile.
    pub still: Option<FlagRow>,
    /// What the operator should know.
    pub warnings: Vec<String>,
}

/// The pinned tables.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct DataplaneRow {
    /// Where they are pinned.
    pub pin_dir: String,
    /// Backends that fit.
    pub max_backends: u32,
    /// Backends that did not fit: their traffic passes.
    pub left_out: u64,
    /// Host-network ports that did not fit: their traffic passes.
    pub left_out_ports: u64,
    /// The first few of their addresses.
    pub left_out_first: Vec<IpAddr>,
    /// Why the last write failed.
    pub error: Option<String>,
    /// How often all entries were compared with what was written, since the agent began; the next time after ten minutes.
    pub compared: u64,
    /// When they were last.
    pub compared_last: Option<Timestamp>,
    /// Entries that somebody else had changed, since the agent began; they were mended.
    pub differed: u64,
    /// Why the last comparison was given up.
    pub compare_error: Option<String>,
    /// Seconds since the verdicts were last renewed.
    pub renewed_seconds_ago: f64,
    /// Why the last renewal failed; verdicts lapse 3 s after the last good one.
    pub renew_error: Option<String>,
}

impl DataplaneRow {
    /// Whether verdicts were last renewed longer ago than they should be: each second.
    pub fn renewed_late(&self) -> bool {
        self.renewed_seconds_ago > 2.0
    }

    /// Whether verdicts were renewed so long ago that the kernel ignores them.
    pub fn has_lapsed(&self) -> bool {
        self.renewed_seconds_ago > VERDICT_LIFETIME.as_secs_f64()
    }
}

/// What listing conntrack's table has cost, since the agent began; what the audit reads is not in it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ConntrackRow {
    /// Which zone is looked at; 0 is the default one.
    pub zone: u16,
    /// How often the kernel went through its IPv4 entries.
    pub listed_v4: u64,
    /// How often it went through its IPv6 entries.
    pub listed_v6: u64,
}

/// The agent's state.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Status {
    /// The agent's version.
    pub version: String,
    /// Its process id.
    pub pid: i32,
    /// When it started.
    pub started: Timestamp,
    /// The node it runs on.
    pub node: String,
    /// Whether it cuts now: observe also where enforce is set, beside what replaces kube-proxy and with a view that is too old.
    pub mode: Mode,
    /// What of that is set, and who set it. `None`: an agent of a version before does not say.
    #[serde(default)]
    pub mode_set: Option<Adjusted<Mode>>,
    /// What forwards Services in kube-proxy's place.
    pub replacement: Option<ReplacementRow>,
    /// What senders are told.
    pub answer: Answer,
    /// What is done about claims that no person made.
    pub auto: Auto,
    /// How many nodes these may cut, of all, of each zone and of each pool: a part, as in `1/3`, and at least one.
    pub auto_limit: String,
    /// Where they are withheld, since that is exceeded.
    pub withheld: Vec<WithheldRow>,
    /// Who exists, and who says so.
    pub cluster: ClusterRow,
    /// Nodes that bear a flag, or a claim that no person made.
    pub flagged: Vec<NodeRow>,
    /// Flags of the CLI on nodes that the view does not have at the moment, by node; they hold again once it has.
    pub flagged_unknown: std::collections::BTreeMap<NodeName, FlagRow>,
    /// Claims that no person made on such nodes.
    pub claimed_unknown: std::collections::BTreeMap<NodeName, Vec<ClaimRow>>,
    /// How many ports of flagged nodes' backends are not cut, because a Service has nothing else.
    pub exempt: usize,
    /// Some of them, with the reason.
    pub exempt_examples: Vec<ExemptRow>,
    /// How many more ports would be exempt, were what is only observed enforced.
    pub would_exempt: usize,
    /// What became of packets that can be balanced anew.
    pub rescue: RescueRow,
    /// What is wrong with the file that keeps the CLI's flags.
    pub flags_problem: Option<String>,
    /// The pinned tables.
    pub dataplane: DataplaneRow,
    /// The devices.
    pub interfaces: Vec<InterfaceRow>,
    /// Why devices and routes could not be looked at last. What is told of devices and of coverage is older then.
    pub routes_problem: Option<String>,
    /// How many backends attached devices cover. `None`: an agent of a version before does not say.
    #[serde(default)]
    pub covered: Option<usize>,
    /// How many backends no attached device covers.
    pub uncovered: usize,
    /// Some of them, with the reason.
    pub uncovered_examples: Vec<BackendRow>,
    /// What was found out about this kernel: how idle clients are challenged, and how RSTs are made.
    pub probe: Findings,
    /// The same in words.
    pub probe_text: String,
    /// Which flows cannot be challenged on this node.
    pub cannot_challenge: Vec<String>,
    /// How often conntrack was listed.
    pub conntrack: ConntrackRow,
    /// The last round of challenges, by node.
    pub challenged: std::collections::BTreeMap<NodeName, ChallengeRow>,
    /// How kube-proxy forwards, and by what that is known.
    pub proxy: Judgement,
    /// What was last deleted of the conntrack entries and the affinity that tied clients to flagged nodes, by node.
    pub stale: std::collections::BTreeMap<NodeName, StaleRow>,
    /// Next hops to flagged nodes.
    pub neighbours: Vec<NeighbourRow>,
    /// What is drained from IPVS.
    pub ipvs: IpvsRow,
    /// How many lines of the log were lost: they came faster than they could be put into words, or than somebody read them.
    pub log_lines_lost: usize,
    /// What is logged. `None`: an agent of a version before does not say.
    #[serde(default)]
    pub log_level: Option<Adjusted<String>>,
}
