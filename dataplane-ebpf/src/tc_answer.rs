//! Turns a packet into its own answer, in place, and sends it back in as ingress of the same device.
//!
//! Where that cannot be done the packet goes to user space, which builds a fresh one (`nf_inject`).
use core::{arch::asm, mem::MaybeUninit};

use aya_ebpf::{
    bindings::{__sk_buff, BPF_F_INGRESS, BPF_F_INVALIDATE_HASH, BPF_F_RECOMPUTE_CSUM, TC_ACT_REDIRECT},
    helpers::{bpf_l4_csum_replace, bpf_redirect, bpf_skb_change_tail},
};
use nodefence_common::{
    ANSWERS_PER_SECOND, EventKind, Reason,
    packet::{
        ICMP_LEN, Packet, Reader as _, Sum, TCP_LEN, UDP_LEN, V4_LEN, V6_LEN, Window as _, at, marks,
        port_unreachable, protocol, pseudo, sum, swap_macs, v4_header, v6_header,
    },
};
use nodefence_ebpf::decide::Rejection;

use crate::{
    judge::Hit,
    maps::ANSWER_BUDGET,
    packet::{Direct, Skb},
    report::{add_one, emit_skb, has_left, inject},
};

/// Keeps a CHECKSUM_COMPLETE sum right and drops the flow hash of the old direction.
const STORE: u64 = BPF_F_RECOMPUTE_CSUM as u64 | BPF_F_INVALIDATE_HASH as u64;
/// Bytes of the datagram's transport header that an ICMP error quotes (RFC 792; RFC 4443 asks for as much as fits, which
/// eight bytes satisfy for a host that looks the socket up).
const QUOTED: usize = UDP_LEN;
/// Precedence "internetwork control" of ICMP errors (RFC 1812 section 4.3.2.5).
const PRECEDENCE: u8 = 0xc0;

/// Hands the head of a packet that is to be dropped to user space.
#[inline(always)]
fn hand_over(skb: *mut __sk_buff, hit: &Hit) -> Reason {
    if emit_skb(skb, hit, EventKind::Answer as u32, Reason::Handed as u32) != 0 {
        Reason::Handed
    } else {
        Reason::Failed
    }
}

/// As [`hand_over`], for a segment, within a budget. ICMP answers were taken from their own budget before. Nothing else would bound how many segments
/// senders have user space answer.
#[inline(always)]
fn hand_over_segment(skb: *mut __sk_buff, hit: &Hit) -> Reason {
    let Some(budget) = ANSWER_BUDGET.get_ptr_mut(0) else { return Reason::AnswerLimited };
    // SAFETY: a value of the map.
    unsafe {
        if !has_left(budget, hit.now, ANSWERS_PER_SECOND) {
            return Reason::AnswerLimited;
        }
        add_one(&raw mut (*budget).spent);
    }
    hand_over(skb, hit)
}

/// Whether the device is to complete the checksum at `at` (CHECKSUM_PARTIAL); `None` where a helper failed.
///
/// No helper tells. But `bpf_l4_csum_replace` without BPF_F_PSEUDO_HDR leaves the field of such an skb alone
/// (`inet_proto_csum_replace4` in net/core/utils.c, Linux 5.10 to 6.18). A field that did change gets its old value back.
#[inline(always)]
fn is_partial(skb: *mut __sk_buff, at: u32) -> Option<bool> {
    let before = half(skb, at)?;
    // SAFETY: plain numbers; the helper checks the offset.
    if unsafe { bpf_l4_csum_replace(skb, at, 0, u64::from(1_u16.to_be()), 2) } != 0 {
        return None;
    }
    if before == half(skb, at)? {
        return Some(true);
    }
    // Without BPF_F_RECOMPUTE_CSUM: the sum of a CHECKSUM_COMPLETE skb still is that of the bytes as they were, which are written back here.
    Skb(skb).store_half(at, before, 0).then_some(false)
}

#[inline(always)]
fn half(skb: *mut __sk_buff, at: u32) -> Option<u16> {
    match Direct::skb(skb).window::<2>(at) {
        Some(half) => Some(half.be16::<0>().to_be()),
        // Not in the linear part.
        None => Skb(skb).window::<2>(at).map(|half| half.be16::<0>().to_be()),
    }
}

