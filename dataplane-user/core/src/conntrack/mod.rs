//! Entries of the kernel's conntrack table, and which readers one listing of the table serves.

mod flow;
mod turns;

pub use flow::{Flow, TcpState, Tuple, Zone, status};
pub use turns::Turns;
