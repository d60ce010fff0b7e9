//! The rows and reports that the CLI prints. JSON and YAML output have exactly these fields.

use std::{fmt, net::IpAddr, time::Duration};

use jiff::Timestamp;
use nodefence_common::Counter;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{
    adjusted::Adjusted,
    claim::{ClaimRow, FlagRow, WithheldRow},
    cluster::ClusterRow,
    devices::{InterfaceRow, NeighbourRow},
    ipvs::IpvsRow,
    pod::PodRow,
    replacement::ReplacementRow,
    rescue::RescueRow,
    settings::SettingsRow,
};
use crate::{
    cluster::{Backend, NodeName, Protocol, Scope},
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
    /// Packets pass.
    Pass,
    /// Packets are dropped, and the sender gets a RST or an ICMP port unreachable.
    Refuse,
    /// Packets are dropped, and the sender gets nothing.
    Drop,
    /// Packets pass and are counted.
    Observe,
    /// The node does not exist any more. Only `nodes --watch` prints this value.
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

/// A node, and the claims on it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct NodeRow {
    /// The name of the node.
    pub name: String,
    /// The address at which the other nodes reach the node. `None` if it is not known.
    pub address: Option<IpAddr>,
    /// All known addresses of the node. `address` is first.
    pub addresses: Vec<IpAddr>,
    /// The zone of the node. `None` if the source names no zone.
    pub zone: Option<String>,
    /// The pool of the node. `None` if the source names no pool.
    pub pool: Option<String>,
    /// The index of the node in the maps.
    pub index: u32,
    /// The generation of the index. An index that is given to another node has a new generation.
    pub generation: u32,
    /// The number of backends on the node.
    pub backends: usize,
    /// Whether the agent runs on the node.
    pub own: bool,
    /// What the datapath does with packets to the node.
    pub action: NodeAction,
    /// The number of exempt ports of the backends: packets to them pass, because a Service has no other endpoint.
    pub exempt: usize,
    /// The flag on the node. `None` if no flag holds.
    pub flag: Option<FlagRow>,
    /// All claims on the node, the flags included.
    pub claims: Vec<ClaimRow>,
}

/// A backend, and the device by which packets to it leave.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct BackendRow {
    /// The address of the backend.
    pub address: IpAddr,
    /// The port of a backend in the host network, which shares the address of its node. `None` if the whole address belongs to the backend.
    pub port: Option<u16>,
    /// The protocol of the port. `None` if `port` is `None`.
    pub protocol: Option<Protocol>,
    /// The node of the backend.
    pub node: String,
    /// Whether the node is flagged, or an automatic claim on it takes effect.
    pub flagged: bool,
    /// The attached device by which packets to the backend leave. `None` if no attached device is known to carry them.
    pub interface: Option<String>,
    /// Why no attached device covers the backend. `None` if one does, or if packets to the backend leave by no device.
    pub uncovered: Option<String>,
}

impl BackendRow {
    /// The backend itself, as it is named in texts.
    pub(crate) fn backend(&self) -> Backend {
        let scope = match (self.port, self.protocol) {
            (Some(port), Some(protocol)) => Scope::Port(port, protocol),
            _ => Scope::Address,
        };
        Backend { address: self.address, scope }
    }
}

/// An exempt port of a backend on a flagged node. Packets to it pass.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ExemptRow {
    /// The node of the backend.
    pub node: String,
    /// The address of the backend.
    pub address: IpAddr,
    /// The exempt port.
    pub port: u16,
    /// The protocol of the port.
    pub protocol: Protocol,
    /// The first Service that needs the port.
    pub service: String,
    /// Why the port is exempt, in words.
    pub why: String,
}

impl ExemptRow {
    /// The exempt port, as it is named in texts.
    pub(crate) const fn backend(&self) -> Backend {
        Backend { address: self.address, scope: Scope::Port(self.port, self.protocol) }
    }
}

/// A counter of the datapath.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct CounterRow {
    /// The name of the counter.
    pub reason: String,
    /// The number of packets, summed over all CPUs.
    pub packets: u64,
    /// The number of bytes of these packets, from the network header on.
    pub bytes: u64,
    /// What the counter counts.
    pub help: String,
}

