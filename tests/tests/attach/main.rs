//! The dataplane room against this kernel: attaching beside others, replacing in place under load, detaching, writing.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod basic;
mod load;
mod neighbours;
mod others;
mod replace;
mod stream;
mod support;
mod tables;
mod xdp;
