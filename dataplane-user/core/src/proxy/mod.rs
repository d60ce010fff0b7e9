//! kube-proxy, as far as plans go by it: its modes, and how it names what it keeps.

mod endpoints;
mod mode;
mod names;

pub use endpoints::endpoints;
pub use mode::Mode;
pub use names::{Endpoint, endpoint_of, is_affinity};