impl CounterRow {
    pub(crate) fn of(name: &str, help: &str, counter: Counter) -> Self {
        Self {
            reason: name.to_owned(),
            packets: counter.packets,
            bytes: counter.bytes,
            help: help.trim().to_owned(),
        }
    }
}

/// The result of challenging the idle clients of a node. A challenged client answers with a packet, and that packet is reset.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ChallengeRow {
    /// Whether conntrack was listed whole. If false, flows may be missing.
    #[serde(default)]
    pub is_complete: bool,
    /// The number of flows to the node that conntrack listed.
    pub listed: usize,
    /// The number of flows whose client was challenged.
    pub challenged: usize,
    /// The number of challenged flows that were gone or reset at the end.
    pub closed: usize,
    /// The number of flows that were not challenged because conntrack has them in CLOSE.
    pub skipped_closed: usize,
    /// The number of flows that were not challenged because they are not TCP. They are cut when the client next sends.
    pub skipped_not_tcp: usize,
    /// The number of flows that were not challenged because they were being opened, or closed in order.
    pub skipped_opening_or_ended: usize,
    /// The number of flows that were not challenged because no attached device leads to the backend, or because the segment could not be injected.
    pub unreachable: usize,
    /// The number of flows that were made liberal in the reply direction.
    pub liberal: usize,
    /// Duration of the round, in seconds.
    pub seconds: f64,
    /// What failed, or why the round ended early. `None` if the round was complete.
    pub problem: Option<String>,
}

impl ChallengeRow {
    /// The number of established TCP flows. `None` if flows may be missing from the listing.
    pub fn established(&self) -> Option<usize> {
        let others = self.skipped_closed + self.skipped_not_tcp + self.skipped_opening_or_ended;
        self.is_complete.then(|| self.listed.saturating_sub(others))
    }
}

/// The stale conntrack entries and affinity of a flagged node that were deleted. Stale entries tie clients to the node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct StaleRow {
    /// The number of nodes that were cut together. The counts are of all of them. 1 if the node was cut alone.
    pub nodes: usize,
    /// The number of affinity sets or lists of kube-proxy from which all clients were deleted.
    pub affinity: usize,
    /// The number of sets that were left alone, because their name is cut off and their Service is not known.
    pub affinity_unknown: usize,
    /// The number of conntrack entries of UDP and SCTP that were deleted one by one.
    pub datagrams: usize,
    /// The number of conntrack entries of TCP that were deleted one by one, after the idle clients were challenged.
    pub tcp: usize,
    /// The number of requests that deleted by filter. The kernel does not report how many entries each request deleted.
    pub by_filter: usize,
    /// The number of entries that the kernel did not delete.
    pub refused: usize,
    /// What failed, or why something was left as it is. `None` if nothing failed.
    pub problem: Option<String>,
}

const fn yes() -> bool {
    true
}

