//! The writer of verdicts and exemptions: to the kernel's maps, or to a test's.

use nodefence_common::{NodeEntry, PortKey};

use crate::{
    dataplane::{self, NodeWriter},
    flags::monotonic_ns,
};

/// The one map write, and those that must come before and after it.
pub(super) trait Writer: Send {
    /// Writes one node's entry.
    fn write(&mut self, index: u32, entry: &NodeEntry) -> Result<(), dataplane::Error>;
    /// Exempts a port or an address.
    fn exempt(&mut self, key: &PortKey) -> Result<(), dataplane::Error>;
    /// Has a port cut though its address is exempt.
    fn except(&mut self, key: &PortKey) -> Result<(), dataplane::Error>;
    /// Removes an entry of either kind.
    fn unexempt(&mut self, key: &PortKey) -> Result<(), dataplane::Error>;
    /// Prolongs the lease: what was drained from IPVS holds up to `until` (CLOCK_MONOTONIC, ns). A lease that has lapsed is prolonged only
    /// where it may begin `anew`.
    fn prolong(&mut self, until: u64, anew: bool) -> Result<(), dataplane::Error>;
    /// Stops writing maps of another size, which no device reads any more.
    fn forget_old(&mut self);
}

impl Writer for NodeWriter {
    fn write(&mut self, index: u32, entry: &NodeEntry) -> Result<(), dataplane::Error> {
        self.write_node(index, entry)
    }

    fn exempt(&mut self, key: &PortKey) -> Result<(), dataplane::Error> {
        self.exempt_port(key)
    }

    fn except(&mut self, key: &PortKey) -> Result<(), dataplane::Error> {
        self.cut_port(key)
    }

    fn unexempt(&mut self, key: &PortKey) -> Result<(), dataplane::Error> {
        self.unexempt_port(key)
    }

    fn prolong(&mut self, until: u64, anew: bool) -> Result<(), dataplane::Error> {
        Self::prolong(self, monotonic_ns(), until, anew)
    }

    fn forget_old(&mut self) {
        Self::forget_old(self);
    }
}

/// The writer where nothing is pinned: there is nothing to renew.
pub(super) struct Nowhere;

impl Writer for Nowhere {
    fn write(&mut self, index: u32, _: &NodeEntry) -> Result<(), dataplane::Error> {
        Err(dataplane::Error::NodeIndex(index))
    }

    fn exempt(&mut self, _: &PortKey) -> Result<(), dataplane::Error> {
        Ok(())
    }

    fn except(&mut self, _: &PortKey) -> Result<(), dataplane::Error> {
        Ok(())
    }

    fn unexempt(&mut self, _: &PortKey) -> Result<(), dataplane::Error> {
        Ok(())
    }

    fn prolong(&mut self, _: u64, _: bool) -> Result<(), dataplane::Error> {
        Ok(())
    }

    fn forget_old(&mut self) {}
}
