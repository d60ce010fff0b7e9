//! The contents of the kernel's IPVS tables, and changes of them.

mod change;
mod name;
mod types;

pub use change::{Change, Outcome};
pub use name::{BadName, Name};
pub use types::{Destination, Flags, Forward, Netmask, Protocol, Service, ServiceKey, Tunnel, flags};

pub use crate::Family;
