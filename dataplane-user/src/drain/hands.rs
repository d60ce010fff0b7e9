//! What the drive works with: a kernel's tables and a ledger on the disk, or a test's.
use std::{collections::BTreeMap, net::SocketAddr, time::Duration};

use crate::{
    ipvs::{self, Applied, Change, Destination, Listed, Service, ServiceKey},
    ledger::{self, Entry, Pair, Record},
    plan::drain::Counts,
};

/// The tables: the kernel's, or a test's.
pub trait Tables {
    /// CLOCK_MONOTONIC.
    fn now(&self) -> Duration;

    /// Leaves the processor to others for a moment, where there are any that could run.
    fn give_way(&self);

    /// What tells the services from each other, in any order.
    ///
    /// # Errors
    /// Where they cannot be read.
    fn keys(&mut self) -> Result<Listed<ServiceKey>, ipvs::Error>;

    /// One service; `None` where there is no such.
    ///
    /// # Errors
    /// Where it cannot be read.
    fn service(&mut self, key: &ServiceKey) -> Result<Option<Service>, ipvs::Error>;

    /// The destinations of one service; none where there is no such service.
    ///
    /// # Errors
    /// Where they cannot be read.
    fn destinations(&mut self, key: &ServiceKey) -> Result<Listed<Destination>, ipvs::Error>;

    /// Whether a service may have a destination whose address and port `is` takes: false only where all were read and none is. Of a large table
    /// nearly all is passed over so.
    ///
    /// # Errors
    /// Where they cannot be read.
    fn may_have(&mut self, key: &ServiceKey, is: &dyn Fn(SocketAddr) -> bool) -> Result<bool, ipvs::Error>;

    /// Makes changes in their order.
    fn apply(&mut self, changes: &[Change]) -> Applied;

    /// Does what follows from the changes that were made and need not be done in between: connections of datagrams to what was deleted are forgotten. Whoever
    /// waits for the turn does not wait for this. `ours`: what is drained, for all of which conntrack is gone through at once.
    fn settle(&mut self, ours: &[Pair]);

    /// How many connections to these destinations, which are among `ours`, conntrack may still have: none only where that is sure. Left out are those of which it
    /// cannot tell.
    fn count(&mut self, pairs: &[Pair], ours: &[Pair]) -> Counts;

    /// Nobody is flagged any more: what was listed of conntrack is not needed.
    fn forget_flows(&mut self);
}

/// The ledger and its lease.
pub trait Book {
    /// What keeps others from changing the tables while it lives.
    type Lock;

    /// Writes what is about to be done. `None`, and nothing is written, where the lease has lapsed: what was believed does not hold any more.
    ///
    /// # Errors
    /// Where it was not all written: then nothing may be done.
    fn begin(&mut self, records: &[Record]) -> Result<Option<Self::Lock>, ledger::Error>;

    /// Whether the lease holds, and the ledger is where others find it.
    fn is_ours(&self) -> bool;

    /// A sign of life: what is read may take longer than the lease is renewed without one.
    fn alive(&mut self);

    /// Writes all that is ours, in place of what stands there. Only while a turn is held, or where that is nothing.
    ///
    /// # Errors
    /// Where that fails: the old lines stay.
    fn write_all(&mut self, entries: &BTreeMap<Pair, Entry>) -> Result<(), ledger::Error>;

    /// Writes what was done.
    ///
    /// # Errors
    /// Where it was not all written.
    fn note(&mut self, records: &[Record]) -> Result<(), ledger::Error>;

    /// Nothing is to be done at the moment: time to write history away. `entries` gives what is ours, `count` of them.
    ///
    /// # Errors
    /// Where that fails.
    fn rest(
        &mut self,
        count: usize,
        entries: impl FnOnce() -> BTreeMap<Pair, Entry>,
    ) -> Result<(), ledger::Error>;
}
