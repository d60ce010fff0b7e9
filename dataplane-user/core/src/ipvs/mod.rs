//! What the kernel's IPVS tables are made of, and how they are changed.

mod change;
mod name;
mod types;

pub use change::{Change, Outcome};
pub use name::{BadName, Name};
pub use types::{Destination, Flags, Forward, Netmask, Protocol, Service, ServiceKey, Tunnel, flags};

pub use crate::Family;
