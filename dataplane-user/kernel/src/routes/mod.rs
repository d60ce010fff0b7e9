//! Policy rules, routes, nexthop objects and IPsec policies as the kernel reports them.

mod decode;

pub use decode::{Changed, changed, object, policy, route, rule};
pub use nodefence_core::routes::*;
