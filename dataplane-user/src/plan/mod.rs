//! From who exists and what the operator holds against them to what must lie in the tables. Pure: no clock, no effects.

mod indices;
mod tables;
mod wanted;

#[cfg(test)]
mod tests;

pub use indices::{Full, Indices, Slot, name_field};
pub use tables::Tables;
pub use wanted::{Answer, Mode, Policy, node_entry, tables};