#[inline(always)]
fn resize(skb: *mut __sk_buff, len: u32) -> bool {
    // SAFETY: plain numbers. EINVAL below the transport header or the checksum field of a CHECKSUM_PARTIAL skb, ENOTSUPP
    // where `skb->encapsulation` is set (`__bpf_skb_change_tail` in net/core/filter.c, Linux 6.12); then nothing changed.
    unsafe { bpf_skb_change_tail(skb, len, 0) == 0 }
}

/// Swaps the MAC addresses and sends the skb back.
#[inline(always)]
fn send_back<const ETHERNET: bool>(skb: *mut __sk_buff) -> bool {
    if ETHERNET {
        // The headers behind the MAC addresses were written, so all lie in the linear part (`bpf_skb_store_bytes` pulls what it writes: `bpf_try_make_writable`).
        let Some(macs) = Direct::skb(skb).window::<12>(0) else { return false };
        if !Skb(skb).store(0, &swap_macs([macs.raw32::<0>(), macs.raw32::<4>(), macs.raw32::<8>()]), 0) {
            return false;
        }
    }
    // SAFETY: the context of a running program; plain numbers.
    unsafe {
        // The mark steered the packet on its way out (masquerade, policy routing). A packet that arrives has none.
        (*skb).mark = 0;
        bpf_redirect((*skb).ifindex, u64::from(BPF_F_INGRESS)) == i64::from(TC_ACT_REDIRECT)
    }
}

/// Answers a segment. Returns the [`Reason`] to count: `Reset` and `Refused` where the skb is on its way back, else it is to
/// be dropped.
#[inline(never)]
pub fn answer_tcp<const ETHERNET: bool>(
    skb: *mut __sk_buff,
    hit: &Hit,
    packet: &Packet,
    answer: &Rejection,
) -> u32 {
    let Some(partial) = trim(skb, packet) else { return hand_over_segment(skb, hit) as u32 };
    let reason = if matches!(answer, Rejection::Reset { .. }) { Reason::Reset } else { Reason::Refused };
    let stored = if packet.v6 {
        reset_v6(skb, packet, answer, partial)
    } else {
        reset_v4(skb, packet, answer, partial)
    };
    if stored != 0 && send_back::<ETHERNET>(skb) { reason as u32 } else { Reason::Failed as u32 }
}

/// Cuts a segment to the length of an answer. Whether the device is to complete the checksum; `None` where the segment cannot become an answer.
#[inline(always)]
fn trim(skb: *mut __sk_buff, packet: &Packet) -> Option<u64> {
    if inject() {
        return None;
    }
    let partial = is_partial(skb, packet.l4 + at::TCP_CHECK as u32)?;
    // The device would sum from where the transport header was. Without the options the header lies elsewhere.
    if partial && packet.is(marks::EXTENDED) {
        return None;
    }
    let header = if packet.v6 { V6_LEN } else { V4_LEN };
    resize(skb, packet.l3 + (header + TCP_LEN) as u32).then_some(u64::from(partial))
}

/// Writes both headers by one call: the call is the most expensive part of an answer.
#[inline(never)]
fn reset_v4(skb: *mut __sk_buff, packet: &Packet, answer: &Rejection, partial: u64) -> u64 {
    let how = if partial != 0 { Sum::Pseudo } else { Sum::Full };
    let mut headers = [0; (V4_LEN + TCP_LEN) / 4];
    let (ip, tcp) = headers.split_at_mut(V4_LEN / 4);
    ip.copy_from_slice(&v4_header(&packet.dst, &packet.src, 0, protocol::TCP, TCP_LEN));
    tcp.copy_from_slice(&answer.tcp(packet, how));
    u64::from(Skb(skb).store(packet.l3, &headers, STORE))
}

