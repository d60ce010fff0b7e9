//! The allocator and its options, which have no safe setter.
#![expect(unsafe_code, reason = "options are C functions; something must be done before the allocator is")]

use std::ffi::{c_int, c_long};

pub use mimalloc::MiMalloc;

unsafe extern "C" {
    /// Of mimalloc.h, as all that begins so.
    fn mi_option_set(option: c_int, value: c_long);
}

/// `mi_option_purge_delay` (mimalloc.h, 3.3): milliseconds until memory that was freed goes back to the kernel, 1,000 by default. What is over by then is only looked
/// at when something is freed again, and after a large view was read that may be never.
const PURGE_DELAY: c_int = 15;

/// mimalloc asks for huge pages (madvise), and each thread that allocates has a heap of its own: 2 MiB each time where a few KiB are used. With a node flagged and
/// 100,000 backends the agent had 62 MiB so, and has 41 without. The first of them is touched before `main`, by mimalloc's constructor, whose priority is 101: what has a
/// lower one comes before it. So this holds for every program that this is linked into.
#[used]
// SAFETY: the section has pointers to such functions. It allocates nothing, and needs nothing of the runtime.
#[unsafe(link_section = ".init_array.00100")]
static BEFORE_THE_ALLOCATOR: extern "C" fn() = refuse_huge_pages;

extern "C" fn refuse_huge_pages() {
    // Where it is refused nothing but memory is lost.
    let _refused = nix::sys::prctl::set_thp_disable(true);
}

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
    fn huge_pages_are_refused_before_main() {
        assert_eq!(nix::sys::prctl::get_thp_disable(), Ok(true));
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
