//! From who exists and what the operator holds against them to what must lie in the tables. Pure: no clock, no effects.

mod tables;

pub use tables::Tables;
