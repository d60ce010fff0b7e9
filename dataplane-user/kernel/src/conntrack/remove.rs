use std::fmt;

use serde::{Deserialize, Serialize};

use super::{
    Backends, Conntrack, Dump, Error, Family, Flow, SCTP, TCP, UDP,
    delete::{Filter, entry_request, filter_request},
    socket::{Answered, BATCH},
};

/// The name of a deletion in an error.
const REQUEST: &str = "delete";

/// The most requests by filter for one half of the table. For each of them the kernel walks the whole table. A dump walks the table
/// once and then costs for each entry of these backends. So entries that would need more filters are deleted by dump.
pub(super) const FILTERS_AT_MOST: usize = 12;

/// Chooses flows of the backends by their protocol.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Protocols {
    /// All protocols that Services forward: TCP, UDP, SCTP.
    All,
    /// TCP.
    Tcp,
    /// UDP and SCTP, whose flows no RST ends.
    Datagrams,
}

impl Protocols {
    /// IP protocol numbers.
    const fn numbers(self) -> &'static [u8] {
        match self {
            Self::All => &[TCP, UDP, SCTP],
            Self::Tcp => &[TCP],
            Self::Datagrams => &[UDP, SCTP],
        }
    }

    /// Whether flows of this IP protocol are meant.
    pub(crate) fn includes(self, protocol: u8) -> bool {
        self.numbers().contains(&protocol)
    }
}

/// Where this kernel deletes conntrack entries by filter, exactly those that the filter names.
// Found out by `super::by_filter`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize, schemars::JsonSchema)]
pub struct ByFilter {
    /// Whether it does so for IPv4 entries.
    pub v4: bool,
    /// Whether it does so for IPv6 entries.
    pub v6: bool,
}

impl ByFilter {
    const fn of(self, family: Family) -> bool {
        match family {
            Family::V4 => self.v4,
            Family::V6 => self.v6,
        }
    }
}

impl fmt::Display for ByFilter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match (self.v4, self.v6) {
            (true, true) => "by filter",
            (true, false) => "by filter over IPv4, one by one over IPv6",
            (false, true) => "one by one over IPv4, by filter over IPv6",
            (false, false) => "one by one",
        })
    }
}

/// The outcome of requests to delete entries.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Deleted {
    /// Entries deleted one by one.
    pub deleted: usize,
    /// Entries that were gone already.
    pub gone: usize,
    /// Entries, or filters, that the kernel would not delete (before 5.13 flows that a flow table forwards: EBUSY).
    pub refused: usize,
    /// Requests that deleted by filter. The kernel does not tell how many entries each took.
    pub filtered: usize,
    /// The kernel broke a dump off each time: entries may be left.
    pub incomplete: bool,
    /// The deletion ended early: the rest was not to be deleted any more.
    pub stopped: bool,
}

/// How to delete the flows of backends in one half of the table.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Steps {
    pub(super) filters: Vec<Filter>,
    /// Backends whose entries no filter can select.
    pub(super) dump: Backends<()>,
}

impl Steps {
    pub(super) fn new(backends: &Backends<()>, which: Protocols, by_filter: bool) -> Self {
        let by_dump = || Self { filters: Vec::new(), dump: backends.clone() };
        if !by_filter {
            return by_dump();
        }
        let mut steps = Self::default();
        for addr in backends.whole() {
            steps.filters.extend(which.numbers().iter().map(|number| Filter::protocol(addr, *number)));
        }
        for key in backends.ports().filter(|key| which.includes(key.protocol)) {
            match Filter::port(&key) {
                Some(filter) => steps.filters.push(filter),
                None => steps.dump.add_port(key, ()),
            }
        }
        if steps.filters.len() > FILTERS_AT_MOST { by_dump() } else { steps }
    }
}

impl Conntrack {
    /// Deletes these entries and no others. The entry of a flow that has found another backend since the listing stays.
    ///
    /// # Errors
    /// [`Error::Permission`], [`Error::Io`]; an entry that is gone already is no error.
    pub fn delete(&mut self, flows: &[Flow]) -> Result<Deleted, Error> {
        let Answered { changed, gone, refused } = self.send_each(REQUEST, flows, entry_request)?;
        Ok(Deleted { deleted: changed, gone, refused, ..Deleted::default() })
    }

    /// Deletes by filter, where the kernel can, the entries of this socket's zone whose answers come from these backends. The
    /// zone must be the default one, since no filter names another zone exactly. Also returns the backends whose entries are
    /// still to be deleted: list these for [`Self::delete_listed`]. `may` is called before the filters of a family are used; the
    /// deletion ends where `may` returns false.
    ///
    /// # Errors
    /// [`Error::Permission`], [`Error::Io`].
    pub fn delete_by_filter<T>(
        &mut self,
        backends: &Backends<T>,
        which: Protocols,
        by_filter: ByFilter,
        mut may: impl FnMut() -> bool,
    ) -> Result<(Deleted, Backends<()>), Error> {
        let mut done = Deleted::default();
        let mut rest = Backends::new();
        for family in [Family::V4, Family::V6] {
            let backends = backends.at(|addr| Family::of(addr) == family);
            let by_filter = by_filter.of(family) && self.zone == Some(0);
            let Steps { filters, dump } = Steps::new(&backends, which, by_filter);
            dump.whole().for_each(|addr| rest.add_address(addr, ()));
            dump.ports().for_each(|port| rest.add_port(port, ()));
            if filters.is_empty() {
                continue;
            }
            done.stopped |= !may();
            if done.stopped {
                break;
            }
            done.add(self.delete_filtered(&filters)?);
        }
        Ok((done, rest))
    }

    /// Deletes listed entries, some at a time. Right before a deletion `may` sees its entries and removes those that are to stay;
    /// the deletion ends where `may` returns false. Between the listing and that moment the backend of an entry may have become
    /// one that answers. Entries that came after the listing stay.
    ///
    /// # Errors
    /// [`Error::Permission`], [`Error::Io`].
    pub fn delete_listed(
        &mut self,
        listed: &Dump,
        mut may: impl FnMut(&mut Vec<Flow>) -> bool,
    ) -> Result<Deleted, Error> {
        let mut done = Deleted { incomplete: listed.incomplete, ..Deleted::default() };
        for flows in listed.flows.chunks(BATCH) {
            let mut flows = flows.to_vec();
            done.stopped |= !may(&mut flows);
            if done.stopped {
                break;
            }
            done.add(self.delete(&flows)?);
        }
        Ok(done)
    }

    /// Deletes all entries that these filters match.
    pub(super) fn delete_filtered(&mut self, filters: &[Filter]) -> Result<Deleted, Error> {
        let Answered { changed, gone, refused } = self.send_each(REQUEST, filters, filter_request)?;
        Ok(Deleted { filtered: changed, gone, refused, ..Deleted::default() })
    }
}

impl Deleted {
    /// Adds the outcome of further requests.
    pub fn add(&mut self, other: Self) {
        self.deleted += other.deleted;
        self.gone += other.gone;
        self.refused += other.refused;
        self.filtered += other.filtered;
        self.incomplete |= other.incomplete;
        self.stopped |= other.stopped;
    }
}
