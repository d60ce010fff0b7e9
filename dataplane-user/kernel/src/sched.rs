//! How the kernel's fair scheduler treats the calling thread.
#![expect(unsafe_code, reason = "sched_setattr(2) has no safe wrapper")]

use std::{io, time::Duration};

/// A slice that is shorter than what others have (`sysctl_sched_base_slice`, 700 us at least, kernel/sched/fair.c), and longer than the work of a thread that does
/// little each time: who is past its slice at a tick gives the processor to others until the next one, 4 ms at 250 Hz.
pub const SHORT_SLICE: Duration = Duration::from_micros(500);

/// Puts the calling thread under the fair scheduler, with this nice value and this slice (`None`: the kernel's default).
///
/// A thread that wakes up with a shorter slice than that of the thread that runs takes the processor from it at once (`PREEMPT_SHORT`,
/// kernel/sched/features.h, Linux 6.12). Its nice value alone does not do this: whoever runs may run to the end of its slice first, some milliseconds.
/// Older kernels take the nice value and ignore the slice.
///
/// # Errors
/// Where the kernel refuses: a nice value below the thread's takes `CAP_SYS_NICE`.
pub fn fair(nice: i32, slice: Option<Duration>) -> io::Result<()> {
    let attributes = libc::sched_attr {
        size: size_of::<libc::sched_attr>() as u32,
        sched_policy: libc::SCHED_OTHER as u32,
        sched_flags: 0,
        sched_nice: nice,
        sched_priority: 0,
        sched_runtime: slice.map_or(0, |slice| slice.as_nanos() as u64),
        sched_deadline: 0,
        sched_period: 0,
    };
    // SAFETY: the kernel reads `size` bytes at the pointer, which are those of `attributes`, and writes only there. Thread 0 is the calling one.
    let result = unsafe { libc::syscall(libc::SYS_sched_setattr, 0, &raw const attributes, 0) };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Nice value and slice (ns) of the calling thread; kernels before 6.12 say 0 for the slice.
    fn shown() -> (i32, u64) {
        // SAFETY: all bytes of it may be zero.
        let mut attributes: libc::sched_attr = unsafe { std::mem::zeroed() };
        let size = size_of::<libc::sched_attr>() as u32;
        // SAFETY: the kernel writes `size` bytes at the pointer at most, which are those of `attributes`.
        let result = unsafe { libc::syscall(libc::SYS_sched_getattr, 0, &raw mut attributes, size, 0) };
        assert_eq!(result, 0, "{}", io::Error::last_os_error());
        (attributes.sched_nice, attributes.sched_runtime)
    }

    #[test]
    fn a_thread_bears_what_it_was_given_and_no_other_does() {
        let before = shown();
        std::thread::spawn(move || {
            let higher = |by: i32| (before.0 + by).min(19);
            fair(higher(1), Some(SHORT_SLICE)).unwrap();
            let (nice, slice) = shown();
            assert_eq!(nice, higher(1));
            assert!(slice == 500_000 || before.1 == 0, "a slice of {slice} ns, {} before", before.1);
            fair(higher(2), None).unwrap();
            assert_eq!(shown(), (higher(2), before.1));
        })
        .join()
        .unwrap();
        assert_eq!(shown(), before);
    }
}
