//! The verdict on a run.

use std::fmt::Write as _;

use anyhow::{Result, ensure};

use super::{
    faults::{Bound, Fault, Promise, cases, faults},
    figures::Figures,
};
use crate::incident::{
    observed::{CLIENTS, Run},
    record::Gap,
};

/// How many pieces of evidence a report has for a promise.
const EVIDENCE: usize = 5;

/// The verdict on a run with a flag.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Verdict {
    /// All promises were held.
    Held,
    /// Promises were broken. The text names each with its evidence.
    Broken(String),
    /// Promises were broken, and only so because this machine or a guest stood still for longer than the bounds of what happened meanwhile. The run may be
    /// repeated.
    StoodStill(String),
}

impl Verdict {
    /// What is wrong. `None` if nothing is.
    pub fn wrong(&self) -> Option<&str> {
        match self {
            Self::Held => None,
            Self::Broken(text) | Self::StoodStill(text) => Some(text),
        }
    }
}

/// How many new connections and datagrams may be lost.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Loss {
    /// The share that the incident allows.
    Share,
    /// None.
    None,
}

impl Loss {
    /// How many faults of so many cases still hold a promise.
    const fn allowed(self, promise: Promise, cases: usize) -> usize {
        match self {
            Self::Share => promise.allowed(cases),
            Self::None => 0,
        }
    }
}

/// Judges a run with a flag.
///
/// # Errors
/// Fails if the run proves nothing, since no client was connected to the node that froze, or too few new connections and datagrams were sent.
pub fn judge(run: &Run) -> Result<Verdict> {
    judge_with(run, Loss::Share)
}

/// Judges a run with a flag, and with so many losses allowed.
///
/// # Errors
/// Fails as [`judge`] does.
pub fn judge_with(run: &Run, loss: Loss) -> Result<Verdict> {
    let figures = Figures::of(run);
    ensure!(figures.established.on_frozen > 0, "no client was connected to {}", run.facts.frozen);
    ensure!(figures.idle.on_frozen > 0, "no idle connection was one to {}", run.facts.frozen);
    for promise in [Promise::FewFail, Promise::FixedPort, Promise::FreshPorts] {
        ensure!(cases(run, promise) > 0, "nothing was sent of which it says: {}", promise.text());
    }
    let all = faults(run);
    let broken = broken(run, &all, loss);
    if broken.is_empty() {
        return Ok(Verdict::Held);
    }
    let stills = run.stills();
    let (explained, rest): (Vec<Fault>, Vec<Fault>) =
        all.into_iter().partition(|fault| explains(&stills, fault).is_some());
    if self::broken(run, &rest, loss).is_empty() {
        let reasons = explained.iter().filter_map(|fault| explains(&stills, fault));
        let longest = reasons.max_by_key(|(_, gap)| gap.took);
        let reason = longest.map(|(name, gap)| {
            let (took, from) = (gap.took as f64 / 1e6, run.moment(gap.at));
            format!("{name} stood still for {took:.3} s, from {from} on\n")
        });
        return Ok(Verdict::StoodStill(reason.unwrap_or_default() + &broken));
    }
    Ok(Verdict::Broken(broken))
}

/// The stand-still that explains a fault: one meanwhile that was longer than the fault's bound.
fn explains<'s>(stills: &[(&'s str, Gap)], fault: &Fault) -> Option<(&'s str, Gap)> {
    let counts = |name: &str, gap: &Gap| match fault.bound {
        Bound::Any(bound) => gap.took > bound,
        Bound::Guest(bound) => gap.took > bound && name != CLIENTS,
        Bound::Never => false,
    };
    let meanwhile = |gap: &Gap| gap.at < fault.to && gap.at + gap.took > fault.from;
    stills.iter().copied().find(|(name, gap)| counts(name, gap) && meanwhile(gap))
}

