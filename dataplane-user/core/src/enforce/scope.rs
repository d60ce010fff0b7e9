//! Where a limit holds.

use std::{fmt, sync::Arc};

/// A set of nodes of which automatic claims may cut only a part.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum LimitScope {
    /// All nodes.
    Whole,
    /// The nodes of a zone.
    Zone(Arc<str>),
    /// The nodes of a pool.
    Pool(Arc<str>),
}

impl fmt::Display for LimitScope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Whole => f.write_str("all nodes"),
            Self::Zone(zone) => write!(f, "zone {zone}"),
            Self::Pool(pool) => write!(f, "pool {pool}"),
        }
    }
}
