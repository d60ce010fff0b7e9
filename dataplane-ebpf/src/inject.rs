//! The injector: puts a packet that user space built in as ingress of a device. Runs under BPF_PROG_TEST_RUN only.
use aya_ebpf::{
    EbpfContext as _,
    bindings::{__sk_buff, BPF_F_INGRESS, TC_ACT_SHOT},
    helpers::{bpf_clone_redirect, bpf_ktime_get_ns},
    macros::classifier,
    programs::TcContext,
};
use nodefence_common::{Addr, INJECTED_NOT_FOR_BUDGET};

use crate::icmp;

/// Injects the frame into the device whose index user space put into `cb[0]`. The program returns 0 where that worked. The other words of `cb` may hold
/// an address: then the frame is an ICMP answer to it that is not taken from the budget yet.
///
/// A device without link-layer header gets the packet from behind the frame's Ethernet header (`__bpf_redirect_no_mac` in
/// net/core/filter.c, Linux 5.10 to 6.18).
#[classifier]
pub fn nf_inject(ctx: TcContext) -> i32 {
    let skb = ctx.as_ptr().cast::<__sk_buff>();
    // SAFETY: the context of a running program.
    let [ifindex, sender @ ..] = unsafe { (*skb).cb };
    let [a, b, c, d] = sender;
    if a | b | c | d != 0 {
        // SAFETY: no argument.
        let now = unsafe { bpf_ktime_get_ns() };
        if icmp::take(skb, now, ifindex, &Addr::from_words(sender)) != 0 {
            return INJECTED_NOT_FOR_BUDGET as i32;
        }
    }
    // SAFETY: the context of a running program; plain numbers.
    if unsafe { bpf_clone_redirect(skb, ifindex, u64::from(BPF_F_INGRESS)) } == 0 { 0 } else { TC_ACT_SHOT }
}
