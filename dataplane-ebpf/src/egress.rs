//! TC egress: lets a packet pass, or cuts it.
use aya_ebpf::{
    EbpfContext as _,
    bindings::{__sk_buff, TC_ACT_REDIRECT, TC_ACT_SHOT, TC_ACT_UNSPEC},
    macros::classifier,
    programs::TcContext,
};
use nodefence_common::{
    Reason, backend_flags,
    packet::{Link, Packet, Reader as _, Skip, locate, network, transport},
};
use nodefence_ebpf::decide::{Decision, Rejection, Scope, Standing, decide, exempt_reason, portless};

use crate::{
    icmp,
    judge::{Hit, confirmed, exempt, look_up, port_listed, standing_of},
    own::sent_as_it_is,
    packet::{Direct, Skb},
    report::{count, count_raw, sample_skb},
    rescue::hand_over,
    sender::is_foreign,
    tc_answer::{answer_tcp, answer_udp},
};

/// Egress of a device whose frames start with an Ethernet header.
#[classifier]
pub fn nf_egress_l2(ctx: TcContext) -> i32 {
    egress::<true>(ctx.as_ptr().cast())
}

/// Egress of a device whose packets start with the IP header.
#[classifier]
pub fn nf_egress_l3(ctx: TcContext) -> i32 {
    egress::<false>(ctx.as_ptr().cast())
}

/// What an skb starts with.
#[inline(always)]
fn link<const ETHERNET: bool>(skb: *mut __sk_buff) -> Link {
    if ETHERNET {
        Link::Ethernet
    } else {
        // SAFETY: the context of a running program.
        Link::None(u16::from_be(unsafe { (*skb).protocol } as u16))
    }
}

#[inline(always)]
fn egress<const ETHERNET: bool>(skb: *mut __sk_buff) -> i32 {
    let mut hit = match locate(&Direct::skb(skb), link::<ETHERNET>(skb)) {
        Ok(ip) => match look_up(&ip.addr, ip.offset, ip.v6) {
            None => return TC_ACT_UNSPEC,
            Some(hit) => hit,
        },
        Err(Skip::NotIp) => return TC_ACT_UNSPEC,
        Err(_) => {
            let mut hit = Hit::default();
            if elsewhere::<ETHERNET>(skb, &mut hit) == 0 {
                return TC_ACT_UNSPEC;
            }
            hit
        }
    };
    flagged::<ETHERNET>(skb, &mut hit)
}

/// For a packet whose headers are not where they usually are: malformed, or not in the linear part. 1 where the node has a verdict.
#[inline(never)]
fn elsewhere<const ETHERNET: bool>(skb: *mut __sk_buff, hit: &mut Hit) -> u64 {
    match locate(&Skb(skb), link::<ETHERNET>(skb)) {
        Ok(ip) => {
            if let Some(found) = look_up(&ip.addr, ip.offset, ip.v6) {
                *hit = found;
                return 1;
            }
        }
        Err(Skip::NotIp) => {}
        Err(_) => count(Reason::Unparsed, Skb(skb).len()),
    }
    0
}

/// What becomes of a packet whose destination's node has a verdict.
#[inline(never)]
fn flagged<const ETHERNET: bool>(skb: *mut __sk_buff, hit: &mut Hit) -> i32 {
    let bytes = Skb(skb).len().wrapping_sub(hit.l3);
    let action = match standing_of(hit) {
        Standing::Pass => return TC_ACT_UNSPEC,
        Standing::Counted(reason) => {
            count(reason, bytes);
            return TC_ACT_UNSPEC;
        }
        Standing::Subject(action) => action,
    };
    if ETHERNET && is_foreign(skb, hit) != 0 {
        count(Reason::Foreign, bytes);
        return TC_ACT_UNSPEC;
    }
    if hit.flags & backend_flags::OWN != 0 && sent_as_it_is(skb, hit) != 0 {
        count(Reason::OwnSocket, bytes);
        return TC_ACT_UNSPEC;
    }
    let mut packet = Packet::empty();
    if !read::<ETHERNET>(skb, u64::from(hit.l3) | u64::from(hit.v6) << 32, &mut packet) {
        count(Reason::Unparsed, bytes);
        return TC_ACT_UNSPEC;
    }
    if !confirmed(hit, &packet.dst) {
        count(Reason::Stale, bytes);
        return TC_ACT_UNSPEC;
    }
    let decision = match spared(hit, &packet) {
        Some(decision) => decision,
        None => decide(&packet, hit.scope(), action),
    };
    match decision {
        Decision::Pass => TC_ACT_UNSPEC,
        Decision::Counted(reason) => {
            count(reason, bytes);
            if matches!(reason, Reason::Observed) {
                sample_skb(skb, hit, reason);
            }
            TC_ACT_UNSPEC
        }
        Decision::Drop(reason) => {
            sample_skb(skb, hit, reason);
            count(reason, bytes);
            TC_ACT_SHOT
        }
        Decision::Answer(answer) => {
            if hand_over(skb, hit, &packet) != 0 {
                return TC_ACT_SHOT;
            }
            let expected = match answer {
                Rejection::Reset { .. } => Reason::Reset,
                Rejection::Refuse { .. } => Reason::Refused,
                Rejection::Unreachable => {
                    // SAFETY: the context of a running program.
                    let limited = icmp::take(skb, hit.now, unsafe { (*skb).ifindex }, &packet.src);
                    if limited != 0 {
                        count_raw(limited as u32, bytes);
                        return TC_ACT_SHOT;
                    }
                    Reason::Unreachable
                }
            };
            sample_skb(skb, hit, expected);
            let reason = match answer {
                Rejection::Unreachable => answer_udp::<ETHERNET>(skb, hit, &packet),
                _ => answer_tcp::<ETHERNET>(skb, hit, &packet, &answer),
            };
            count_raw(reason, bytes);
            if reason == expected as u32 { TC_ACT_REDIRECT } else { TC_ACT_SHOT }
        }
    }
}

/// Reads the headers from the IP header at `place` (bit 32 set for IPv6) on. Whether they make sense.
#[inline(always)]
fn read<const ETHERNET: bool>(skb: *mut __sk_buff, place: u64, packet: &mut Packet) -> bool {
    read_network::<ETHERNET>(skb, place, packet) != 0 && read_transport(skb, packet) != 0
}

/// This function and the next stand apart for a stack frame of their own: the kernel allows a chain of calls 512 bytes.
#[inline(never)]
fn read_network<const ETHERNET: bool>(skb: *mut __sk_buff, place: u64, packet: &mut Packet) -> u64 {
    u64::from(network(&Skb(skb), link::<ETHERNET>(skb), place as u32, place >> 32 != 0, packet).is_ok())
}

#[inline(never)]
fn read_transport(skb: *mut __sk_buff, packet: &mut Packet) -> u64 {
    u64::from(transport(&Skb(skb), packet).is_ok())
}

/// What the ports of the address say; `None` where the packet is subject to the action.
#[inline(always)]
pub fn spared(hit: &Hit, packet: &Packet) -> Option<Decision> {
    if matches!(hit.scope(), Scope::Port) {
        if let Some(decision) = portless(packet) {
            return Some(decision);
        }
        if port_listed(packet) == 0 {
            return Some(Decision::Pass);
        }
    }
    (exempt(hit, packet) != 0).then(|| Decision::Counted(exempt_reason(packet)))
}