/// The result of a `flag`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct FlagReport {
    /// The flagged node.
    pub node: String,
    /// The node of the agent that has the flag. No other agent knows of the flag.
    #[serde(default)]
    pub on: String,
    /// The user who set the flag: the user that the kernel names, and the user that sudo names.
    #[serde(default)]
    pub by: String,
    /// The index of the node in the maps.
    pub index: u32,
    /// What the datapath does with packets to the node from now on.
    pub action: NodeAction,
    /// Seconds until the flag ends by itself. `None` if it holds until an `unflag`.
    pub for_seconds: Option<u64>,
    /// The number of backends on the node.
    pub backends: usize,
    /// The number of these backends that no attached device covers. Traffic to them is not cut.
    pub uncovered_count: usize,
    /// The first few backends that are not covered, with the reason.
    pub uncovered: Vec<BackendRow>,
    /// The number of these backends that are covered and have no exempt port: new connections and datagrams to them are cut, if the maps have room for them.
    #[serde(default)]
    pub cut_count: usize,
    /// The number of exempt ports of the node: packets to them pass, because a Service has no other endpoint.
    #[serde(default)]
    pub exempt_count: usize,
    /// The first few exempt ports, with the reason.
    #[serde(default)]
    pub exempt: Vec<ExemptRow>,
    /// The number of endpoints of the node that are left out of the maps, because each may be the address of the node. Traffic to them is not cut.
    #[serde(default)]
    pub left_out: usize,
    /// The number of backends of all nodes that do not fit in the maps. Traffic to them is not cut.
    #[serde(default)]
    pub beyond_maps: u64,
    /// Why new connections are refused instead of balanced anew. `None` if they are balanced anew.
    #[serde(default)]
    pub new_refused: Option<String>,
    /// The flag of an earlier command that this flag replaces. `None` if there was none.
    pub replaced: Option<FlagRow>,
    /// Whether the verdict is in the map. An agent of an older version does not send this field: it warns if the verdict is not in the map.
    #[serde(default = "yes")]
    pub written: bool,
    /// Microseconds from the reading of the request to the end of the map write.
    pub flip_micros: u64,
    /// When the request was read, in nanoseconds of CLOCK_MONOTONIC (the clock of the datapath).
    pub received_ns: u64,
    /// The number of established TCP flows to the node that conntrack listed after the flag was set. `None` if they were not counted: nothing is cut, no
    /// client is told, the listing failed, or it took longer than half a second.
    #[serde(default)]
    pub established: Option<usize>,
    /// Whether idle clients are being challenged at this moment. `challenged` of `nodefence status` has the result later.
    pub challenging: bool,
    /// The result of challenging the idle clients. If `challenging` is true: the result so far, or `None` if there is none yet.
    pub challenged: Option<ChallengeRow>,
    /// Why idle clients are not challenged at all. `None` if they are.
    #[serde(default)]
    pub not_challenged: Option<String>,
    /// What the operator should know beside the other fields, in words.
    pub warnings: Vec<String>,
}

/// The result of an `unflag`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct UnflagReport {
    /// The node.
    pub node: String,
    /// Whether the node had a flag that a command set.
    pub was_flagged: bool,
    /// The flag that still holds: a flag of the source of nodes, or a flag that another command set meanwhile. `None` if there is none.
    pub still: Option<FlagRow>,
    /// What the operator should know, in words.
    pub warnings: Vec<String>,
}

/// The pinned maps.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct DataplaneRow {
    /// The folder in which the maps are pinned.
    pub pin_dir: String,
    /// The number of backends for which the map has room.
    pub max_backends: u32,
    /// The number of backends that did not fit. Traffic to them passes.
    pub left_out: u64,
    /// The number of host-network ports that did not fit. Traffic to them passes.
    pub left_out_ports: u64,
    /// The addresses of the first few backends that did not fit.
    pub left_out_first: Vec<IpAddr>,
    /// Why the last write failed. `None` if it did not fail.
    pub error: Option<String>,
    /// How many times all entries were compared with what the agent wrote, since the agent began. The agent compares them every ten minutes.
    pub compared: u64,
    /// When the entries were last compared. `None` before the first time.
    pub compared_last: Option<Timestamp>,
    /// The number of entries that somebody else had changed, since the agent began. The agent corrected them.
    pub differed: u64,
    /// Why the last comparison was given up. `None` if it was complete.
    pub compare_error: Option<String>,
    /// Seconds since the verdicts were last renewed.
    pub renewed_seconds_ago: f64,
    /// Why the last renewal failed. Verdicts lapse 3 s after the last renewal that succeeded. `None` if it did not fail.
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

/// The listings of conntrack since the agent began. Listings for the audit are not included.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ConntrackRow {
    /// The conntrack zone that the agent lists. 0 is the default zone.
    pub zone: u16,
    /// How many times the kernel listed its IPv4 entries.
    pub listed_v4: u64,
    /// How many times the kernel listed its IPv6 entries.
    pub listed_v6: u64,
}

