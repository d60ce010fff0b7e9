//! What the drive works with: the kernel's tables and a ledger on the disk, or a test's.
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

    /// Leaves the processor to others for a moment, where any others could run.
    fn give_way(&self);

    /// The keys of all services, in any order.
    ///
    /// # Errors
    /// Where they cannot be read.
    fn keys(&mut self) -> Result<Listed<ServiceKey>, ipvs::Error>;

    /// One service; `None` where it does not exist.
    ///
    /// # Errors
    /// Where it cannot be read.
    fn service(&mut self, key: &ServiceKey) -> Result<Option<Service>, ipvs::Error>;

    /// The destinations of one service; none where there is no such service.
    ///
    /// # Errors
    /// Where they cannot be read.
    fn destinations(&mut self, key: &ServiceKey) -> Result<Listed<Destination>, ipvs::Error>;

    /// Whether a service may have a destination whose address and port `is` accepts. False only where all destinations were read and `is`
    /// accepted none. Nearly all of a large table is passed over this way.
    ///
    /// # Errors
    /// Where they cannot be read.
    fn may_have(&mut self, key: &ServiceKey, is: &dyn Fn(SocketAddr) -> bool) -> Result<bool, ipvs::Error>;

    /// Makes changes in their order.
    fn apply(&mut self, changes: &[Change]) -> Applied;

    /// Does what follows from the changes and need not be done between them: deletes the conntrack entries of datagrams to deleted
    /// destinations. Whoever waits for the turn does not wait for this. `ours`: all drained destinations, for which conntrack is gone
    /// through at once.
    fn settle(&mut self, ours: &[Pair]);

    /// How many connections conntrack may still have to these destinations, which are among `ours`. 0 only where that is sure. Destinations
    /// of which conntrack cannot tell are left out.
    fn count(&mut self, pairs: &[Pair], ours: &[Pair]) -> Counts;

    /// Forgets what was listed of conntrack: no node is flagged any more.
    fn forget_flows(&mut self);
}

/// The ledger and its lease.
pub trait Book {
    /// A lock that keeps others from changing the tables while it lives.
    type Lock;

    /// Writes what is about to be done. `None`, and nothing is written, where the lease has lapsed: the earlier reading does not hold any
    /// more.
    ///
    /// # Errors
    /// Where not all of it was written: then nothing may be done.
    fn begin(&mut self, records: &[Record]) -> Result<Option<Self::Lock>, ledger::Error>;

    /// Whether the lease holds, and the ledger is where others find it.
    fn is_ours(&self) -> bool;

    /// Gives a sign of life: a reading may take longer than the lease is renewed without one.
    fn alive(&mut self);

    /// Writes all that is ours in place of the ledger's lines. Only while a turn is held, or where nothing is ours.
    ///
    /// # Errors
    /// Where that fails; the old lines stay.
    fn write_all(&mut self, entries: &BTreeMap<Pair, Entry>) -> Result<(), ledger::Error>;

    /// Writes what was done.
    ///
    /// # Errors
    /// Where not all of it was written.
    fn note(&mut self, records: &[Record]) -> Result<(), ledger::Error>;

    /// Nothing is to be done at the moment: time to remove history from the ledger. `entries` returns what is ours, `count` entries.
    ///
    /// # Errors
    /// Where that fails.
    fn rest(
        &mut self,
        count: usize,
        entries: impl FnOnce() -> BTreeMap<Pair, Entry>,
    ) -> Result<(), ledger::Error>;
}
