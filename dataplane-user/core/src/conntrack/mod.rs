//! What an entry of the kernel's conntrack table is.

mod flow;

pub use flow::{Flow, TcpState, Tuple, Zone, status};
