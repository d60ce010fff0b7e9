//! Rescue: a packet that opens a connection, or a datagram, that met the cut is rescued where it came from, so that the kernel balances it
//! anew.
//!
//! The kernel drops the packet and hands it over whole (`Rescues` of the dataplane). What pins it to the hung node is its conntrack entry; without
//! that entry the packet as its sender made it goes through the Service's rules as a new one. What is to be decided for that needs no kernel and is
//! here.
pub mod budget;
mod moved;
pub mod packet;
pub mod refusals;
pub mod services;
mod tally;
pub mod tries;

pub use moved::Moved;
pub use tally::{Fate, Tally};
