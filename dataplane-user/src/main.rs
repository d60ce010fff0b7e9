//! The `nodefence` binary: agent and CLI.
#![forbid(unsafe_code)]

use nodefence_kernel::allocator::{MiMalloc, give_back_at_once};

/// glibc's allocator keeps most of the memory that reading a large view needs. A view of 10,000 Services with 10 endpoints each takes 26 MB,
/// and left the agent at 102 MB.
#[global_allocator]
static ALLOCATOR: MiMalloc = MiMalloc;

fn main() -> std::process::ExitCode {
    give_back_at_once();
    nodefence::cli::main()
}
