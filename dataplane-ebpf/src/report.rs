//! Counters, the ring buffer and the budgets per second.
use aya_ebpf::{
    bindings::{__sk_buff, BPF_RB_NO_WAKEUP},
    helpers::{bpf_ringbuf_discard, bpf_ringbuf_reserve, bpf_ringbuf_submit, bpf_skb_load_bytes},
};
use nodefence_common::{
    Budget, Config, Event, EventKind, HEAD_LEN, Reason, config_flags,
    packet::{Reader as _, Window as _},
};
use nodefence_ebpf::limit::{self, SECOND};

use crate::{
    judge::Hit,
    maps::{CONFIG, COUNTERS, EVENTS, LIMITS},
    packet::Direct,
};

/// No packet here is shorter: it has an IP header. (Before Linux 6.4 the verifier learns no lower bound from "not zero".)
const MIN_LEN: u64 = 20;

/// Counts a packet of `bytes` bytes.
#[inline(always)]
pub fn count(reason: Reason, bytes: u32) {
    count_raw(reason as u32, bytes);
}

/// Counts a packet under the number of a [`Reason`].
#[inline(always)]
pub fn count_raw(reason: u32, bytes: u32) {
    if let Some(counter) = COUNTERS.get_ptr_mut(reason) {
        // SAFETY: this CPU's own value.
        unsafe {
            (*counter).packets += 1;
            (*counter).bytes += u64::from(bytes);
        }
    }
}

/// Adds one to a word that all processors share. `core` has no addition for this target, whose oldest kernels know one without a result (BPF_XADD).
///
/// # Safety
/// A word of a map's value.
#[inline(always)]
pub unsafe fn add_one(word: *mut u64) {
    // SAFETY: the caller's; nothing else is written.
    unsafe {
        core::arch::asm!("lock *(u64 *)({word} + 0) += {one}", word = in(reg) word, one = in(reg) 1_u64,
            options(nostack, preserves_flags));
    }
}

/// Whether something is left of a budget of `per_second` in each second that all processors share. This takes nothing from the budget: [`add_one`] to what
/// is spent does.
///
/// Nothing is locked, and before Linux 5.12 no atomic operation returns the old value. Processors that call this at once may each get the last answer of a
/// second, and a count made while the second turns may be lost. So there may be some answers more than the budget, as many as there are processors.
///
/// # Safety
/// A value of the map.
#[inline(always)]
pub unsafe fn has_left(budget: *mut Budget, now: u64, per_second: u32) -> bool {
    let second = now / SECOND;
    // SAFETY: the caller's; its words are read and written each as a whole.
    unsafe {
        // "Less than", so that a processor held up since it read the clock does not set the second back.
        if (&raw const (*budget).second).read_volatile() < second {
            (&raw mut (*budget).spent).write_volatile(0);
            (&raw mut (*budget).second).write_volatile(second);
        }
        (&raw const (*budget).spent).read_volatile() < u64::from(per_second)
    }
}

#[inline(always)]
pub fn config(field: impl FnOnce(*const Config) -> u32) -> u32 {
    CONFIG.get_ptr(0).map_or(0, field)
}

/// Whether this kernel leaves a redirected answer untranslated, so that user space must inject a fresh one.
#[inline(always)]
pub fn inject() -> bool {
    // SAFETY: a value of the map; user space replaces it as a whole.
    config(|config| unsafe { (&raw const (*config).flags).read_volatile() }) & config_flags::INJECT != 0
}

#[inline(always)]
fn take_sample(now: u64) -> bool {
    // SAFETY: a value of the map; user space replaces it as a whole.
    let budget = config(|config| unsafe { (&raw const (*config).samples_per_second).read_volatile() });
    let Some(limits) = LIMITS.get_ptr_mut(0) else { return false };
    // SAFETY: this CPU's own value.
    unsafe { limit::take(&mut (*limits).second, &mut (*limits).samples, now, budget) }
}

#[inline(always)]
fn reserve() -> Option<*mut Event> {
    // SAFETY: the map is a ring buffer; the record is written before it is submitted.
    let record =
        unsafe { bpf_ringbuf_reserve((&raw const EVENTS).cast_mut().cast(), size_of::<Event>() as u64, 0) };
    if record.is_null() { None } else { Some(record.cast()) }
}

#[inline(always)]
unsafe fn fill(event: *mut Event, hit: &Hit, kind: u32, reason: u32) {
    // SAFETY: the caller reserved a record.
    unsafe {
        (*event).time_ns = hit.now;
        (*event).kind = kind;
        (*event).reason = reason;
        (*event).node = hit.node;
        (*event).l3_offset = hit.l3 as u16;
        (*event).zero = 0;
        (*event).vlan_tci = 0;
        (*event).vlan_proto = 0;
    }
}

/// Puts the head of an skb into the ring buffer. Whether it worked.
#[inline(never)]
pub fn emit_skb(skb: *mut __sk_buff, hit: &Hit, kind: u32, reason: u32) -> u64 {
    let Some(event) = reserve() else { return 0 };
    // SAFETY: the record was reserved with this size; the context is the running program's.
    unsafe {
        fill(event, hit, kind, reason);
        (*event).ifindex = (*skb).ifindex;
        let len = (*skb).len;
        (*event).packet_len = len;
        if (*skb).vlan_present != 0 {
            (*event).vlan_tci = (*skb).vlan_tci as u16;
            (*event).vlan_proto = u16::from_be((*skb).vlan_proto as u16);
        }
        let head = (&raw mut (*event).head).cast::<core::ffi::c_void>();
        let mut want = u64::from(len);
        if want > HEAD_LEN as u64 {
            want = HEAD_LEN as u64;
        }
        // This makes a new value of `want`, so that the compiler cannot drop the comparison below, which the verifier needs.
        core::arch::asm!("{0} = {0}", inout(reg) want);
        if want < MIN_LEN
            || want > HEAD_LEN as u64
            || bpf_skb_load_bytes(skb.cast(), 0, head, want as u32) != 0
        {
            bpf_ringbuf_discard(event.cast(), u64::from(BPF_RB_NO_WAKEUP));
            return 0;
        }
        (*event).head_len = want as u16;
        bpf_ringbuf_submit(event.cast(), 0);
    }
    1
}

/// Puts a sample of a cut packet into the ring buffer, within the budget.
#[inline(always)]
pub fn sample_skb(skb: *mut __sk_buff, hit: &Hit, reason: Reason) {
    if take_sample(hit.now) {
        emit_skb(skb, hit, EventKind::Cut as u32, reason as u32);
        crate::log::cut(skb, reason as u32, hit.node);
    }
}

/// As [`sample_skb`], for a frame at XDP. Its bytes are copied in words: a last, incomplete word is left out.
#[inline(always)]
pub fn sample_xdp(frame: &Direct, ifindex: u32, hit: &Hit, reason: Reason) {
    if !take_sample(hit.now) {
        return;
    }
    let Some(event) = reserve() else { return };
    let mut copied = 0;
    // SAFETY: the record was reserved with this size.
    unsafe {
        fill(event, hit, EventKind::Cut as u32, reason as u32);
        (*event).ifindex = ifindex;
        (*event).packet_len = frame.len();
        let head = (&raw mut (*event).head).cast::<u32>();
        while copied < HEAD_LEN / 4 {
            let Some(word) = frame.window::<4>(copied as u32 * 4) else { break };
            *head.add(copied) = word.raw32::<0>();
            copied += 1;
        }
        (*event).head_len = copied as u16 * 4;
        bpf_ringbuf_submit(event.cast(), 0);
    }
}
