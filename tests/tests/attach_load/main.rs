//! The dataplane room under load: programs and maps replaced in place, tables rewritten.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod agent;
mod replace;
#[path = "../attach/support.rs"]
mod support;
mod tables;
