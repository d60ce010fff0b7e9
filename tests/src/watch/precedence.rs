//! The priority of the ticking thread.
#![expect(unsafe_code, reason = "sched_setscheduler(2) has no safe wrapper here")]

use std::io;

/// Gives the calling thread a higher priority than all programs. The agent's threads have the highest priority without SCHED_FIFO. Without this, busy threads
/// of the agent would delay the ticking thread too, and so excuse themselves.
pub(crate) fn before_all_programs() -> io::Result<()> {
    let lowest = libc::sched_param { sched_priority: 1 };
    // SAFETY: the kernel reads the parameter during the call alone; 0 stands for the calling thread.
    let code = unsafe { libc::sched_setscheduler(0, libc::SCHED_FIFO, &raw const lowest) };
    if code == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}