/// Both headers at once would take more stack than is left (see [`Skb::load_into`]): the first is stored before the second is made.
#[inline(never)]
fn reset_v6(skb: *mut __sk_buff, packet: &Packet, answer: &Rejection, partial: u64) -> u64 {
    let how = if partial != 0 { Sum::Pseudo } else { Sum::Full };
    if !Skb(skb).store(packet.l3, &v6_header(&packet.dst, &packet.src, protocol::TCP, TCP_LEN), STORE) {
        return 0;
    }
    let mut again: *const Packet = packet;
    // SAFETY: the same pointer. The compiler does not know that, and so reads the addresses once more instead of keeping them on the stack.
    let packet = unsafe {
        asm!("{0} = {0}", inout(reg) again, options(pure, readonly, nostack, preserves_flags));
        &*again
    };
    u64::from(Skb(skb).store(packet.l3 + V6_LEN as u32, &answer.tcp(packet, how), STORE))
}

/// Answers a datagram with port unreachable. Returns the [`Reason`] to count: `Unreachable` where the skb is on its way back,
/// else it is to be dropped.
#[inline(never)]
pub fn answer_udp<const ETHERNET: bool>(skb: *mut __sk_buff, hit: &Hit, packet: &Packet) -> u32 {
    // On a CHECKSUM_PARTIAL skb the device would write a sum into the middle of the ICMP message. And the quote has a
    // fixed length here.
    if inject()
        || packet.is(marks::EXTENDED)
        || is_partial(skb, packet.l4 + at::UDP_CHECK as u32) != Some(false)
    {
        return hand_over(skb, hit) as u32;
    }
    let stored = if packet.v6 { port_unreachable_v6(skb, packet) } else { port_unreachable_v4(skb, packet) };
    match stored {
        RESIZE_FAILED => hand_over(skb, hit) as u32,
        STORED if send_back::<ETHERNET>(skb) => Reason::Unreachable as u32,
        _ => Reason::Failed as u32,
    }
}

const STORE_FAILED: u64 = 0;
const STORED: u64 = 1;
const RESIZE_FAILED: u64 = 2;

#[inline(never)]
fn port_unreachable_v4(skb: *mut __sk_buff, packet: &Packet) -> u64 {
    const QUOTE: usize = V4_LEN + QUOTED;
    let (skb, at) = (Skb(skb), packet.l3);
    let icmp = {
        let mut room = MaybeUninit::uninit();
        let Some(quoted) = skb.load_into::<{ QUOTE / 4 }>(at, &mut room) else { return STORE_FAILED };
        if !resize(skb.0, at + (V4_LEN + ICMP_LEN + QUOTE) as u32) {
            return RESIZE_FAILED;
        }
        if !skb.store(at + (V4_LEN + ICMP_LEN) as u32, quoted, STORE) {
            return STORE_FAILED;
        }
        port_unreachable(false, sum(quoted))
    };
    u64::from(
        skb.store(at + V4_LEN as u32, &icmp, STORE)
            && skb.store(
                at,
                &v4_header(&packet.dst, &packet.src, PRECEDENCE, protocol::ICMP, ICMP_LEN + QUOTE),
                STORE,
            ),
    )
}

#[inline(never)]
fn port_unreachable_v6(skb: *mut __sk_buff, packet: &Packet) -> u64 {
    const QUOTE: usize = V6_LEN + QUOTED;
    let (skb, at) = (Skb(skb), packet.l3);
    let icmp = {
        let mut room = MaybeUninit::uninit();
        let Some(quoted) = skb.load_into::<{ QUOTE / 4 }>(at, &mut room) else { return STORE_FAILED };
        if !resize(skb.0, at + (V6_LEN + ICMP_LEN + QUOTE) as u32) {
            return RESIZE_FAILED;
        }
        if !skb.store(at + (V6_LEN + ICMP_LEN) as u32, quoted, STORE) {
            return STORE_FAILED;
        }
        let pseudo = pseudo(&packet.dst, &packet.src, protocol::ICMPV6, (ICMP_LEN + QUOTE) as u32);
        port_unreachable(true, pseudo + sum(quoted))
    };
    u64::from(
        skb.store(at + V6_LEN as u32, &icmp, STORE)
            && skb.store(at, &v6_header(&packet.dst, &packet.src, protocol::ICMPV6, ICMP_LEN + QUOTE), STORE),
    )
}
