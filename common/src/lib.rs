//! The one contract between nodefence's kernel programs and its user space.
//!
//! But for [`packet`], the codec of headers, everything here is plain memory that both sides read: no padding, sizes asserted at compile
//! time, integers in host byte order unless a field says otherwise. A change of any layout here needs a new [`PIN_VERSION`]: the loader
//! compares sizes with pinned maps, never field order.
#![no_std]

mod addr;
mod counters;
mod event;
mod maps;
pub mod packet;
mod rescue;
mod verdict;

pub use addr::Addr;
pub use counters::{Counter, Reason};
pub use event::{Event, EventKind, HEAD_LEN};
pub use maps::{
    BackendEntry, Budget, Config, Device, Limits, MacKey, NodeEntry, PortKey, RouteVlan, backend_flags,
    config_flags, port_flags, port_kinds,
};
pub use rescue::{
    DEFAULT_RESCUE_PER_SECOND, RESCUE_BYTES, RESCUE_LEASE_NS, RESCUE_LONG, RESCUE_LONG_FRAME, RESCUE_MAX,
    RESCUE_SHORT, RESCUE_SHORT_FRAME, RescueHead, rescue_budget,
};
pub use verdict::{Action, ActionField, Verdict, VerdictField};

/// Folder below the BPF filesystem that holds every pin of ours.
pub const PIN_ROOT: &str = "nodefence";
/// Version of the map layouts; part of the pin path (`/sys/fs/bpf/nodefence/v3`).
pub const PIN_VERSION: &str = "v3";

/// Backends that fit unless the agent asks for another size (`--max-backends`).
pub const DEFAULT_MAX_BACKENDS: u32 = 262_144;
/// Nodes that fit; the size of the `nodes` array.
pub const MAX_NODES: u32 = 16_384;
/// Port-scoped (host-network) backends and exempt ports that fit.
pub const MAX_PORTS: u32 = 65_536;
/// Size of the `events` ring buffer in bytes; a power of two and a multiple of the page size.
pub const EVENTS_BYTES: u32 = 1 << 20;
/// Network devices that the XDP program can know.
pub const MAX_DEVICES: u32 = 1_024;
/// MAC addresses of devices of the network namespace that fit. A packet from one that does not fit passes.
pub const MAX_MACS: u32 = 16_384;
/// Pairs of a device and a VLAN by which routes to backends leave that fit. A packet that leaves by another pair passes.
pub const MAX_ROUTE_VLANS: u32 = 16_384;

/// How long (ns) a verdict holds after the agent last renewed it.
pub const VERDICT_LIFETIME_NS: u64 = 3_000_000_000;
/// Senders whose ICMP answers are counted, each for itself. With the default budget no more than 6,000 are short of answers at a time.
pub const MAX_ICMP_SENDERS: u32 = 16_384;
/// The injector returns this where the budget of ICMP answers is spent, the machine's or the sender's. (0: the frame is in; anything else: it is not.)
pub const INJECTED_NOT_FOR_BUDGET: u32 = 1;
/// ICMP answers a second, of the whole machine, unless configured otherwise: as many as the kernel makes itself (`net.ipv4.icmp_msgs_per_sec`).
pub const DEFAULT_ICMP_PER_SECOND: u32 = 1_000;
/// Answers to TCP segments a second, of the whole machine, that user space makes for the kernel programs: less than a tenth of a processor.
pub const ANSWERS_PER_SECOND: u32 = 20_000;
/// Sampled cuts a second and CPU that reach the ring buffer unless configured otherwise.
pub const DEFAULT_SAMPLES_PER_SECOND: u32 = 20;
