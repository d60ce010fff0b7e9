//! The `nodefence` binary: agent and CLI.
#![expect(unsafe_code, reason = "the allocator's options have no safe setter")]

use std::ffi::{c_int, c_long};

unsafe extern "C" {
    /// Of mimalloc.h, as all that begins so.
    fn mi_option_set(option: c_int, value: c_long);
}

/// Of what a large cluster file needs while it is read glibc's allocator keeps the most: 10,000 Services of 10 endpoints, of which the view is 26 MB,
/// left the agent at 102 MB.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// `mi_option_purge_delay` (mimalloc.h, 3.3): milliseconds until memory that was freed goes back to the kernel, 1,000 by default. What is over by then is only looked
/// at when something is freed again, and after a cluster file was read that may be never.
const PURGE_DELAY: c_int = 15;

fn main() -> std::process::ExitCode {
    // mimalloc asks for huge pages (madvise), and each thread that allocates has a heap of its own: 2 MiB each time where a few KiB are used. With a node
    // flagged and 100,000 backends the agent had 62 MiB so, and has 41 without. Where it is refused nothing but memory is lost.
    let _refused = nix::sys::prctl::set_thp_disable(true);
    // SAFETY: an integer is stored, atomically, and one thread runs.
    unsafe { mi_option_set(PURGE_DELAY, 0) };
    nodefence::cli::main()
}

#[cfg(test)]
mod tests {
    use std::ffi::{c_int, c_long};

    unsafe extern "C" {
        fn mi_option_get(option: c_int) -> c_long;
    }

    #[test]
    fn the_option_is_the_one_that_is_meant() {
        // Whoever runs the tests may have set it.
        if std::env::var_os("MIMALLOC_PURGE_DELAY").is_none() {
            // SAFETY: an integer is read, atomically.
            assert_eq!(unsafe { mi_option_get(super::PURGE_DELAY) }, 1_000);
        }
    }
}
