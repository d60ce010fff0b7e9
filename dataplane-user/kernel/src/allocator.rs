//! The allocator and its options, which have no safe setter.
#![expect(unsafe_code, reason = "options are C functions")]

use std::ffi::{c_int, c_long};

pub use mimalloc::MiMalloc;

unsafe extern "C" {
    /// Of mimalloc.h, as all that begins so.
    fn mi_option_set(option: c_int, value: c_long);
}

/// `mi_option_purge_delay` (mimalloc.h, 3.3): milliseconds until memory that was freed goes back to the kernel, 1,000 by default. What is over by then is only looked
/// at when something is freed again, and after a large view was read that may be never.
const PURGE_DELAY: c_int = 15;

/// Has mimalloc give back to the kernel at once what is freed. Only of use where it is the allocator.
pub fn give_back_at_once() {
    // SAFETY: an integer is stored, atomically.
    unsafe { mi_option_set(PURGE_DELAY, 0) };
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
