//! What must lie in the tables: it follows from the cluster and the flagged nodes. Pure: no clock, no effects.

mod addresses;
pub mod audit;
mod compare;
mod delta;
pub mod drain;
mod exempt;
mod headless;
mod indices;
mod node_tables;
mod policy;
mod tables;
mod usable;

#[cfg(test)]
mod compare_tests;
#[cfg(test)]
mod delta_tests;
#[cfg(test)]
mod exempt_tests;
#[cfg(test)]
mod tests;
#[cfg(test)]
mod usable_tests;

pub use addresses::{ServicePortRef, VirtualAddresses};
pub use compare::{Fix, Pass, WantedEntries};
pub use delta::{Delta, LeftOut, Step};
pub(crate) use exempt::At;
pub use exempt::{ExemptFor, ExemptPort, Exemptions, Why, left_out};
#[cfg(test)]
pub(crate) use exempt_tests::{ExemptIndex, exemptions};
pub use headless::published;
pub use indices::{Full, Indices, Slot, name_field};
pub(crate) use node_tables::backend_tables;
pub use node_tables::{NodePart, NodeTables};
pub use policy::{Answer, Mode, Policy};
pub(crate) use policy::{node_entry, verdict_until};
pub use tables::Tables;
pub use usable::{Proxy, Target, targets, usable};
