//! The log of sampled cuts, for debugging: off unless the loader sets `LOG_CUTS`. The verifier knows the constant and removes
//! the code that it makes dead.
use aya_ebpf::{Global, bindings::__sk_buff, programs::TcContext};
use aya_log_ebpf::info;

#[unsafe(no_mangle)]
static LOG_CUTS: Global<u8> = Global::new(0);

/// Logs one sampled cut, where that is switched on.
#[inline(always)]
pub fn cut(skb: *mut __sk_buff, reason: u32, node: u32) {
    if LOG_CUTS.load() != 0 {
        write(skb, reason, node);
    }
}

/// A function of its own for its stack frame.
#[inline(never)]
fn write(skb: *mut __sk_buff, reason: u32, node: u32) -> u64 {
    let Some(ctx) = core::ptr::NonNull::new(skb) else { return 0 };
    let ctx = TcContext::new(ctx);
    // SAFETY: the context of a running program.
    let ifindex = unsafe { (*skb).ifindex };
    info!(&ctx, "cut: reason {}, node index {}, ifindex {}", reason, node, ifindex);
    0
}
