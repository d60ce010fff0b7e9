//! TC ingress: notes when a node's backends last sent payload.
use aya_ebpf::{
    EbpfContext as _,
    bindings::{__sk_buff, TC_ACT_UNSPEC},
    helpers::bpf_ktime_get_ns,
    macros::classifier,
    programs::TcContext,
};
use nodefence_common::{
    Addr, SEEN_INTERVAL_NS, backend_flags,
    packet::{Packet, Side, Skip, locate, protocol},
};
use nodefence_ebpf::decide::portless;

use crate::{
    egress::{link, read},
    judge::port_listed,
    maps::{BACKENDS, NODES, SEEN},
    packet::{Direct, Skb},
};

/// Ingress of a device whose frames start with an Ethernet header.
#[classifier]
pub fn nf_ingress_l2(ctx: TcContext) -> i32 {
    ingress::<true>(ctx.as_ptr().cast())
}

/// Ingress of a device whose packets start with the IP header.
#[classifier]
pub fn nf_ingress_l3(ctx: TcContext) -> i32 {
    ingress::<false>(ctx.as_ptr().cast())
}

#[inline(always)]
fn ingress<const ETHERNET: bool>(skb: *mut __sk_buff) -> i32 {
    let link = link::<ETHERNET>(skb);
    let ip = match locate(&Direct::skb(skb), link, Side::Source) {
        Ok(ip) => ip,
        Err(Skip::Short) => match locate(&Skb(skb), link, Side::Source) {
            Ok(ip) => ip,
            Err(_) => return TC_ACT_UNSPEC,
        },
        Err(_) => return TC_ACT_UNSPEC,
    };
    let Some(backend) = BACKENDS.get_ptr(&ip.addr) else { return TC_ACT_UNSPEC };
    // SAFETY: a value of the map, whose memory stays the map's own until the program ends.
    let node = unsafe { (&raw const (*backend).node).read_volatile() };
    let Some(seen) = SEEN.get_ptr_mut(node) else { return TC_ACT_UNSPEC };
    // SAFETY: no argument; a value of the map.
    let (now, last) = unsafe { (bpf_ktime_get_ns(), seen.read_volatile()) };
    if now.wrapping_sub(last) >= SEEN_INTERVAL_NS {
        // SAFETY: as above.
        let (generation, flags) = unsafe {
            (
                (&raw const (*backend).generation).read_volatile(),
                (&raw const (*backend).flags).read_volatile(),
            )
        };
        let owned = NODES
            .get_ptr(node)
            // SAFETY: a value of the map.
            .is_some_and(|n| unsafe { (&raw const (*n).generation).read_volatile() } == generation);
        let place = u64::from(ip.offset) | u64::from(ip.v6) << 32;
        if owned && payload::<ETHERNET>(skb, &ip.addr, place, flags) != 0 {
            // SAFETY: a value of the map; the last of several writers wins, which is as good.
            unsafe { seen.write_volatile(now) };
        }
    }
    TC_ACT_UNSPEC
}

/// Whether the packet carries payload of the backend. `place`: offset of the IP header, bit 32 set for IPv6.
#[inline(never)]
fn payload<const ETHERNET: bool>(skb: *mut __sk_buff, addr: &Addr, place: u64, flags: u32) -> u64 {
    let mut packet = Packet::empty();
    if !read::<ETHERNET>(skb, place, &mut packet) {
        return 0;
    }
    if flags & backend_flags::PORT_SCOPED != 0
        && (portless(&packet).is_some() || port_listed(addr, packet.src_port, &packet) == 0)
    {
        return 0;
    }
    // What the node's kernel sends by itself tells nothing of its backends; and the answers of the cut, injected in their
    // name, pass here too.
    let carries = matches!(packet.protocol, protocol::TCP | protocol::UDP | protocol::SCTP);
    u64::from(carries && packet.payload != 0)
}
