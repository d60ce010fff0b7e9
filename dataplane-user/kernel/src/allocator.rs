//! Settings of the allocator that have no safe setter.
#![expect(
    unsafe_code,
    reason = "options are C functions; one function must run before the allocator's constructor"
)]

use std::ffi::{c_int, c_long};

pub use mimalloc::MiMalloc;

unsafe extern "C" {
    /// Declared in mimalloc.h.
    fn mi_option_set(option: c_int, value: c_long);
}

/// `mi_option_purge_delay` (mimalloc.h, 3.3): milliseconds until freed memory goes back to the kernel, 1,000 by default. mimalloc looks for
/// expired delays only when something is freed. After a large view was read, nothing may be freed for a long time.
const PURGE_DELAY: c_int = 15;

/// Refuses huge pages before mimalloc's first allocation. mimalloc asks for huge pages (madvise), and each thread that allocates has a heap
/// of its own. Each heap then takes 2 MiB where a few KiB are used. With a node flagged and 100,000 backends the agent had 62 MiB with huge
/// pages, and has 41 without.
///
/// mimalloc's constructor touches the first heap before `main`. That constructor has priority 101, and constructors with a lower number run
/// before it. Every program that links this crate runs this function.
#[used]
// SAFETY: the section holds pointers to functions of this type. The function allocates nothing, and needs nothing of the runtime.
#[unsafe(link_section = ".init_array.00100")]
static BEFORE_THE_ALLOCATOR: extern "C" fn() = refuse_huge_pages;

extern "C" fn refuse_huge_pages() {
    // If the kernel refuses, the agent only uses more memory.
    let _refused = nix::sys::prctl::set_thp_disable(true);
}

/// Makes mimalloc give freed memory back to the kernel at once. Has an effect only where mimalloc is the allocator.
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
    fn huge_pages_are_refused_before_main() {
        assert_eq!(nix::sys::prctl::get_thp_disable(), Ok(true));
    }

    #[test]
    fn the_option_is_the_one_that_is_meant() {
        // The environment of the test run may set the option.
        if std::env::var_os("MIMALLOC_PURGE_DELAY").is_none() {
            // SAFETY: an integer is read, atomically.
            assert_eq!(unsafe { mi_option_get(super::PURGE_DELAY) }, 1_000);
        }
    }
}
