//! By which devices packets to an address may leave: pure, from policy rules, routes and nexthop objects as they were read.

mod blocks;
mod map;
mod matcher;
mod model;
mod policies;
mod prefix;
mod table;
#[cfg(test)]
mod tests;

pub use blocks::Blocks;
pub use map::{Dump, RouteMap};
pub use model::{Action, Fate, Hop, Object, Policies, Policy, Route, Rule, Ways};
pub use prefix::Prefix;

pub use crate::Family;
