//! What an entry of the kernel's conntrack table is.

mod flow;

pub use flow::{Flow, SCTP, TCP, TcpState, Tuple, UDP, Zone, status};
