//! The `nodefence` binary: agent and CLI.
#![forbid(unsafe_code)]

use nodefence_kernel::allocator::{MiMalloc, give_back_at_once};

/// Of what a large view needs while it is read glibc's allocator keeps the most: 10,000 Services of 10 endpoints, of which the view is 26 MB,
/// left the agent at 102 MB.
#[global_allocator]
static ALLOCATOR: MiMalloc = MiMalloc;

fn main() -> std::process::ExitCode {
    // mimalloc asks for huge pages (madvise), and each thread that allocates has a heap of its own: 2 MiB each time where a few KiB are used. With a node
    // flagged and 100,000 backends the agent had 62 MiB so, and has 41 without. Where it is refused nothing but memory is lost.
    let _refused = nix::sys::prctl::set_thp_disable(true);
    give_back_at_once();
    nodefence::cli::main()
}
