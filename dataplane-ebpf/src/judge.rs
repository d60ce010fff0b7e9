//! From an address to the standing of its node: the one lookup of the passing path, and what follows a hit.
use aya_ebpf::helpers::bpf_ktime_get_ns;
use nodefence_common::{Addr, NodeEntry, PortKey, Verdict, backend_flags, packet::Packet, port_flags};
use nodefence_ebpf::decide::{Node, Scope, Standing, portless, standing};

use crate::maps::{BACKENDS, NODES, PORTS};

/// A backend whose node has a verdict other than healthy.
#[derive(Clone, Copy, Default)]
pub struct Hit {
    /// Time of the packet (CLOCK_MONOTONIC nanoseconds); set by [`standing_of`].
    pub now: u64,
    /// Offset of the IP header.
    pub l3: u32,
    /// IPv6 rather than IPv4.
    pub v6: u32,
    /// Node index.
    pub node: u32,
    /// Generation the backend was written for.
    pub generation: u32,
    /// Flags of the backend.
    pub flags: u32,
}

impl Hit {
    /// How the destination is matched.
    #[inline(always)]
    pub const fn scope(&self) -> Scope {
        if self.flags & backend_flags::PORT_SCOPED != 0 { Scope::Port } else { Scope::Address }
    }
}

#[inline(always)]
fn verdict(node: *const NodeEntry) -> u32 {
    // SAFETY: a value of the map. The object's type is the enum, but another version may have written any number.
    unsafe { (&raw const (*node).verdict).cast::<u32>().read_volatile() }
}

/// Looks an address up: one hash lookup, on a hit one array lookup. `None` where the packet passes without another look at it.
#[inline(always)]
pub fn look_up(addr: &Addr, l3: u32, v6: bool) -> Option<Hit> {
    #[cfg(feature = "bench")]
    let addr = crate::bench_list::next(addr);
    let backend = BACKENDS.get_ptr(addr)?;
    // SAFETY: a value of the map, whose memory stays the map's own until the program ends.
    let (node, generation, flags) = unsafe {
        (
            (&raw const (*backend).node).read_volatile(),
            (&raw const (*backend).generation).read_volatile(),
            (&raw const (*backend).flags).read_volatile(),
        )
    };
    if verdict(NODES.get_ptr(node)?) == Verdict::Healthy as u32 {
        return None;
    }
    Some(Hit { now: 0, l3, v6: u32::from(v6), node, generation, flags })
}

/// Whether the backend still has the entry that [`look_up`] read. From Linux 6.1 on a deleted element may be reused
/// at once (`bpf_mem_cache_free` in kernel/bpf/hashtab.c), so the entry that was read may have been another backend's.
#[inline(always)]
pub fn confirmed(hit: &Hit, addr: &Addr) -> bool {
    #[cfg(feature = "bench")]
    let addr = crate::bench_list::last(addr);
    let Some(backend) = BACKENDS.get_ptr(addr) else { return false };
    // SAFETY: a value of the map, whose memory stays the map's own until the program ends.
    unsafe {
        (&raw const (*backend).node).read_volatile() == hit.node
            && (&raw const (*backend).generation).read_volatile() == hit.generation
            && (&raw const (*backend).flags).read_volatile() == hit.flags
    }
}

/// Judges the node's entry, as [`standing`] says, now.
#[inline(always)]
pub fn standing_of(hit: &mut Hit) -> Standing {
    let Some(node) = NODES.get_ptr(hit.node) else { return Standing::Pass };
    // SAFETY: a value of the map; see `verdict`. User space writes an entry as a whole, the kernel copies it word by word:
    // `until` is one word, and the generation is compared with the backend's.
    let node = unsafe {
        Node {
            verdict: verdict(node),
            action: (&raw const (*node).action).cast::<u32>().read_volatile(),
            generation: (&raw const (*node).generation).read_volatile(),
            until: (&raw const (*node).until).read_volatile(),
        }
    };
    // SAFETY: no argument.
    hit.now = unsafe { bpf_ktime_get_ns() };
    standing(&node, hit.generation, hit.now)
}

/// Whether the packet's destination port belongs to a port-scoped backend that is subject to the verdict.
#[inline(never)]
pub fn port_listed(packet: &Packet) -> u64 {
    u64::from(flags(&PortKey::endpoint(packet.dst, packet.dst_port, packet.protocol)) & port_flags::CUT)
}

/// Whether the packet's destination is exempt. It is where its port is exempt. It also is where all of the address is the backend's, the address is
/// exempt, and no key cuts the port. A packet without ports, or of a flow of which not every packet shows them, goes by the address.
///
/// The port's key alone is enough: a view may be on its way in which the address is no backend as a whole any more, and has no key of its own.
#[inline(never)]
pub fn exempt(hit: &Hit, packet: &Packet) -> u64 {
    let is_whole = !matches!(hit.scope(), Scope::Port);
    let (mut port, mut address) = (0, 0);
    if !is_whole || portless(packet).is_none() {
        port = flags(&PortKey::exempt(packet.dst, packet.dst_port, packet.protocol));
    }
    if is_whole {
        address = flags(&PortKey::exempt_address(packet.dst));
    }
    // Without a branch: the verifier would follow both of its ways through every answer.
    const { assert!(port_flags::EXEMPT == port_flags::CUT << 1) };
    u64::from((port | address & !(port << 1)) & port_flags::EXEMPT)
}

#[inline(always)]
fn flags(key: &PortKey) -> u32 {
    let Some(flags) = PORTS.get_ptr(key) else { return 0 };
    // SAFETY: a value of the map, whose memory stays the map's own until the program ends.
    unsafe { flags.read_volatile() }
}
