//! Policy rules, routes and nexthop objects as the kernel tells of them.

mod decode;

pub use decode::{Changed, changed, object, route, rule};
pub use nodefence_core::routes::*;
