//! The dataplane room under load: programs and maps replaced in place, tables and nodes' entries rewritten.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod agent;
mod nodes;
mod replace;
#[path = "../attach/support.rs"]
mod support;
mod tables;
