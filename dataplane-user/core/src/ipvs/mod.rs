//! The contents of the kernel's IPVS tables, and changes of them.

mod change;
mod name;
mod types;

pub use change::{Change, ChangeOutcome};
pub use name::{BadName, Name};
pub use types::{Destination, Flags, Forward, Netmask, Protocol, Service, ServiceKey, Tunnel, flags};

pub use crate::Family;
