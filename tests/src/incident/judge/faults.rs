//! The promises, and everything in a run that speaks against one of them.

use std::time::Duration;

use super::waits::{LONGEST_WAIT_US, waits};
use crate::incident::{
    limits::{NEW_LIMIT, UDP_LIMIT},
    observed::{Restored, Run},
    record::{End, Kind, Record},
};

/// A refusal that took less than this time came at once: a second SYN is sent after this time (RFC 6298 section 2.1).
pub(super) const AT_ONCE_US: u64 = 1_000_000;
/// The agent sends new connections elsewhere under a lease of this length, and renews the lease when at least [`LEASE_LEFT_US`] are left. An agent that stood
/// still for longer before the SYN let the lease lapse. The kernel refuses then.
const LEASE_US: u64 = 200_000;
const LEASE_LEFT_US: u64 = 100_000;
/// Of a thousand new connections or datagrams this many may fail.
const FAIL_OF_THOUSAND: usize = 5;

/// A promise, from a second after the flag on.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Promise {
    /// No client waits longer than 2 s.
    NoStall,
    /// At most 0.5 % of new connections fail.
    FewFail,
    /// A new connection that fails does so at once.
    AtOnce,
    /// No new connection times out.
    NoTimeOut,
    /// No new connection needs a second SYN.
    OneSyn,
    /// Idle connections to the flagged node are reset.
    IdleReset,
    /// Connections to other nodes stay.
    OthersStay,
    /// At most 0.5 % of the datagrams of one port are lost.
    FixedPort,
    /// At most 0.5 % of the datagrams from ports of their own are lost.
    FreshPorts,
    /// The datagrams of one port are never without an answer for longer than 2 s.
    NoSilence,
    /// IPVS's table is as before once the node is back.
    Restored,
}

impl Promise {
    /// All promises.
    pub const ALL: [Self; 11] = [
        Self::NoStall,
        Self::FewFail,
        Self::AtOnce,
        Self::NoTimeOut,
        Self::OneSyn,
        Self::IdleReset,
        Self::OthersStay,
        Self::FixedPort,
        Self::FreshPorts,
        Self::NoSilence,
        Self::Restored,
    ];

    /// The promise in words.
    pub const fn text(self) -> &'static str {
        match self {
            Self::NoStall => "no client waits longer than 2 s",
            Self::FewFail => "at most 0.5 % of new connections fail",
            Self::AtOnce => "a new connection that fails does so at once",
            Self::NoTimeOut => "no new connection times out",
            Self::OneSyn => "no new connection needs a second SYN",
            Self::IdleReset => "idle connections to the flagged node are reset within 2 s",
            Self::OthersStay => "no connection to another node ends",
            Self::FixedPort => "at most 0.5 % of the datagrams of one port are lost",
            Self::FreshPorts => "at most 0.5 % of the datagrams from ports of their own are lost",
            Self::NoSilence => "the datagrams of one port never lack an answer for longer than 2 s",
            Self::Restored => "IPVS's table is as before once the node is back",
        }
    }

    /// How many faults of so many cases still hold the promise.
    pub(super) const fn allowed(self, cases: usize) -> usize {
        match self {
            Self::FewFail | Self::FixedPort | Self::FreshPorts => cases * FAIL_OF_THOUSAND / 1_000,
            _ => 0,
        }
    }
}

/// The stand-still that explains a fault, if it was longer than this many microseconds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Bound {
    /// One of the clients or of a guest.
    Any(u64),
    /// One of a guest. That of the clients explains nothing.
    Guest(u64),
    /// None does.
    Never,
}

/// Something that speaks against a promise.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Fault {
    /// The promise.
    pub promise: Promise,
    /// When it began.
    pub from: u64,
    /// When it ended.
    pub to: u64,
    /// The stand-still that explains the fault.
    pub bound: Bound,
    /// What happened.
    pub text: String,
}

/// Whether a request counts for the shares: it began while the promises hold, and it has an end.
pub(super) fn counts(run: &Run, record: &Record) -> bool {
    record.at >= run.facts.moments.judged() && record.end != End::Waiting
}

/// The requests of a kind that count.
pub(super) fn counted(run: &Run, kind: Kind) -> impl Iterator<Item = &Record> {
    run.log.records.iter().filter(move |record| record.kind == kind && counts(run, record))
}

/// The number of cases of which a share may fail. 0 for a promise that holds for each single one.
pub(super) fn cases(run: &Run, promise: Promise) -> usize {
    match promise {
        Promise::FewFail => counted(run, Kind::New).count(),
        Promise::FixedPort => counted(run, Kind::Udp).count(),
        Promise::FreshPorts => counted(run, Kind::Fresh).count(),
        _ => 0,
    }
}