/// The state of the agent.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Status {
    /// The version of the agent.
    pub version: String,
    /// The process id of the agent.
    pub pid: i32,
    /// When the agent started.
    pub started: Timestamp,
    /// The node that the agent runs on.
    pub node: String,
    /// The pod that the agent runs in. `None` if the agent runs in no pod, or is of an older version that does not report it.
    #[serde(default)]
    pub pod: Option<PodRow>,
    /// The mode in effect. It is `observe` also where `enforce` is set, while another program replaces kube-proxy or the view is too old.
    pub mode: Mode,
    /// The mode that is set, and who set it. `None` if the agent is of an older version that does not report it.
    #[serde(default)]
    pub mode_set: Option<Adjusted<Mode>>,
    /// The settings for all agents of the cluster. `None` if the source of nodes is no API server.
    #[serde(default)]
    pub settings: Option<SettingsRow>,
    /// The program that forwards Services in place of kube-proxy. `None` if there is none.
    pub replacement: Option<ReplacementRow>,
    /// What a sender gets when its packet is cut.
    pub answer: Answer,
    /// What the agent does about automatic claims, which no person made.
    pub auto: Auto,
    /// The part of the nodes that automatic claims may cut, such as `1/3`: of all nodes, of each zone and of each pool. They may always cut one node.
    pub auto_limit: String,
    /// The scopes in which this limit is exceeded.
    pub withheld: Vec<WithheldRow>,
    /// The source of nodes, and the view that the agent took from it.
    pub cluster: ClusterRow,
    /// The nodes with a flag or an automatic claim.
    pub flagged: Vec<NodeRow>,
    /// The flags on nodes that the view does not have at the moment, by node. They take effect when the view has the node.
    pub flagged_unknown: std::collections::BTreeMap<NodeName, FlagRow>,
    /// The automatic claims on nodes that the view does not have at the moment, by node.
    pub claimed_unknown: std::collections::BTreeMap<NodeName, Vec<ClaimRow>>,
    /// The number of exempt ports of flagged nodes: packets to them pass, because a Service has no other endpoint.
    pub exempt: usize,
    /// The first few exempt ports, with the reason.
    pub exempt_examples: Vec<ExemptRow>,
    /// How many more ports would be exempt if all claims that are only observed were enforced.
    pub would_exempt: usize,
    /// The rescue of packets that meet the cut and can be balanced anew.
    pub rescue: RescueRow,
    /// What is wrong with the file of saved flags. `None` if nothing is wrong.
    pub flags_problem: Option<String>,
    /// The pinned maps.
    pub dataplane: DataplaneRow,
    /// The devices.
    pub interfaces: Vec<InterfaceRow>,
    /// Why devices and routes could not be read last. What this report says of devices and coverage is then older. `None` if they were read.
    pub routes_problem: Option<String>,
    /// The number of backends that attached devices cover. `None` if the agent is of an older version that does not report it.
    #[serde(default)]
    pub covered: Option<usize>,
    /// The number of backends that no attached device covers. Traffic to them is not cut.
    pub uncovered: usize,
    /// The first few of these backends, with the reason.
    pub uncovered_examples: Vec<BackendRow>,
    /// The results of the probes of this kernel: how idle clients are challenged, and how RSTs are made.
    pub probe: Findings,
    /// The same results in words.
    pub probe_text: String,
    /// The flows that cannot be challenged on this node, in words.
    pub cannot_challenge: Vec<String>,
    /// The listings of conntrack.
    pub conntrack: ConntrackRow,
    /// The last round of challenges for each node, by name.
    pub challenged: std::collections::BTreeMap<NodeName, ChallengeRow>,
    /// How kube-proxy forwards, and how the agent knows.
    pub proxy: Judgement,
    /// The stale conntrack entries and affinity that were last deleted for each flagged node, by name.
    pub stale: std::collections::BTreeMap<NodeName, StaleRow>,
    /// The next hops to flagged nodes.
    pub neighbours: Vec<NeighbourRow>,
    /// The drain in IPVS.
    pub ipvs: IpvsRow,
    /// The number of log lines that were lost, because they came faster than they could be formatted or read.
    pub log_lines_lost: usize,
    /// What is logged. `None` if the agent is of an older version that does not report it.
    #[serde(default)]
    pub log_level: Option<Adjusted<String>>,
}
