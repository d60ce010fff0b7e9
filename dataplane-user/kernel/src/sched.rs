//! Chooses how the kernel's fair scheduler treats the calling thread.
#![expect(unsafe_code, reason = "sched_setattr(2) has no safe wrapper")]

use std::{io, time::Duration};

/// A slice that is shorter than the default one (`sysctl_sched_base_slice`, at least 700 us, kernel/sched/fair.c), and longer than what a
/// thread with little work uses each time. A thread that is past its slice at a tick gives the processor to others until the next tick, 4
/// ms at 250 Hz.
pub const SHORT_SLICE: Duration = Duration::from_micros(500);

/// Puts the calling thread under the fair scheduler, with this nice value and this slice (`None`: the kernel's default).
///
/// A thread that wakes up preempts the running thread at once if its slice is shorter (`PREEMPT_SHORT`, kernel/sched/features.h, Linux
/// 6.12). A lower nice value alone does not do this: the running thread may run to the end of its slice first, some milliseconds. Older
/// kernels take the nice value and ignore the slice.
///
/// # Errors
/// Fails if the kernel refuses. A nice value below the thread's own needs `CAP_SYS_NICE`.
pub fn fair(nice: i32, slice: Option<Duration>) -> io::Result<()> {
    set(libc::SCHED_OTHER, nice, slice)
}

/// Puts the calling thread under the fair scheduler as a batch thread (`SCHED_BATCH`, sched(7)). When a batch thread wakes up, it never
/// preempts the running thread, whatever that thread's nice value (`check_preempt_wakeup_fair()`, kernel/sched/fair.c;
/// `check_preempt_wakeup()` before Linux 6.8). A thread that is no batch thread and slept for long preempts a thread of nice -20 that has
/// run for a moment, for as long as its own slice lasts (Linux 6.6 and later).
///
/// # Errors
/// Fails if the kernel refuses. A nice value below the thread's own needs `CAP_SYS_NICE`.
pub fn batch(nice: i32) -> io::Result<()> {
    set(libc::SCHED_BATCH, nice, None)
}

fn set(policy: i32, nice: i32, slice: Option<Duration>) -> io::Result<()> {
    let attributes = libc::sched_attr {
        size: size_of::<libc::sched_attr>() as u32,
        sched_policy: policy as u32,
        sched_flags: 0,
        sched_nice: nice,
        sched_priority: 0,
        sched_runtime: slice.map_or(0, |slice| slice.as_nanos() as u64),
        sched_deadline: 0,
        sched_period: 0,
    };
    // SAFETY: the kernel reads `size` bytes at the pointer, which are those of `attributes`, and writes only there. Thread id 0 means the
    // calling thread.
    let result = unsafe { libc::syscall(libc::SYS_sched_setattr, 0, &raw const attributes, 0) };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Policy, nice value and slice (ns) of the calling thread. Kernels before 6.12 report 0 for the slice.
    fn shown() -> (i32, i32, u64) {
        // SAFETY: a `sched_attr` of zero bytes is valid.
        let mut attributes: libc::sched_attr = unsafe { std::mem::zeroed() };
        let size = size_of::<libc::sched_attr>() as u32;
        // SAFETY: the kernel writes at most `size` bytes at the pointer, which are those of `attributes`.
        let result = unsafe { libc::syscall(libc::SYS_sched_getattr, 0, &raw mut attributes, size, 0) };
        assert_eq!(result, 0, "{}", io::Error::last_os_error());
        (attributes.sched_policy as i32, attributes.sched_nice, attributes.sched_runtime)
    }

    #[test]
    fn a_thread_bears_what_it_was_given_and_no_other_does() {
        let before = shown();
        std::thread::spawn(move || {
            let (_, nice_before, slice_before) = before;
            let higher = |by: i32| (nice_before + by).min(19);
            fair(higher(1), Some(SHORT_SLICE)).unwrap();
            let (policy, nice, slice) = shown();
            assert_eq!((policy, nice), (libc::SCHED_OTHER, higher(1)));
            assert!(slice == 500_000 || slice_before == 0, "a slice of {slice} ns, {slice_before} before");
            batch(higher(2)).unwrap();
            assert_eq!(shown(), (libc::SCHED_BATCH, higher(2), slice_before));
            fair(higher(2), None).unwrap();
            assert_eq!(shown(), (libc::SCHED_OTHER, higher(2), slice_before));
        })
        .join()
        .unwrap();
        assert_eq!(shown(), before);
    }
}
