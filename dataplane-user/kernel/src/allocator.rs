//! Functions of the allocator that have no safe counterpart: options, and what a thread gives back.
#![expect(
    unsafe_code,
    reason = "the allocator's functions are C functions; one function must run before the allocator's constructor"
)]

use std::{
    cell::Cell,
    ffi::{c_int, c_long},
    sync::atomic::{AtomicU32, Ordering},
};

pub use mimalloc::MiMalloc;

unsafe extern "C" {
    /// Declared in mimalloc.h.
    fn mi_option_set(option: c_int, value: c_long);
    /// Declared in mimalloc.h.
    fn mi_collect(force: bool);
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

/// How often the threads were asked to give back what they have no use for.
static ASKED: AtomicU32 = AtomicU32::new(0);

thread_local! {
    /// The last time at which this thread did.
    static GIVEN_BACK: Cell<u32> = const { Cell::new(0) };
}

/// Asks all threads that call [`give_back_if_asked`] to give back memory. For whoever has just freed much that other threads have allocated: mimalloc leaves
/// it with these threads, which may not need that much again for days.
pub fn ask_threads_to_give_back() {
    ASKED.fetch_add(1, Ordering::Relaxed);
}

/// Gives the calling thread's free memory back to the kernel, if that was asked since the last call. Has an effect only where mimalloc is the allocator.
/// Returns whether it was asked.
pub fn give_back_if_asked() -> bool {
    let asked = ASKED.load(Ordering::Relaxed);
    if GIVEN_BACK.replace(asked) == asked {
        return false;
    }
    // SAFETY: the function looks only at the calling thread's own heap, and at memory that is free.
    unsafe { mi_collect(true) };
    true
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
    fn a_thread_gives_back_once_for_each_time_it_is_asked() {
        super::give_back_if_asked();
        assert!(!super::give_back_if_asked());
        super::ask_threads_to_give_back();
        assert!(super::give_back_if_asked() && !super::give_back_if_asked());
        let other = std::thread::spawn(|| [super::give_back_if_asked(), super::give_back_if_asked()]);
        assert_eq!(other.join().ok(), Some([true, false]), "each thread for itself");
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
