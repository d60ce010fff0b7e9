//! Benchmarks of nodefence against its peers.
fn main() {}
