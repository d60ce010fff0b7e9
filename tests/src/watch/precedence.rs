//! What the ticking thread runs before.
#![expect(unsafe_code, reason = "sched_setscheduler(2) has no safe wrapper here")]

use std::io;

/// Has the calling thread run before all programs. The agent's threads have the highest precedence that a program can have without this: where they are busy
/// they would else hold up the ticking thread too, and excuse themselves.
pub(super) fn before_all_programs() -> io::Result<()> {
    let lowest = libc::sched_param { sched_priority: 1 };
    // SAFETY: the kernel reads the parameter during the call alone; 0 stands for the calling thread.
    let code = unsafe { libc::sched_setscheduler(0, libc::SCHED_FIFO, &raw const lowest) };
    if code == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}
