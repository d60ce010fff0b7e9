//! The sizes of a cluster.

/// How many endpoints a slice of an ordinary Service has: its Service has no other.
pub(super) const EACH: usize = 15;
/// The Service that is restarted: how many endpoints it has.
pub(super) const LARGE: usize = 500;

/// The sizes of a cluster.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sizes {
    pub(super) members: usize,
    /// All but the Service that is restarted.
    pub(super) services: usize,
}

impl Sizes {
    pub(super) const fn endpoints(self) -> usize {
        self.services * EACH + LARGE
    }
}
