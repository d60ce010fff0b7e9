//! The states of a run's clients in each quarter of a second, for the picture.

use std::collections::BTreeMap;

use super::{
    judge::{Wait, waits},
    observed::Run,
    record::{End, Kind, Record},
};
use crate::svg::Bucket;

/// The width of a bucket in microseconds.
pub(super) const BUCKET_US: i64 = 250_000;
/// What has waited longer than this is stalled. An emulated node answers in a tenth of it.
pub(super) const STALL_US: i64 = 1_000_000;

/// The shown time, in buckets from the freeze on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Span {
    /// The first bucket, which is before the freeze.
    pub(super) first: i64,
    /// The number of buckets.
    pub(super) count: usize,
}

impl Span {
    /// The time of both runs: the longer of the two times before the freeze, and after it.
    pub(super) fn of(runs: [&Run; 2]) -> Self {
        let bucket = |run: &Run, at: u64| bucket(run, at as i64);
        let first = runs.map(|run| bucket(run, run.facts.moments.began)).into_iter().min().unwrap_or(0);
        let last = runs.map(|run| bucket(run, run.facts.moments.ended)).into_iter().max().unwrap_or(0);
        Self { first, count: usize::try_from(last + 1 - first).unwrap_or(0) }
    }

    /// The place of a bucket among the shown ones.
    fn place(self, bucket: i64) -> Option<usize> {
        usize::try_from(bucket - self.first).ok().filter(|place| *place < self.count)
    }
}

fn bucket(run: &Run, at: i64) -> i64 {
    (at - run.facts.moments.frozen as i64).div_euclid(BUCKET_US)
}

/// The state of a client in a bucket. A later one in this order outweighs an earlier one.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum State {
    Absent,
    Served,
    Stalled,
    Refused,
}

/// The states of several clients.
struct Rows {
    span: Span,
    rows: BTreeMap<u32, Vec<State>>,
}

impl Rows {
    fn new(span: Span) -> Self {
        Self { span, rows: BTreeMap::new() }
    }

    fn mark(&mut self, run: &Run, client: u32, from: i64, to: i64, state: State) {
        let row = self.rows.entry(client).or_insert_with(|| vec![State::Absent; self.span.count]);
        for bucket in bucket(run, from)..=bucket(run, to) {
            if let Some(cell) = self.span.place(bucket).and_then(|place| row.get_mut(place)) {
                *cell = state.max(*cell);
            }
        }
    }

    fn sums(&self) -> Vec<Bucket> {
        let sum = |place: usize| {
            let mut bucket = Bucket::default();
            for row in self.rows.values() {
                match row[place] {
                    State::Absent => {}
                    State::Served => bucket.served += 1,
                    State::Stalled => bucket.stalled += 1,
                    State::Refused => bucket.refused += 1,
                }
            }
            bucket
        };
        (0..self.span.count).map(sum).collect()
    }
}

/// The clients with a connection that carries requests. A client is refused in a bucket in which its connection ended, and stalled while it waits for long.
pub(super) fn established(run: &Run, span: Span) -> Vec<Bucket> {
    let moments = run.facts.moments;
    let mut rows = Rows::new(span);
    for wait in waits(run).iter().filter(|wait: &&Wait| wait.kind == Kind::Keep) {
        rows.mark(run, wait.client, moments.began as i64, moments.ended as i64, State::Served);
        let stalled_from = wait.from as i64 + STALL_US;
        if wait.to as i64 > stalled_from {
            rows.mark(run, wait.client, stalled_from, wait.to as i64, State::Stalled);
        }
    }
    for record in run.log.records.iter().filter(|record| record.kind == Kind::Keep && is_told(record)) {
        rows.mark(run, record.client, record.ended() as i64, record.ended() as i64, State::Refused);
    }
    rows.sums()
}

/// The idle connections to the frozen node. From the freeze on nobody will answer them, until they are reset.
pub(super) fn idle(run: &Run, span: Span) -> Vec<Bucket> {
    let moments = run.facts.moments;
    let mut rows = Rows::new(span);
    let on_frozen = |record: &&Record| record.node.as_deref() == Some(run.facts.frozen.as_str());
    for record in run.log.records.iter().filter(|record| record.kind == Kind::Idle).filter(on_frozen) {
        rows.mark(run, record.client, moments.began as i64, moments.frozen as i64, State::Served);
        let hangs_until = record.ended().min(moments.thawed);
        rows.mark(run, record.client, moments.frozen as i64, hangs_until as i64, State::Stalled);
        if record.ended() > moments.thawed {
            rows.mark(run, record.client, moments.thawed as i64, record.ended() as i64, State::Served);
        }
        if is_told(record) {
            rows.mark(run, record.client, record.ended() as i64, moments.ended as i64, State::Refused);
        }
    }
    rows.sums()
}

/// How requests of these kinds ended, in the buckets in which they began.
pub(super) fn attempts(run: &Run, kinds: &[Kind], span: Span) -> Vec<Bucket> {
    let mut buckets = vec![Bucket::default(); span.count];
    for record in run.log.records.iter().filter(|record| kinds.contains(&record.kind)) {
        let Some(bucket) = span.place(bucket(run, record.at as i64)).and_then(|at| buckets.get_mut(at))
        else {
            continue;
        };
        let is_late = record.took as i64 > STALL_US;
        match record.end {
            End::Waiting if !is_late => {}
            End::Answered if !is_late => bucket.served += 1,
            _ if is_told(record) && !is_late => bucket.refused += 1,
            _ => bucket.stalled += 1,
        }
    }
    buckets
}

/// Whether the client knows that this request has failed, without a time limit of its own.
fn is_told(record: &Record) -> bool {
    matches!(record.end, End::Refused | End::Reset | End::Closed)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::incident::judge::sample::{Sample, at};

    fn shown(buckets: &[Bucket], span: Span, second: i64) -> Bucket {
        buckets[span.place(second * 4).expect("shown")]
    }

    #[test]
    fn clients_are_shown_as_they_fare() {
        let mut run = Sample::held();
        run.keep(1, 0, at(5_000), 3_000, End::Answered, Some("node-3"));
        run.add(Kind::New, 900, at(5_000), 5_000, End::TimedOut, None);
        run.add(Kind::New, 901, at(5_000), 1, End::Refused, None);
        run.add(Kind::New, 902, at(11_990), 10, End::Waiting, None);
        let run = run.run();
        let span = Span::of([&run, &run]);
        assert_eq!(span, Span { first: -8, count: 57 });
        let of = |served: usize, refused: usize, stalled: usize| Bucket { served, refused, stalled };
        let clients = established(&run, span);
        assert_eq!(shown(&clients, span, -1), of(2, 0, 0));
        // The first client was reset 1.25 s after the freeze.
        assert_eq!(clients[span.place(5).expect("shown")], of(1, 1, 0));
        assert_eq!(shown(&clients, span, 7), of(1, 0, 1));
        assert_eq!(shown(&clients, span, 9), of(2, 0, 0));
        let connections = attempts(&run, &[Kind::New], span);
        assert_eq!(shown(&connections, span, 5), of(5, 1, 1));
        assert_eq!(connections.iter().map(Bucket::total).sum::<usize>(), 282);
        let waiting = idle(&run, span);
        let seen = [-1, 2, 5].map(|second| shown(&waiting, span, second));
        assert_eq!(seen, [of(1, 0, 0), of(0, 1, 0), of(0, 1, 0)]);
        assert_eq!(waiting[span.place(2).expect("shown")], of(0, 0, 1));
    }
}
