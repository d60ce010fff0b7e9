//! What the clients record while they run.

use std::{cell::RefCell, collections::BTreeMap, time::Duration};

use crate::incident::{
    observed::now_us,
    record::{End, Gap, Kind, Log, Record},
};

/// All requests so far, those that still wait included.
#[derive(Debug, Default)]
pub(super) struct Recorder {
    state: RefCell<State>,
}

#[derive(Debug, Default)]
struct State {
    log: Log,
    /// Requests that have no end yet.
    waiting: BTreeMap<Ticket, Record>,
    next: u64,
}

/// A request that has begun.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) struct Ticket(u64);

impl Recorder {
    /// A request begins now. `node` is the node that the connection leads to, where it is known.
    pub(super) fn begin(&self, kind: Kind, client: u32, connection: u32, node: Option<String>) -> Ticket {
        let mut state = self.state.borrow_mut();
        let ticket = Ticket(state.next);
        state.next += 1;
        let record = Record {
            kind,
            client,
            connection,
            at: now_us(),
            took: 0,
            end: End::Waiting,
            syns_again: 0,
            node,
        };
        state.waiting.insert(ticket, record);
        ticket
    }

    /// A request ends now.
    pub(super) fn end(&self, ticket: Ticket, end: End) {
        self.change(ticket, |record| record.end = end);
        let mut state = self.state.borrow_mut();
        if let Some(mut record) = state.waiting.remove(&ticket) {
            record.took = now_us().saturating_sub(record.at);
            state.log.records.push(record);
        }
    }

    /// What became known about a request that has no end yet.
    pub(super) fn change(&self, ticket: Ticket, change: impl FnOnce(&mut Record)) {
        if let Some(record) = self.state.borrow_mut().waiting.get_mut(&ticket) {
            change(record);
        }
    }

    pub(super) fn gap(&self, at: u64, late: Duration) {
        self.state.borrow_mut().log.gaps.push(Gap { at, took: late.as_micros() as u64 });
    }

    /// Ends the requests that still wait, and returns all.
    pub(super) fn finish(&self) -> Log {
        let waiting: Vec<Ticket> = self.state.borrow().waiting.keys().copied().collect();
        waiting.into_iter().for_each(|ticket| self.end(ticket, End::Waiting));
        std::mem::take(&mut self.state.borrow_mut().log)
    }
}
