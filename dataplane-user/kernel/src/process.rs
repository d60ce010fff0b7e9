//! The end of this process.
#![expect(unsafe_code, reason = "_exit(2) has no safe wrapper")]

/// Ends the process at once with this exit code: no destructor runs, nothing is flushed, and no core is dumped.
///
/// The first process of a PID namespace, as the one of a container is, ignores SIGKILL from itself (pid_namespaces(7)). This call ends such
/// a process too.
pub fn end_at_once(code: i32) -> ! {
    // SAFETY: the call takes a number and does not return.
    unsafe { libc::_exit(code) }
}
