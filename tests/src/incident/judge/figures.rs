//! The figures of a run, for the table.

use super::{
    faults::{AT_ONCE_US, counted, is_on_frozen, silences},
    waits::{LONGEST_WAIT_US, waits},
};
use crate::incident::{
    observed::Run,
    record::{End, Kind, Record},
};

/// What became of the connections of clients that were connected to the frozen node when it froze.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Established {
    /// How many there were.
    pub on_frozen: usize,
    /// Those that were reset before the node went on.
    pub reset: usize,
    /// Those that ended otherwise before the node went on.
    pub ended: usize,
    /// Those that nobody ended before the node went on.
    pub never: usize,
}

/// The new connections that began while the promises hold.
#[derive(Clone, Copy, PartialEq, Default, Debug)]
pub struct Attempts {
    /// All of them.
    pub total: usize,
    /// Those that failed.
    pub failed: usize,
    /// Those that failed at once.
    pub at_once: usize,
    /// Those that timed out.
    pub timed_out: usize,
    /// Those that sent a second SYN, whatever their end.
    pub second_syn: usize,
    /// When the last one that failed began, in seconds after the freeze.
    pub last_failed: Option<f64>,
}

/// The idle connections to the frozen node.
#[derive(Clone, Copy, PartialEq, Default, Debug)]
pub struct Idle {
    /// How many there were.
    pub on_frozen: usize,
    /// Those that were reset before the node went on.
    pub reset: usize,
    /// When the last of these was reset, in seconds after the flag.
    pub last: Option<f64>,
}

/// The datagrams that were sent while the promises hold.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Datagrams {
    /// All of them.
    pub total: usize,
    /// Those without an answer.
    pub lost: usize,
}

/// The figures of one run.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Figures {
    /// The connections that carry requests.
    pub established: Established,
    /// Connections to other nodes that ended.
    pub others_ended: usize,
    /// The longest wait of a client while the promises hold, in seconds.
    pub longest_wait: f64,
    /// The number of waits that were too long.
    pub long_waits: usize,
    /// The new connections.
    pub new: Attempts,
    /// The idle connections.
    pub idle: Idle,
    /// The datagrams of one port.
    pub fixed_port: Datagrams,
    /// The longest time without an answer to these, in seconds.
    pub silence: f64,
    /// The datagrams from ports of their own.
    pub fresh_ports: Datagrams,
    /// The longest time that this machine or a guest stood still, in seconds.
    pub still: f64,
}

impl Figures {
    /// Counts what a run has.
    pub fn of(run: &Run) -> Self {
        let judged: Vec<u64> = waits(run).iter().map(|wait| wait.judged(run)).collect();
        let silence = silences(run).into_iter().map(|(from, to)| run.waited(from, to)).max();
        let still = run.stills().into_iter().map(|(_, gap)| gap.took).max();
        let seconds = |micros: Option<u64>| micros.unwrap_or_default() as f64 / 1e6;
        Self {
            established: established(run),
            others_ended: run.log.records.iter().filter(|record| ended_elsewhere(run, record)).count(),
            longest_wait: seconds(judged.iter().copied().max()),
            long_waits: judged.iter().filter(|wait| **wait > LONGEST_WAIT_US).count(),
            new: attempts(run),
            idle: idle(run),
            fixed_port: datagrams(run, Kind::Udp),
            silence: seconds(silence),
            fresh_ports: datagrams(run, Kind::Fresh),
            still: seconds(still),
        }
    }
}

fn has_ended(record: &Record) -> bool {
    !matches!(record.end, End::Answered | End::Waiting)
}

fn ended_elsewhere(run: &Run, record: &Record) -> bool {
    let has_connection = matches!(record.kind, Kind::Keep | Kind::Idle);
    has_connection && has_ended(record) && record.node.is_some() && !is_on_frozen(run, record)
}

fn established(run: &Run) -> Established {
    let mut established = Established::default();
    for (client, node) in run.nodes_at_freeze(Kind::Keep) {
        if node != run.facts.frozen {
            continue;
        }
        established.on_frozen += 1;
        let first_end = run.log.records.iter().find(|record| {
            record.kind == Kind::Keep
                && record.client == client
                && record.connection == 0
                && has_ended(record)
        });
        match first_end.filter(|record| record.ended() < run.facts.moments.thawed).map(|record| record.end) {
            Some(End::Reset) => established.reset += 1,
            Some(_) => established.ended += 1,
            None => established.never += 1,
        }
    }
    established
}

