//! Budgets.

/// Takes one from the budget of `per_second` for the second that `now` (ns) lies in. `second` and `spent` are the stored
/// state. Whether there was one left.
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

/// A second (ns): how far apart a sender gets ICMP answers that had [`BURST`] of them.
pub const SECOND: u64 = 1_000_000_000;
/// ICMP answers that a sender gets in a row, as of the kernel's own (`XRLIM_BURST_FACTOR` in net/ipv4/inetpeer.c, `icmp_ratelimit`).
const BURST: u64 = 6;

/// Takes one from a sender's answers. `full_at` is the stored state: when it may have [`BURST`] in a row again, 0 for a sender that had none. The state
/// to be stored, or `None` where it has none left at `now` (ns).
///
/// One word, so that two processors at once cost an answer too many, and never a state that nobody wrote.
#[inline(always)]
pub const fn take_of_sender(full_at: u64, now: u64) -> Option<u64> {
    let from = if full_at > now { full_at } else { now };
    if from - now > (BURST - 1) * SECOND { None } else { Some(from + SECOND) }
}
