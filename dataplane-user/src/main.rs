//! The `nodefence` binary: agent and CLI.
fn main() {
    println!("{}", nodefence::DATAPLANE_OBJECT.len());
}
