//! A budget per second.

/// Takes one from the budget of `per_second` for the second that `now` (ns) lies in. `second` and `spent` are the stored
/// state. Whether there was one left.
#[inline(always)]
pub const fn take(second: &mut u64, spent: &mut u32, now: u64, per_second: u32) -> bool {
    let current = now / 1_000_000_000;
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
