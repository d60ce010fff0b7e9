//! The injector: puts a packet that user space built in as ingress of a device. Runs under BPF_PROG_TEST_RUN only.
use aya_ebpf::{
    EbpfContext as _,
    bindings::{__sk_buff, BPF_F_INGRESS, TC_ACT_SHOT},
    helpers::bpf_clone_redirect,
    macros::classifier,
    programs::TcContext,
};

/// Injects the frame into the device whose index user space put into `cb[0]`; the program returns 0 where that worked.
/// A device without link-layer header gets the packet from behind the frame's Ethernet header (`__bpf_redirect_no_mac` in
/// net/core/filter.c, Linux 5.10 to 6.18).
#[classifier]
pub fn nf_inject(ctx: TcContext) -> i32 {
    let skb = ctx.as_ptr().cast::<__sk_buff>();
    // SAFETY: the context of a running program; plain numbers.
    if unsafe { bpf_clone_redirect(skb, (*skb).cb[0], u64::from(BPF_F_INGRESS)) } == 0 {
        0
    } else {
        TC_ACT_SHOT
    }
}
