//! The maps, BTF-typed and pinned by name. Their layout is `nodefence_common`'s; their names are what `bpftool` shows.
use aya_ebpf::{
    bindings::BPF_F_NO_PREALLOC,
    btf_maps::{Array, HashMap, LruHashMap, PerCpuArray, RingBuf},
    macros::btf_map,
};
use nodefence_common::{
    Addr, BackendEntry, Budget, Config, Counter, DEFAULT_MAX_BACKENDS, Device, EVENTS_BYTES, Limits,
    MAX_DEVICES, MAX_ICMP_SENDERS, MAX_MACS, MAX_NODES, MAX_PORTS, MAX_ROUTE_VLANS, MacKey, NodeEntry,
    PortKey, RESCUE_BYTES, Reason, RouteVlan,
};

/// Hash maps are not preallocated: a small cluster does not pay for the largest. As in a preallocated map, a value that a program holds
/// may be another key's by the time it is read. `judge::confirmed` looks once more before anything is cut.
const NO_PREALLOC: usize = BPF_F_NO_PREALLOC as usize;

#[btf_map(name = "backends", pin_by_name)]
pub static BACKENDS: HashMap<Addr, BackendEntry, { DEFAULT_MAX_BACKENDS as usize }, NO_PREALLOC> =
    HashMap::new();

#[btf_map(name = "ports", pin_by_name)]
pub static PORTS: HashMap<PortKey, u32, { MAX_PORTS as usize }, NO_PREALLOC> = HashMap::new();

#[btf_map(name = "nodes", pin_by_name)]
pub static NODES: Array<NodeEntry, { MAX_NODES as usize }> = Array::new();

#[btf_map(name = "counters", pin_by_name)]
pub static COUNTERS: PerCpuArray<Counter, { Reason::COUNT as usize }> = PerCpuArray::new();

/// Records of [`nodefence_common::Event`]. That is not the value's type here: the object would then claim a value size, which the
/// kernel keeps for no ring buffer (kernel/bpf/ringbuf.c, ringbuf_map_alloc), and no pinned one would pass for the same map.
#[btf_map(name = "events", pin_by_name)]
pub static EVENTS: RingBuf<(), { EVENTS_BYTES as usize }> = RingBuf::new();

#[btf_map(name = "config", pin_by_name)]
pub static CONFIG: Array<Config, 1> = Array::new();

#[btf_map(name = "limits", pin_by_name)]
pub static LIMITS: PerCpuArray<Limits, 1> = PerCpuArray::new();

#[btf_map(name = "icmp_budget", pin_by_name)]
pub static ICMP_BUDGET: Array<Budget, 1> = Array::new();

/// Of answers to TCP segments that user space makes.
#[btf_map(name = "answer_budget", pin_by_name)]
pub static ANSWER_BUDGET: Array<Budget, 1> = Array::new();

/// By sender: the state of [`nodefence_ebpf::limit::take_of_sender`]. A sender that the kernel evicts to make room begins anew; the machine's budget holds for it too.
#[btf_map(name = "icmp_senders", pin_by_name)]
pub static ICMP_SENDERS: LruHashMap<Addr, u64, { MAX_ICMP_SENDERS as usize }> = LruHashMap::new();

#[btf_map(name = "devices", pin_by_name)]
pub static DEVICES: HashMap<u32, Device, { MAX_DEVICES as usize }, NO_PREALLOC> = HashMap::new();

/// MAC addresses of this node's devices.
#[btf_map(name = "macs", pin_by_name)]
pub static MACS: HashMap<MacKey, u32, { MAX_MACS as usize }, NO_PREALLOC> = HashMap::new();

/// By which devices, in which VLANs, routes to backends leave, and from which MAC address as a rule.
#[btf_map(name = "route_vlans", pin_by_name)]
pub static ROUTE_VLANS: HashMap<RouteVlan, MacKey, { MAX_ROUTE_VLANS as usize }, NO_PREALLOC> =
    HashMap::new();

/// Up to when (CLOCK_MONOTONIC ns) the agent's drains of IPVS hold. No program reads this map: it is here so that it is pinned and outlives the agent.
#[btf_map(name = "lease", pin_by_name)]
pub static LEASE: Array<u64, 1> = Array::new();

/// Records of [`nodefence_common::RescueHead`] and frame. Neither this map nor the two below are pinned: packets that one agent asked
/// for must not be handed over to another that does not read them.
#[btf_map(name = "rescue")]
pub static RESCUE: RingBuf<(), { RESCUE_BYTES as usize }> = RingBuf::new();

/// Up to when (CLOCK_MONOTONIC ns) packets to rescue are handed over.
#[btf_map(name = "rescue_until")]
pub static RESCUE_UNTIL: Array<u64, 1> = Array::new();

/// How many packets to rescue may be handed over, and how many were. Index: [`nodefence_common::rescue_budget`].
#[btf_map(name = "rescue_budget")]
pub static RESCUE_BUDGET: Array<u64, 2> = Array::new();
