//! What an entry of the kernel's conntrack table is, and whom one listing of the table serves.

mod flow;
mod turns;

pub use flow::{Flow, TcpState, Tuple, Zone, status};
pub use turns::Turns;
