//! Who gets an ICMP answer: one budget for the machine, and for each sender as many as the kernel itself gives.
use aya_ebpf::{
    bindings::{__sk_buff, BPF_FIB_LKUP_RET_FWD_DISABLED, BPF_FIB_LKUP_RET_NOT_FWDED, bpf_fib_lookup},
    helpers,
};
use nodefence_common::{Addr, Reason};
use nodefence_ebpf::limit::{SECOND, take_of_sender};

use crate::{
    maps::{ICMP_BUDGET, ICMP_SENDERS},
    report::{add_one, config, has_left},
};

/// 0 where an answer to `sender` may be made now; the answer is then counted as spent. Else the [`Reason`] why not. `ifindex`: the device by which the
/// packet to be answered leaves.
#[inline(never)]
pub fn take(skb: *mut __sk_buff, now: u64, ifindex: u32, sender: &Addr) -> u64 {
    const SPENT: u64 = Reason::IcmpLimited as u64;
    // SAFETY: a value of the map; user space replaces it as a whole.
    let per_second = config(|config| unsafe { (&raw const (*config).icmp_per_second).read_volatile() });
    let Some(budget) = ICMP_BUDGET.get_ptr_mut(0) else { return SPENT };
    // SAFETY: a value of the map.
    if !unsafe { has_left(budget, now, per_second) } {
        return SPENT;
    }
    // The sender's limit first: an answer that it does not get costs the others nothing.
    if !sender_has(now, sender) && is_own(skb, ifindex, sender) == 0 {
        return Reason::IcmpSenderLimited as u64;
    }
    // SAFETY: as above; the addition is atomic.
    unsafe { add_one(&raw mut (*budget).spent) };
    0
}

#[inline(always)]
fn sender_has(now: u64, sender: &Addr) -> bool {
    let Some(full_at) = ICMP_SENDERS.get_ptr_mut(sender) else {
        // Where the map has no room, the machine's budget alone holds.
        let _ = ICMP_SENDERS.insert(sender, &(now + SECOND), 0);
        return true;
    };
    // SAFETY: a value of the map, one word. It may be another sender's by now, and that sender then has an answer more or less.
    unsafe {
        match take_of_sender(full_at.read_volatile(), now) {
            Some(later) => {
                full_at.write_volatile(later);
                true
            }
            None => false,
        }
    }
}

/// 1 for an address of this machine. Many clients stand behind it: the machine's own processes, and clients whose packets are masqueraded on their way to a
/// backend. The address decides, not the socket, since masqueraded packets have no socket here.
///
/// A lookup of the route to the address gives `NOT_FWDED` where it is local (`bpf_ipv4_fib_lookup` and `bpf_ipv6_fib_lookup` in net/core/filter.c, since Linux
/// 4.18), and where no route leads to it. Where the device does not forward, the lookup ends early (`FWD_DISABLED`): then packets that leave are the machine's own.
#[inline(never)]
fn is_own(skb: *mut __sk_buff, ifindex: u32, sender: &Addr) -> u64 {
    const AF_INET: u32 = 2;
    const AF_INET6: u32 = 10;
    // `struct bpf_fib_lookup`: family and protocol, ports, length, device, class, source, destination, VLAN tag and MAC addresses.
    let mut lookup = [0_u32; 16];
    let [a, b, c, d] = sender.words();
    lookup[2] = ifindex;
    if a | b == 0 && c == 0xffff_u32.to_be() {
        lookup[0] = AF_INET.to_le();
        lookup[8] = d;
    } else {
        lookup[0] = AF_INET6.to_le();
        lookup[8] = a;
        lookup[9] = b;
        lookup[10] = c;
        lookup[11] = d;
    }
    let params = (&raw mut lookup).cast::<bpf_fib_lookup>();
    // SAFETY: the context of a running program; as many bytes lie at the pointer.
    let found = unsafe { helpers::bpf_fib_lookup(skb.cast(), params, size_of::<bpf_fib_lookup>() as i32, 0) };
    u64::from(
        found == i64::from(BPF_FIB_LKUP_RET_NOT_FWDED) || found == i64::from(BPF_FIB_LKUP_RET_FWD_DISABLED),
    )
}
