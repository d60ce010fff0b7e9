//! Rescue, with what of it sends: packets of the machine's own sockets.

pub mod own;

pub use nodefence_core::rescue::{Fate, Moved, Tally, budget, packet, refusals, services, tries};
