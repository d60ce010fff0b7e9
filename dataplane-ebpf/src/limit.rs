//! Budgets of answers and samples.

/// Takes one from the budget of `per_second` for the second in which `now` (ns) lies. `second` and `spent` are the stored
/// state. Whether one was left.
#[inline(always)]
pub const fn take(second: &mut u64, spent: &mut u32, now: u64, per_second: u32) -> bool {
    let current = now / SECOND;
    if *second != current {
        *second = current;
        *spent = 0;
    }
    if *spent >= per_second {
        return false;
    }
    *spent += 1;
    true
}

/// A second (ns): a sender that had [`BURST`] ICMP answers gets further ones this far apart.
pub const SECOND: u64 = 1_000_000_000;
/// ICMP answers that a sender gets in a row: as many as the kernel itself gives (`XRLIM_BURST_FACTOR` in net/ipv4/inetpeer.c, `icmp_ratelimit`).
const BURST: u64 = 6;

/// Takes one from a sender's answers. `full_at` is the stored state: when the sender may have [`BURST`] in a row again, 0 for a sender that had none.
/// Returns the state to store, or `None` where the sender has no answer left at `now` (ns).
///
/// The state is one word: two processors at once may give an answer too many, but never store a state that neither of them wrote.
#[inline(always)]
pub const fn take_of_sender(full_at: u64, now: u64) -> Option<u64> {
    let from = if full_at > now { full_at } else { now };
    if from - now > (BURST - 1) * SECOND { None } else { Some(from + SECOND) }
}