/// All faults of a run.
pub(super) fn faults(run: &Run) -> Vec<Fault> {
    let mut faults = stalls(run);
    faults.extend(counted(run, Kind::New).flat_map(|record| of_new(run, record)));
    faults.extend(run.log.records.iter().filter_map(|record| of_idle(run, record)));
    faults.extend(run.log.records.iter().filter_map(|record| of_others(run, record)));
    for (kind, promise) in [(Kind::Udp, Promise::FixedPort), (Kind::Fresh, Promise::FreshPorts)] {
        let lost = counted(run, kind).filter(|record| record.end != End::Answered);
        faults.extend(lost.map(|record| failed(run, promise, record, UDP_LIMIT)));
    }
    let silences = silences(run).into_iter().filter(|(from, to)| run.waited(*from, *to) > LONGEST_WAIT_US);
    faults.extend(silences.map(|(from, to)| Fault {
        promise: Promise::NoSilence,
        from,
        to,
        bound: Bound::Any(LONGEST_WAIT_US),
        text: format!("no answer from {} to {}", run.moment(from), run.moment(to)),
    }));
    if let Restored::Differs { lines } = &run.facts.restored {
        let moments = run.facts.moments;
        let of_line = |line: &String| Fault {
            promise: Promise::Restored,
            from: moments.thawed,
            to: moments.ended,
            bound: Bound::Never,
            text: line.clone(),
        };
        faults.extend(lines.iter().map(of_line));
    }
    faults
}

fn stalls(run: &Run) -> Vec<Fault> {
    let long = waits(run).into_iter().filter(|wait| wait.judged(run) > LONGEST_WAIT_US);
    let fault = |wait: super::waits::Wait| {
        let answer = if wait.answered { "answered" } else { "without an answer until" };
        let node = wait.node.as_deref().unwrap_or("a node that is not known");
        Fault {
            promise: Promise::NoStall,
            from: wait.from,
            to: wait.to,
            bound: Bound::Any(LONGEST_WAIT_US),
            text: format!(
                "{:?} client {} on {node}: sent {}, {:?}, {answer} {}",
                wait.kind,
                wait.client,
                run.moment(wait.from),
                wait.first,
                run.moment(wait.to)
            ),
        }
    };
    long.map(fault).collect()
}

fn of_new(run: &Run, record: &Record) -> Vec<Fault> {
    let mut faults = Vec::new();
    let has_timed_out = record.end == End::TimedOut;
    if record.end != End::Answered {
        faults.push(failed(run, Promise::FewFail, record, NEW_LIMIT));
        if has_timed_out {
            faults.push(failed(run, Promise::NoTimeOut, record, NEW_LIMIT));
        } else if run.waited(record.at, record.ended()) >= AT_ONCE_US {
            faults.push(fault(run, Promise::AtOnce, record, Bound::Any(AT_ONCE_US)));
        }
    }
    if record.syns_again > 0 {
        faults.push(fault(run, Promise::OneSyn, record, Bound::Any(AT_ONCE_US)));
    }
    faults
}

/// An idle connection to the flagged node that was not reset, or too late.
fn of_idle(run: &Run, record: &Record) -> Option<Fault> {
    let moments = run.facts.moments;
    let is_concerned = record.kind == Kind::Idle && is_on_frozen(run, record);
    let is_late = run.waited(moments.judged(), record.ended()) > LONGEST_WAIT_US;
    let is_fault = is_concerned && (record.end != End::Reset || is_late);
    is_fault.then(|| Fault {
        from: moments.flagged,
        ..fault(run, Promise::IdleReset, record, Bound::Any(LONGEST_WAIT_US))
    })
}

/// A connection to another node that ended.
fn of_others(run: &Run, record: &Record) -> Option<Fault> {
    let has_connection = matches!(record.kind, Kind::Keep | Kind::Idle);
    let has_ended = !matches!(record.end, End::Answered | End::Waiting);
    let is_other = record.node.as_deref().is_some_and(|node| node != run.facts.frozen);
    (has_connection && has_ended && is_other).then(|| fault(run, Promise::OthersStay, record, Bound::Never))
}

/// Whether a request's connection leads to the node that froze.
pub(super) fn is_on_frozen(run: &Run, record: &Record) -> bool {
    record.node.as_deref() == Some(run.facts.frozen.as_str())
}

/// The times without an answer to the datagrams of one port, while the promises hold.
pub(super) fn silences(run: &Run) -> Vec<(u64, u64)> {
    let moments = run.facts.moments;
    let answered = run.log.records.iter().filter(|record| record.kind == Kind::Udp);
    let answered = answered.filter(|record| record.end == End::Answered).map(Record::ended);
    let mut moments: Vec<u64> = [moments.judged(), moments.ended]
        .into_iter()
        .chain(answered.filter(|at| (moments.judged()..moments.ended).contains(at)))
        .collect();
    moments.sort_unstable();
    moments.windows(2).map(|pair| (pair[0], pair[1])).collect()
}

/// The fault of a request that failed: one that was given up after `limit`, or one that was refused.
fn failed(run: &Run, promise: Promise, record: &Record, limit: Duration) -> Fault {
    match record.end {
        End::TimedOut => fault(run, promise, record, Bound::Any(limit.as_micros() as u64)),
        End::Refused => {
            let fault = fault(run, promise, record, Bound::Guest(LEASE_LEFT_US));
            Fault { from: record.at.saturating_sub(LEASE_US), ..fault }
        }
        _ => fault(run, promise, record, Bound::Never),
    }
}

fn fault(run: &Run, promise: Promise, record: &Record, bound: Bound) -> Fault {
    let node = record.node.as_deref().map(|node| format!(" on {node}")).unwrap_or_default();
    let again = match record.syns_again {
        0 => String::new(),
        again => format!(", {again} SYNs sent again"),
    };
    let text = format!(
        "{:?} client {}{node}: sent {}, {:?} after {:.3} s{again}",
        record.kind,
        record.client,
        run.moment(record.at),
        record.end,
        record.took as f64 / 1e6
    );
    Fault { promise, from: record.at, to: record.ended(), bound, text }
}
