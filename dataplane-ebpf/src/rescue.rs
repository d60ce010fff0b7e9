//! Hands a whole packet that would be refused to user space, which rescues it: sends it in once more where it came from, so that kube-proxy picks
//! another backend. Packets are handed over only while user space says that it takes them, so that nobody waits for a process that does not run.
use core::ffi::c_void;

use aya_ebpf::{
    bindings::{__sk_buff, BPF_RB_NO_WAKEUP},
    helpers::{bpf_ringbuf_discard, bpf_ringbuf_reserve, bpf_ringbuf_submit, bpf_skb_load_bytes},
};
use nodefence_common::{
    RESCUE_LONG, RESCUE_LONG_FRAME, RESCUE_MAX, RESCUE_SHORT, RESCUE_SHORT_FRAME, Reason, RescueHead,
    packet::Packet, rescue_budget,
};
use nodefence_ebpf::decide::rescuable;

use crate::{
    judge::Hit,
    maps::{RESCUE, RESCUE_BUDGET, RESCUE_UNTIL},
    report::{add_one, count},
};

/// No frame here is shorter: it has an IP and a UDP header. (Before Linux 6.4 the verifier learns no lower bound from "not zero".)
const MIN_LEN: u64 = 28;

/// Puts a packet that is to be answered into the ring buffer and counts it. 0 where that is not wanted now, or cannot be done: then the packet is refused as ever.
///
/// All conditions are in this function: outside, the verifier would follow each of their outcomes through every answer.
#[inline(never)]
pub fn hand_over(skb: *mut __sk_buff, hit: &Hit, packet: &Packet) -> u64 {
    if !rescuable(packet) {
        return 0;
    }
    let Some(until) = RESCUE_UNTIL.get_ptr(0) else { return 0 };
    // SAFETY: a value of the map, one word; the context is the running program's (`gso_size`: Linux 5.7).
    let (until, len, gso) = unsafe { (until.read_volatile(), (*skb).len, (*skb).gso_size) };
    if until <= hit.now || gso != 0 || len.wrapping_sub(hit.l3) > RESCUE_MAX {
        return 0;
    }
    if is_nobodys(skb) || !within_budget() {
        return 0;
    }
    let done = if len as usize <= RESCUE_SHORT_FRAME {
        record::<RESCUE_SHORT, RESCUE_SHORT_FRAME>(skb, hit)
    } else {
        record::<RESCUE_LONG, RESCUE_LONG_FRAME>(skb, hit)
    };
    if done != 0 {
        count(Reason::Rescue, len.wrapping_sub(hit.l3));
    }
    done
}

/// Whether the packet came in by no device and was sent by no socket. SYNPROXY's SYN to a server is such a packet (`synproxy_send_server_syn`,
/// net/netfilter/nf_synproxy_core.c). A socket that sent it once more would get an answer that its maker does not know.
#[inline(always)]
fn is_nobodys(skb: *mut __sk_buff) -> bool {
    // SAFETY: the context of a running program; the socket is not looked at (`skb->sk`: Linux 5.1). A socket that opens a connection or sends datagrams is a full one.
    unsafe { (*skb).ingress_ifindex == 0 && (*skb).__bindgen_anon_2.sk.is_null() }
}

/// Whether one more packet may be handed over on this machine. Called before the ring is reserved. Processors that call it at once may each be given the last one.
#[inline(always)]
fn within_budget() -> bool {
    let Some(allowed) = RESCUE_BUDGET.get_ptr(rescue_budget::ALLOWED) else { return false };
    let Some(asked) = RESCUE_BUDGET.get_ptr_mut(rescue_budget::ASKED) else { return false };
    // SAFETY: values of the map, one word each.
    unsafe {
        let within = asked.read_volatile() < allowed.read_volatile();
        add_one(asked);
        within
    }
}

#[inline(always)]
fn record<const SIZE: usize, const FRAME: usize>(skb: *mut __sk_buff, hit: &Hit) -> u64 {
    // SAFETY: the map is a ring buffer; the record is written before it is submitted, of the frame as much as `frame_len` says.
    unsafe {
        let record = bpf_ringbuf_reserve((&raw const RESCUE).cast_mut().cast(), SIZE as u64, 0);
        if record.is_null() {
            return 0;
        }
        let head = record.cast::<RescueHead>();
        let len = (*skb).len;
        (*head).time_ns = hit.now;
        (*head).ifindex = (*skb).ifindex;
        (*head).ingress_ifindex = (*skb).ingress_ifindex;
        (*head).node = hit.node;
        (*head).frame_len = len;
        (*head).l3_offset = hit.l3 as u16;
        (*head).zero = 0;
        (*head).vlan_tci = 0;
        (*head).vlan_proto = 0;
        if (*skb).vlan_present != 0 {
            (*head).vlan_tci = (*skb).vlan_tci as u16;
            (*head).vlan_proto = u16::from_be((*skb).vlan_proto as u16);
        }
        let frame = head.add(1).cast::<c_void>();
        let mut want = u64::from(len);
        // This makes a new value of `want`, so that the compiler cannot drop the comparison below, which the verifier needs.
        core::arch::asm!("{0} = {0}", inout(reg) want);
        if want < MIN_LEN || want > FRAME as u64 || bpf_skb_load_bytes(skb.cast(), 0, frame, want as u32) != 0
        {
            bpf_ringbuf_discard(record, u64::from(BPF_RB_NO_WAKEUP));
            return 0;
        }
        bpf_ringbuf_submit(record, 0);
    }
    1
}
