//! The dataplane under load: programs and maps are replaced in place, tables and entries of nodes are written anew.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod agent;
mod nodes;
mod replace;
#[path = "../attach/support.rs"]
mod support;
mod tables;
