//! Rescue: the decisions, which are core's, and the sending of packets of the machine's own sockets.

pub mod own;

pub use nodefence_core::rescue::{Fate, Moved, Tally, budget, packet, refusals, services, tries};
