//! XDP: cuts packets that arrive addressed straight to a backend on another node, before the stack sees them.
//!
//! The program counts what it cuts, and what the stack will refuse. A packet that passes for a counted reason (observed, lapsed, stale, a
//! fragment, ...) is on its way to TC egress, which counts it there.
use aya_ebpf::{
    bindings::{
        xdp_action::{XDP_DROP, XDP_PASS, XDP_TX},
        xdp_md,
    },
    helpers::bpf_xdp_adjust_tail,
    macros::xdp,
    programs::XdpContext,
};
use nodefence_common::{
    Reason,
    packet::{
        ETH_LEN, Link, Packet, Reader as _, Skip, Sum, TCP_LEN, V4_LEN, V6_LEN, Window as _, locate, network,
        protocol, swap_macs, transport, v4_header, v6_header,
    },
};
use nodefence_ebpf::decide::{Decision, Rejection, Standing, decide};

use crate::{
    egress::spared,
    judge::{Hit, confirmed, look_up, standing_of},
    maps::DEVICES,
    packet::Direct,
    report::{count, sample_xdp},
};

/// Attached to an uplink where the operator asks for it.
#[xdp]
pub fn nf_xdp(ctx: XdpContext) -> u32 {
    let frame = Direct::xdp(ctx.ctx);
    match locate(&frame, Link::Ethernet) {
        Ok(ip) => match look_up(&ip.addr, ip.offset, ip.v6) {
            None => XDP_PASS,
            Some(mut hit) => flagged(ctx.ctx, &mut hit),
        },
        Err(Skip::NotIp) => XDP_PASS,
        Err(_) => {
            if addressed(&frame, ifindex(ctx.ctx)) {
                count(Reason::Unparsed, frame.len());
            }
            XDP_PASS
        }
    }
}

#[inline(always)]
fn ifindex(ctx: *mut xdp_md) -> u32 {
    // SAFETY: the context of a running program.
    unsafe { (*ctx).ingress_ifindex }
}

/// Whether the frame is sent to the device's own MAC address: others are on their way to another host.
#[inline(always)]
fn addressed(frame: &Direct, ifindex: u32) -> bool {
    let Some(device) = DEVICES.get_ptr(&ifindex) else { return false };
    let Some(eth) = frame.window::<14>(0) else { return false };
    // SAFETY: a value of the map, whose memory stays the map's own until the program ends.
    let mac = unsafe { (&raw const (*device).mac).read_volatile() };
    mac == [eth.u8::<0>(), eth.u8::<1>(), eth.u8::<2>(), eth.u8::<3>(), eth.u8::<4>(), eth.u8::<5>()]
}

/// Whether an answer is left to TC egress, because an answer that XDP sends might arrive damaged:
///
/// - Generic XDP runs on skbs. No helper tells whether an skb's checksum is left to the device (CHECKSUM_PARTIAL: from guests and
///   veth peers), or whether the skb is to be split into segments. XDP_TX hands the skb with these marks to the driver
///   (`generic_xdp_tx` in net/core/dev.c, Linux 5.10 to 6.18, validates nothing), and the driver then sums over a sum.
/// - The device may have taken a VLAN tag out of the frame before XDP (receive offload; on veth the sender's stack keeps the tag
///   beside the packet). The answer would go without the tag, into another network. A tag that is still in the frame stays there.
#[inline(always)]
fn left_to_egress(packet: &Packet, ifindex: u32) -> bool {
    let Some(device) = DEVICES.get_ptr(&ifindex) else { return true };
    // SAFETY: a value of the map, whose memory stays the map's own until the program ends.
    let (generic, vlans) = unsafe {
        ((&raw const (*device).generic).read_volatile(), (&raw const (*device).vlans).read_volatile())
    };
    generic != 0 || vlans != 0 && packet.l3 == ETH_LEN as u32
}

