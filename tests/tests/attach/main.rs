//! The dataplane on this kernel: attaching alone and beside others, detaching, XDP, events, injecting, routes.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod basic;
mod neighbours;
mod others;
mod owner;
mod stream;
mod support;
mod xdp;
