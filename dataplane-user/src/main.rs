//! The `nodefence` binary: agent and CLI.

fn main() -> std::process::ExitCode {
    nodefence::cli::main()
}