#[inline(never)]
fn flagged(ctx: *mut xdp_md, hit: &mut Hit) -> u32 {
    let frame = Direct::xdp(ctx);
    let bytes = frame.len().wrapping_sub(hit.l3);
    if !addressed(&frame, ifindex(ctx)) {
        return XDP_PASS;
    }
    let action = match standing_of(hit) {
        Standing::Pass | Standing::Counted(_) => return XDP_PASS,
        Standing::Subject(action) => action,
    };
    let mut packet = Packet::empty();
    if read_network(ctx, hit, &mut packet) == 0 || read_transport(ctx, &mut packet) == 0 {
        return XDP_PASS;
    }
    if !confirmed(hit, &packet.dst) {
        return XDP_PASS;
    }
    let decision = match spared(hit, &packet) {
        Some(decision) => decision,
        None => decide(&packet, hit.scope(), action),
    };
    let (verdict, reason) = match decision {
        Decision::Pass | Decision::Counted(_) => return XDP_PASS,
        Decision::Drop(reason) => (XDP_DROP, reason),
        // TC egress answers it, and the stack sends that answer by the device that its route names.
        Decision::Answer(Rejection::Reset { .. } | Rejection::Refuse { .. })
            if left_to_egress(&packet, ifindex(ctx)) =>
        {
            return XDP_PASS;
        }
        Decision::Answer(Rejection::Reset { .. }) => (XDP_TX, Reason::Reset),
        Decision::Answer(Rejection::Refuse { .. }) => (XDP_TX, Reason::Refused),
        // ICMP answers are made at TC egress only.
        Decision::Answer(Rejection::Unreachable) => (XDP_DROP, Reason::Dropped),
    };
    sample_xdp(&frame, ifindex(ctx), hit, reason);
    let (verdict, reason) = match decision {
        Decision::Answer(answer @ (Rejection::Reset { .. } | Rejection::Refuse { .. })) => {
            if answer_tcp(ctx, &packet, &answer) != 0 {
                (verdict, reason)
            } else {
                (XDP_DROP, Reason::Failed)
            }
        }
        _ => (verdict, reason),
    };
    count(reason, bytes);
    verdict
}

#[inline(never)]
fn read_network(ctx: *mut xdp_md, hit: &Hit, packet: &mut Packet) -> u64 {
    u64::from(network(&Direct::xdp(ctx), Link::Ethernet, hit.l3, hit.v6 != 0, packet).is_ok())
}

#[inline(never)]
fn read_transport(ctx: *mut xdp_md, packet: &mut Packet) -> u64 {
    u64::from(transport(&Direct::xdp(ctx), packet).is_ok())
}

/// The shortest Ethernet frame, without its check sequence (`ETH_ZLEN`). XDP_TX hands a frame to the device as it is. Where the hardware does not
/// pad, drivers pad only the skbs that the stack sends (`eth_skb_pad`).
const SHORTEST: u32 = 60;

/// Turns the frame into the answer to its segment. Whether it worked. (A tail grows since Linux 5.8.)
#[inline(never)]
fn answer_tcp(ctx: *mut xdp_md, packet: &Packet, answer: &Rejection) -> u64 {
    let header = if packet.v6 { V6_LEN } else { V4_LEN };
    let len = packet.l3 + (header + TCP_LEN) as u32;
    let len = if len < SHORTEST { SHORTEST } else { len };
    let delta = Direct::xdp(ctx).len().wrapping_sub(len);
    // SAFETY: plain numbers; all packet pointers are taken anew after it.
    if unsafe { bpf_xdp_adjust_tail(ctx, 0_i32.wrapping_sub(delta as i32)) } != 0 {
        return 0;
    }
    let frame = Direct::xdp(ctx);
    // An Ethernet, an IPv4 and a TCP header are 54 bytes: these zeros are the rest of the shortest frame. The answer is written after them.
    if !frame.write(SHORTEST - 8, &[0; 2]) {
        return 0;
    }
    let Some(eth) = frame.window::<12>(0) else { return 0 };
    if !frame.write(0, &swap_macs([eth.raw32::<0>(), eth.raw32::<4>(), eth.raw32::<8>()])) {
        return 0;
    }
    let written = if packet.v6 {
        frame.write(packet.l3, &v6_header(&packet.dst, &packet.src, protocol::TCP, TCP_LEN))
    } else {
        frame.write(packet.l3, &v4_header(&packet.dst, &packet.src, 0, protocol::TCP, TCP_LEN))
    };
    u64::from(written && frame.write(packet.l3 + header as u32, &answer.tcp(packet, Sum::Full)))
}
