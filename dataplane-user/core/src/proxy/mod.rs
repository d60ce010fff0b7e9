//! kube-proxy, as far as plans depend on it: its modes, its names for endpoints' sets and lists, and what forwards in its place.

mod endpoints;
mod mode;
mod names;
mod replacement;

pub use endpoints::endpoints;
pub use mode::Mode;
pub use names::{Endpoint, endpoint_of, is_affinity};
pub use replacement::Replacement;