fn attempts(run: &Run) -> Attempts {
    let mut attempts = Attempts::default();
    for record in counted(run, Kind::New) {
        attempts.total += 1;
        attempts.second_syn += usize::from(record.syns_again > 0);
        if record.end == End::Answered {
            continue;
        }
        attempts.failed += 1;
        let is_quick = run.waited(record.at, record.ended()) < AT_ONCE_US && record.syns_again == 0;
        match record.end {
            End::TimedOut => attempts.timed_out += 1,
            _ => attempts.at_once += usize::from(is_quick),
        }
        let begun = run.facts.moments.after_freeze(record.at);
        attempts.last_failed = Some(attempts.last_failed.map_or(begun, |last| last.max(begun)));
    }
    attempts
}

fn idle(run: &Run) -> Idle {
    let mut idle = Idle::default();
    let moments = run.facts.moments;
    let of_kind = run.log.records.iter().filter(|record| record.kind == Kind::Idle);
    for record in of_kind.filter(|record| is_on_frozen(run, record)) {
        idle.on_frozen += 1;
        if record.end == End::Reset && record.ended() < moments.thawed {
            idle.reset += 1;
            // The agent may act before the flag's command has returned.
            let after = record.ended().saturating_sub(moments.flagged) as f64 / 1e6;
            idle.last = Some(idle.last.map_or(after, |last| last.max(after)));
        }
    }
    idle
}

fn datagrams(run: &Run, kind: Kind) -> Datagrams {
    let lost = counted(run, kind).filter(|record| record.end != End::Answered).count();
    Datagrams { total: counted(run, kind).count(), lost }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::incident::judge::sample::{Sample, at};

    #[test]
    fn the_figures_of_a_run_without_faults() {
        let figures = Figures::of(&Sample::held().run());
        assert_eq!(figures.established, Established { on_frozen: 1, reset: 1, ended: 0, never: 0 });
        let idle = Idle { on_frozen: 1, reset: 1, last: Some(0.3) };
        assert_eq!((figures.idle, figures.others_ended), (idle, 0));
        assert_eq!((figures.new.total, figures.new.failed, figures.new.last_failed), (200, 0, None));
        assert_eq!(figures.fixed_port, Datagrams { total: 200, lost: 0 });
        assert_eq!((figures.longest_wait, figures.long_waits), (0.004, 0));
        // The last datagram of the sample was sent 50 ms before the end.
        assert_eq!(figures.silence, 0.05);
    }

    #[test]
    fn each_way_of_failing_is_counted_apart() {
        let mut run = Sample::held();
        run.add(Kind::New, 900, at(3_000), 5_000, End::TimedOut, None);
        run.add(Kind::New, 901, at(4_000), 2, End::Refused, None);
        run.add(Kind::New, 902, at(5_000), 1_200, End::Reset, None).syns_again = 1;
        run.add(Kind::New, 903, at(5_500), 1_200, End::Answered, None).syns_again = 1;
        run.add(Kind::New, 904, at(1_900), 2, End::Refused, None);
        run.add(Kind::New, 905, at(11_900), 100, End::Waiting, None);
        let new = Figures::of(&run.run()).new;
        assert_eq!((new.total, new.failed, new.at_once, new.timed_out, new.second_syn), (204, 3, 1, 1, 2));
        assert_eq!(new.last_failed, Some(5.0));
    }

    #[test]
    fn what_nobody_ended_before_the_node_went_on_was_never_ended() {
        let mut run = Sample::new();
        for (client, ms, end) in [(0, 9_000, End::Answered), (1, 11_000, End::Reset), (2, 5_000, End::Closed)]
        {
            run.keep(client, 0, at(-500), 4, End::Answered, Some("node-2"));
            run.keep(client, 0, at(1_500), ms, end, Some("node-2"));
        }
        run.add(Kind::Idle, 0, at(-500), 12_000, End::Reset, Some("node-2"));
        run.gap(at(7_000), 40);
        let figures = Figures::of(&run.run());
        assert_eq!(figures.established, Established { on_frozen: 3, reset: 0, ended: 1, never: 2 });
        assert_eq!(figures.idle, Idle { on_frozen: 1, reset: 0, last: None });
        assert_eq!(figures.still, 0.04);
    }
}
