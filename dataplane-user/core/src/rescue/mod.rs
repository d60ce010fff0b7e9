//! Rescue: a packet that met the cut and opens a connection, or is a datagram, is sent in once more where it came from, so that the kernel balances it
//! anew.
//!
//! The kernel drops the packet and hands it over whole (`Rescues` of the dataplane). Only its conntrack entry ties it to the hung node: without that
//! entry, the packet as its sender made it goes through the Service's rules as a new one. The decisions for this need no kernel and are here.
pub mod budget;
mod moved;
pub mod packet;
pub mod refusals;
pub mod services;
mod tally;
pub mod tries;

pub use moved::Moved;
pub use tally::{Fate, Tally};
