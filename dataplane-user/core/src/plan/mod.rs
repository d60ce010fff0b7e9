//! From who exists and what the operator holds against them to what must lie in the tables. Pure: no clock, no effects.

mod addresses;
pub mod audit;
mod compare;
mod delta;
mod headless;
mod indices;
mod keep;
mod node_tables;
mod tables;
pub mod takeout;
mod usable;
mod wanted;

#[cfg(test)]
mod compare_tests;
#[cfg(test)]
mod delta_tests;
#[cfg(test)]
mod keep_tests;
#[cfg(test)]
mod tests;
#[cfg(test)]
mod usable_tests;

pub use addresses::{Place, VirtualAddresses};
pub use compare::{Fix, Pass, Wanted};
pub use delta::{Delta, LeftOut, Step};
pub use headless::published;
pub use indices::{Full, Indices, Slot, name_field};
pub(crate) use keep::At;
pub use keep::{Keep, KeptFor, KeptPort, Why};
#[cfg(test)]
pub(crate) use keep_tests::{KeepIndex, keep};
pub(crate) use node_tables::backend_tables;
pub use node_tables::{NodePart, NodeTables};
pub use tables::Tables;
pub use usable::{Proxy, Target, targets, usable};
pub use wanted::{Answer, Mode, Policy};
pub(crate) use wanted::{node_entry, verdict_until};