/// The promises that these faults break, each with evidence.
fn broken(run: &Run, faults: &[Fault], loss: Loss) -> String {
    let mut text = String::new();
    for promise in Promise::ALL {
        let against: Vec<&Fault> = faults.iter().filter(|fault| fault.promise == promise).collect();
        let cases = cases(run, promise);
        if against.len() <= loss.allowed(promise, cases) {
            continue;
        }
        let of = if cases > 0 { format!(" of {cases}") } else { String::new() };
        let _ = writeln!(text, "broken: {}: {}{of}", promise.text(), against.len());
        for fault in against.iter().take(EVIDENCE) {
            let _ = writeln!(text, "  {}", fault.text);
        }
        if against.len() > EVIDENCE {
            let _ = writeln!(text, "  and {} more", against.len() - EVIDENCE);
        }
    }
    text
}

/// Checks that a run without a flag shows what a flag is for. If it does not, a run with a flag proves nothing.
///
/// # Errors
/// Fails if no client waited, or if no new connection failed.
pub fn shows_the_fault(run: &Run) -> Result<()> {
    let figures = Figures::of(run);
    ensure!(figures.established.never > 0, "without a flag each connection to {} ended", run.facts.frozen);
    ensure!(figures.long_waits > 0, "without a flag no client waited for {}", run.facts.frozen);
    ensure!(figures.new.failed > 0, "without a flag no new connection failed");
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::incident::{
        cluster::Still,
        judge::sample::{Sample, at},
        observed::Restored,
        record::{End, Kind},
        scenario::Scenario,
    };

    fn judged(sample: Sample) -> Verdict {
        judge(&sample.run()).expect("a run that proves something")
    }

    /// The first lines of what is broken.
    fn broken_promises(sample: Sample) -> Vec<String> {
        match judged(sample) {
            Verdict::Broken(text) => {
                text.lines().filter_map(|line| line.strip_prefix("broken: ")).map(str::to_owned).collect()
            }
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_run_without_faults_is_held() {
        assert_eq!(judged(Sample::held()), Verdict::Held);
    }

    #[test]
    fn a_stall_counts_from_a_second_after_the_flag() {
        let stall = |ms: u64| {
            let mut run = Sample::held();
            run.keep(0, 1, at(1_500), ms, End::Answered, Some("node-3"));
            run
        };
        assert_eq!(judged(stall(2_500)), Verdict::Held);
        assert_eq!(broken_promises(stall(2_501)), ["no client waits longer than 2 s: 1"]);
        let text = judged(stall(2_600)).wrong().map(str::to_owned).expect("broken");
        let line = "  Keep client 0 on node-3: sent 1.500 s after the freeze, Answered, answered 4.100 s after the freeze";
        assert_eq!(text.lines().nth(1), Some(line));
    }

    #[test]
    fn a_client_that_waits_at_the_end_has_stalled() {
        let mut run = Sample::held();
        run.keep(1, 0, at(9_000), 3_000, End::Waiting, Some("node-3"));
        assert_eq!(broken_promises(run), ["no client waits longer than 2 s: 1"]);
    }

    #[test]
    fn a_new_connection_that_was_begun_before_counts_as_a_client_that_waits() {
        let begun = |ms: u64| {
            let mut run = Sample::held();
            run.add(Kind::New, 900, at(500), ms, End::TimedOut, None);
            run
        };
        assert_eq!(judged(begun(3_400)), Verdict::Held);
        assert_eq!(broken_promises(begun(3_600)), ["no client waits longer than 2 s: 1"]);
    }

    #[test]
    fn five_of_a_thousand_new_connections_may_fail_at_once() {
        let failed = |count: u32, total: u32| {
            let mut run = Sample::held();
            run.records().retain(|record| record.kind != Kind::New);
            for client in 0..total {
                let end = if client < count { End::Refused } else { End::Answered };
                run.add(Kind::New, client, at(2_000 + i64::from(client)), 900, end, None);
            }
            run
        };
        assert_eq!(judged(failed(5, 1_000)), Verdict::Held);
        let promise = "at most 0.5 % of new connections fail: 6 of 1000";
        assert_eq!(broken_promises(failed(6, 1_000)), [promise]);
        assert_eq!(broken_promises(failed(1, 199)), ["at most 0.5 % of new connections fail: 1 of 199"]);
    }

    #[test]
    fn how_a_new_connection_failed_counts() {
        let one = |ms: u64, end: End, syns_again: u32| {
            let mut run = Sample::held();
            // One of these is few enough.
            for client in 1_000..1_400 {
                run.add(Kind::New, client, at(5_000), 3, End::Answered, None);
            }
            run.add(Kind::New, 2_000, at(3_000), ms, end, None).syns_again = syns_again;
            run
        };
        assert_eq!(judged(one(999, End::Reset, 0)), Verdict::Held);
        assert_eq!(broken_promises(one(1_000, End::Reset, 0)), [Promise::AtOnce.text().to_owned() + ": 1"]);
        assert_eq!(
            broken_promises(one(1_100, End::Answered, 1)),
            [Promise::OneSyn.text().to_owned() + ": 1"]
        );
        let out = broken_promises(one(1_500, End::TimedOut, 0));
        assert_eq!(out, [Promise::NoTimeOut.text().to_owned() + ": 1"]);
    }

    #[test]
    fn idle_connections_are_reset_in_time_and_only_those_to_the_flagged_node() {
        let with = |node: &'static str, ms: u64, end: End| {
            let mut run = Sample::held();
            run.add(Kind::Idle, 7, at(0), ms, end, Some(node));
            run
        };
        assert_eq!(judged(with("node-2", 4_000, End::Reset)), Verdict::Held);
        let promise = Promise::IdleReset.text().to_owned() + ": 1";
        for (ms, end) in [(4_001, End::Reset), (12_000, End::Waiting)] {
            assert_eq!(broken_promises(with("node-2", ms, end)), [promise.as_str()]);
        }
        let others = Promise::OthersStay.text().to_owned() + ": 1";
        assert_eq!(broken_promises(with("node-3", 3_000, End::Reset)), [others]);
    }

    #[test]
    fn datagrams_are_answered() {
        let mut run = Sample::held();
        for client in [900, 901] {
            run.add(Kind::Udp, client, at(2_500), 2_000, End::TimedOut, None);
            run.add(Kind::Fresh, client, at(2_500), 1, End::Refused, None);
        }
        let expected = [
            "at most 0.5 % of the datagrams of one port are lost: 2 of 202",
            "at most 0.5 % of the datagrams from ports of their own are lost: 2 of 202",
        ];
        assert_eq!(broken_promises(run), expected);
        let mut run = Sample::held();
        let is_silent = |kind: Kind, begun: u64| kind == Kind::Udp && (at(3_000)..at(5_100)).contains(&begun);
        run.records().retain(|record| !is_silent(record.kind, record.at));
        assert_eq!(broken_promises(run), [Promise::NoSilence.text().to_owned() + ": 1"]);
    }

    #[test]
    fn what_ipvs_lacks_is_told() {
        let mut run = Sample::held();
        run.facts().restored = Restored::Differs { lines: vec!["- TCP a -> b".to_owned()] };
        let text = judged(run).wrong().map(str::to_owned);
        let expected = "broken: IPVS's table is as before once the node is back: 1\n  - TCP a -> b\n";
        assert_eq!(text.as_deref(), Some(expected));
    }

    #[test]
    fn a_node_that_stays_off_leaves_ipvs_uncompared_and_all_else_promised() {
        let off = || {
            let mut run = Sample::held();
            run.facts().scenario = Scenario::Off;
            run.facts().restored = Restored::StaysOff;
            run
        };
        assert_eq!(judged(off()), Verdict::Held);
        let mut run = off();
        run.add(Kind::Idle, 7, at(0), 12_000, End::Waiting, Some("node-2"));
        let text = judged(run).wrong().map(str::to_owned).expect("broken");
        let lines = [
            "broken: idle connections to the flagged node are reset within 2 s: 1",
            "  Idle client 7 on node-2: sent 0.000 s after the power-off, Waiting after 12.000 s",
        ];
        assert_eq!(text.lines().collect::<Vec<_>>(), lines);
    }

    #[test]
    fn only_a_stand_still_past_the_bound_explains_a_fault() {
        let stalled = |still_ms: u64, from: i64| {
            let mut run = Sample::held();
            run.keep(0, 1, at(3_000), 2_600, End::Answered, Some("node-3"));
            let from_ns = at(from) * 1_000;
            let to_ns = from_ns + still_ms * 1_000_000;
            run.facts().stood_still.push(Still { at: "node-1".to_owned(), from_ns, to_ns });
            judged(run)
        };
        let explained = stalled(2_100, 3_200);
        assert!(matches!(&explained, Verdict::StoodStill(text)
            if text.starts_with("node-1 stood still for 2.100 s, from 3.200 s after the freeze on\nbroken: no client")));
        assert!(matches!(stalled(2_000, 3_200), Verdict::Broken(_)));
        assert!(matches!(stalled(2_100, 6_000), Verdict::Broken(_)));
    }

    #[test]
    fn a_refusal_is_explained_by_an_agent_whose_lease_lapsed_and_a_reset_by_nothing() {
        let failed = |end: End, guest_ms: u64, clients_ms: u64| {
            let mut run = Sample::held();
            for client in 900..905 {
                run.add(Kind::New, client, at(3_300), 1, end, None);
            }
            let from_ns = at(3_000) * 1_000;
            let to_ns = from_ns + guest_ms * 1_000_000;
            run.facts().stood_still.push(Still { at: "node-1".to_owned(), from_ns, to_ns });
            run.gap(at(3_200), clients_ms);
            judged(run)
        };
        assert!(matches!(failed(End::Refused, 101, 0), Verdict::StoodStill(_)));
        assert!(matches!(failed(End::Refused, 100, 0), Verdict::Broken(_)));
        assert!(matches!(failed(End::Refused, 0, 900), Verdict::Broken(_)));
        assert!(matches!(failed(End::Reset, 900, 900), Verdict::Broken(_)));
    }

    #[test]
    fn what_stood_still_itself_saw_no_stall() {
        let mut run = Sample::held();
        run.keep(0, 1, at(3_000), 2_600, End::Answered, Some("node-3"));
        run.gap(at(3_100), 700);
        assert_eq!(judged(run), Verdict::Held);
    }

    #[test]
    fn a_run_that_proves_nothing_is_no_success() {
        let mut run = Sample::held();
        run.records().retain(|record| record.kind != Kind::Idle);
        let error = judge(&run.run()).expect_err("nothing idle").to_string();
        assert_eq!(error, "no idle connection was one to node-2");
        let mut run = Sample::held();
        run.records().retain(|record| record.kind != Kind::Fresh);
        assert!(judge(&run.run()).is_err());
    }

    #[test]
    fn a_run_without_a_flag_must_show_the_fault() {
        let error = shows_the_fault(&Sample::held().run()).expect_err("nothing waited").to_string();
        assert_eq!(error, "without a flag each connection to node-2 ended");
        let mut run = Sample::held();
        run.records().retain(|record| record.kind != Kind::Keep);
        run.keep(0, 0, at(-400), 5, End::Answered, Some("node-2"));
        run.keep(0, 0, at(100), 11_000, End::Answered, Some("node-2"));
        run.add(Kind::New, 900, at(3_000), 5_000, End::TimedOut, None);
        shows_the_fault(&run.run()).expect("a client waits, and a connection fails");
    }
}
