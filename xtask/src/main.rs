//! nodefence's build and test verbs. Each verb first installs what it needs and the machine lacks, and says so.
//!
//! The machine's default toolchain (1.85 or later) builds this program. So it depends on none of the other packages. The toolchain pinned in
//! the root `Cargo.toml` under `[workspace.metadata.toolchain]` builds everything else.

mod assets;
mod build_ebpf;
mod cache;
mod cli;
mod cluster;
mod image;
mod output;
mod process;
mod programs;
mod say;
mod setup;
mod test;
mod vm;
mod workspace;

use std::process::ExitCode;

use clap::Parser as _;

fn main() -> ExitCode {
    if vm::init::is_meant() {
        return vm::init::main();
    }
    if let Err(error) = process::catch_interrupts() {
        eprintln!("error: {error:#}");
        return ExitCode::FAILURE;
    }
    match cli::Cli::parse().run() {
        Ok(code) => code,
        Err(_) if process::interrupted() => {
            eprintln!("interrupted");
            ExitCode::from(130)
        }
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}
