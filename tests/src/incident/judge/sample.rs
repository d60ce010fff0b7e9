//! Runs for the tests: made-up requests around a freeze.

use crate::incident::{
    observed::{Facts, Moments, Restored, Run},
    plan::Way,
    record::{End, Gap, Kind, Log, Record},
    scenario::Scenario,
};

/// The freeze in sample runs.
const FROZEN: u64 = 100_000_000;

/// A moment, in milliseconds after the freeze.
pub(crate) fn at(ms: i64) -> u64 {
    FROZEN.saturating_add_signed(ms * 1_000)
}

/// A run whose node froze at 0, was flagged after 1 s, went on after 10 s, and whose clients ended after 12 s.
pub(crate) struct Sample(Run);

impl Sample {
    /// A run without any request.
    pub(crate) fn new() -> Self {
        let moments = Moments {
            began: at(-2_000),
            frozen: at(0),
            flagged: at(1_000),
            thawed: at(10_000),
            ended: at(12_000),
        };
        let facts = Facts {
            scenario: Scenario::Freeze,
            way: Way::Flagged,
            frozen: "node-2".to_owned(),
            moments,
            stood_still: Vec::new(),
            restored: Restored::NoIpvs,
        };
        Self(Run { facts, log: Log::default() })
    }

    /// A run that holds all promises: two clients with a connection, two idle connections, a new connection and two datagrams every 50 ms. One of each pair is
    /// on the frozen node.
    pub(crate) fn held() -> Self {
        let mut this = Self::new();
        for (client, node) in [(0, "node-2"), (1, "node-3")] {
            this.keep(client, 0, at(-400), 5, End::Answered, Some(node));
        }
        this.keep(0, 0, at(100), 1_150, End::Reset, Some("node-2"));
        this.keep(0, 1, at(1_250), 20, End::Answered, Some("node-3"));
        this.add(Kind::Idle, 0, at(-1_000), 2_300, End::Reset, Some("node-2"));
        this.add(Kind::Idle, 1, at(-1_000), 13_000, End::Waiting, Some("node-3"));
        for client in 0..280 {
            let begun = at(-2_000 + 50 * i64::from(client));
            this.add(Kind::New, client, begun, 4, End::Answered, Some("node-3"));
            this.add(Kind::Udp, client, begun, 2, End::Answered, Some("node-3"));
            this.add(Kind::Fresh, client, begun, 2, End::Answered, Some("node-3"));
        }
        this
    }

    /// A request of a client with a connection, which took so many milliseconds.
    pub(crate) fn keep(
        &mut self,
        client: u32,
        connection: u32,
        at: u64,
        ms: u64,
        end: End,
        node: Option<&str>,
    ) {
        self.add(Kind::Keep, client, at, ms, end, node).connection = connection;
    }

    /// A request, which took so many milliseconds.
    pub(crate) fn add(
        &mut self,
        kind: Kind,
        client: u32,
        at: u64,
        ms: u64,
        end: End,
        node: Option<&str>,
    ) -> &mut Record {
        let node = node.map(str::to_owned);
        let record = Record { kind, client, connection: 0, at, took: ms * 1_000, end, syns_again: 0, node };
        self.0.log.records.push_mut(record)
    }

    /// The clients stood still for so many milliseconds.
    pub(crate) fn gap(&mut self, at: u64, ms: u64) {
        self.0.log.gaps.push(Gap { at, took: ms * 1_000 });
    }

    /// Changes the run's facts.
    pub(crate) fn facts(&mut self) -> &mut Facts {
        &mut self.0.facts
    }

    /// The requests, for changes.
    pub(crate) fn records(&mut self) -> &mut Vec<Record> {
        &mut self.0.log.records
    }

    /// The run.
    pub(crate) fn run(self) -> Run {
        self.0
    }
}
