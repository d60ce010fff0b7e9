//! The `nodefence` binary: agent and CLI.
#![forbid(unsafe_code)]

use nodefence_kernel::allocator::{MiMalloc, give_back_at_once};

/// Of what a large view needs while it is read glibc's allocator keeps the most: 10,000 Services of 10 endpoints, of which the view is 26 MB,
/// left the agent at 102 MB.
#[global_allocator]
static ALLOCATOR: MiMalloc = MiMalloc;

fn main() -> std::process::ExitCode {
    give_back_at_once();
    nodefence::cli::main()
}
