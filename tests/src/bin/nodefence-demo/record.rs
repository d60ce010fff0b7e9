//! The states of a run's clients in each 100 ms.

use std::time::Duration;

use nodefence_tests::svg::Bucket;
use serde_json::{Value, json};

use crate::{
    request::{BUCKET_MS, End, Kind, Request},
    run::Run,
};

/// A request that has waited for longer than this is stalled. A served request takes a fraction of a millisecond here.
pub(crate) const STALL: Duration = Duration::from_millis(250);

/// Counts the states of the clients of these kinds in each bucket. A client has one state in a bucket: refused if any request was refused or reset, otherwise
/// stalled if any stalled, otherwise served.
pub(crate) fn states(run: &Run, kinds: &[Kind]) -> Vec<Bucket> {
    let first = run.first_bucket();
    let count = run.buckets();
    let mut clients: Vec<usize> = run
        .requests
        .iter()
        .filter(|request| kinds.contains(&request.kind))
        .map(|request| request.client)
        .collect();
    clients.sort_unstable();
    clients.dedup();
    let mut rows = vec![vec![0_u8; count]; clients.len()];
    let mut gave_up = vec![None; clients.len()];
    for request in run.requests.iter().filter(|request| kinds.contains(&request.kind)) {
        let Ok(row) = clients.binary_search(&request.client) else { continue };
        let mut mark = |bucket: i64, state: u8| {
            if let Some(cell) = usize::try_from(bucket - first).ok().and_then(|at| rows[row].get_mut(at)) {
                *cell = state.max(*cell);
            }
        };
        // A client that gave up and tries again is stalled from the moment when it gave up.
        let stalled_from = gave_up[row].unwrap_or(request.start + STALL.as_secs_f64() * 1e3);
        gave_up[row] = (request.how == End::GaveUp).then_some(request.end);
        if request.end > stalled_from {
            for bucket in bucket_of(stalled_from)..=bucket_of(request.end) {
                mark(bucket, 1);
            }
        }
        if matches!(request.how, End::Reset | End::Refused) {
            mark(bucket_of(request.end), 2);
        }
    }
    (0..count)
        .map(|at| {
            let mut bucket = Bucket::default();
            for row in &rows {
                match row[at] {
                    0 => bucket.served += 1,
                    1 => bucket.stalled += 1,
                    _ => bucket.refused += 1,
                }
            }
            bucket
        })
        .collect()
}

/// Counts how new connections ended, in the buckets in which they began.
pub(crate) fn attempts(run: &Run) -> Vec<Bucket> {
    let mut buckets = vec![Bucket::default(); run.buckets()];
    for request in run.requests.iter().filter(|request| request.kind == Kind::New) {
        let at = usize::try_from(bucket_of(request.start) - run.first_bucket());
        let Some(bucket) = at.ok().and_then(|at| buckets.get_mut(at)) else { continue };
        match request.how {
            End::Answered if !stalled(request) => bucket.served += 1,
            End::Reset | End::Refused if !stalled(request) => bucket.refused += 1,
            _ => bucket.stalled += 1,
        }
    }
    buckets
}

/// Whether a request waited longer than [`STALL`].
pub(crate) fn stalled(request: &Request) -> bool {
    request.end - request.start > STALL.as_secs_f64() * 1e3
}

/// Whether a request had waited for longer than [`STALL`] at this moment, in milliseconds after the freeze, and had no outcome yet.
pub(crate) fn stalled_at(request: &Request, ms: f64) -> bool {
    request.start + STALL.as_secs_f64() * 1e3 < ms && request.end >= ms
}

fn bucket_of(ms: f64) -> i64 {
    (ms / BUCKET_MS as f64).floor() as i64
}

/// The run for `timeline.json`.
pub(crate) fn json(run: &Run) -> Value {
    let rows = |buckets: Vec<Bucket>| -> Vec<Value> {
        buckets.iter().map(|bucket| json!([bucket.served, bucket.refused, bucket.stalled])).collect()
    };
    let ends: Vec<Value> = run
        .requests
        .iter()
        .filter(|request| request.how != End::Answered || stalled(request))
        .map(|request| {
            json!({
                "client": request.client, "kind": format!("{:?}", request.kind), "how": format!("{:?}", request.how),
                "start_ms": request.start, "end_ms": request.end,
            })
        })
        .collect();
    json!({
        "name": run.plan.name(),
        "first_bucket_ms": run.first_bucket() * BUCKET_MS,
        "frozen_monotonic_ns": run.frozen_ns,
        "flag_ms": run.flagged,
        "flag_holds_ms": run.flag_holds,
        "ended_ms": run.ended,
        "clients_of_the_healthy_node": run.on_healthy,
        "columns": ["served", "reset_or_refused", "stalled"],
        "keep_alive_and_udp_clients": rows(states(run, &[Kind::KeepAlive, Kind::Udp])),
        "new_connections": rows(attempts(run)),
        "requests": run.requests.len(),
        "requests_not_answered_at_once": ends,
    })
}
