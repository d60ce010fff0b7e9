use std::time::Duration;

use crate::{
    ipvs::{Family, ServiceKey},
    plan::audit::{AT_MOST, Difference, Found, Grace, Kind, Part, State, Subject, Tracker},
};

const FAULT_AFTER: Duration = Duration::from_secs(60);

fn at(second: u64) -> Duration {
    Duration::from_secs(second)
}

/// One of many different differences.
fn subject(mark: u32) -> Subject {
    Subject::Server(ServiceKey::Mark { family: Family::V4, mark })
}

fn found(all: &[(Kind, &'static str, Grace)]) -> Found {
    let mut found = Found::default();
    for (kind, name, grace) in all {
        found.add(*kind, || Difference {
            kind: *kind,
            subject: subject(name.bytes().map(u32::from).sum()),
            service: Some((*name).to_owned()),
            detail: String::new(),
            grace: *grace,
            mend: None,
        });
    }
    found
}

fn states(tracker: &Tracker, now: u64) -> Vec<(String, u64, State)> {
    let mut all: Vec<_> = tracker
        .observed(at(now))
        .map(|o| (o.difference.service.unwrap_or_default(), (at(now) - o.since).as_secs(), o.state))
        .collect();
    all.sort();
    all
}

const STALE: Kind = Kind::StaleDestination;

#[test]
fn a_difference_is_a_fault_once_it_has_been_there_long_enough() {
    let mut tracker = Tracker::new(FAULT_AFTER);
    let both = [
        (STALE, "sync", Grace::Sync),
        (STALE, "term", Grace::Termination),
        (STALE, "drain", Grace::Draining),
    ];
    tracker.note(Part::Ipvs, found(&both), at(100));
    tracker.note(Part::Ipvs, found(&both), at(159));
    let state = |now| states(&tracker, now).into_iter().map(|(_, _, state)| state).collect::<Vec<_>>();
    assert_eq!(state(159), [State::Draining, State::New, State::New]);
    assert_eq!(state(160), [State::Draining, State::Fault, State::New]);
    assert_eq!(state(219), [State::Draining, State::Fault, State::New]);
    assert_eq!(state(220), [State::Draining, State::Fault, State::Fault]);
    assert_eq!(state(100_000)[0], State::Draining);
    assert_eq!(tracker.watched(Part::Ipvs), Some(at(100)));
    assert_eq!(tracker.watched(Part::Conntrack), None);
}

/// kube-proxy's sync period can be configured, its graceful termination cannot.
#[test]
fn graceful_termination_has_its_two_minutes_however_soon_anything_else_is_a_fault() {
    let state = |fault_after: u64, now| {
        let mut tracker = Tracker::new(at(fault_after));
        tracker.note(Part::Ipvs, found(&[(STALE, "term", Grace::Termination)]), at(0));
        states(&tracker, now)[0].2
    };
    assert_eq!([state(10, 119), state(10, 120)], [State::New, State::Fault]);
    assert_eq!([state(90, 179), state(90, 180)], [State::New, State::Fault]);
}

#[test]
fn what_was_away_begins_anew() {
    let mut tracker = Tracker::new(FAULT_AFTER);
    let one = || found(&[(STALE, "x", Grace::Sync)]);
    tracker.note(Part::Ipvs, one(), at(0));
    tracker.note(Part::Ipvs, Found::default(), at(50));
    assert_eq!(states(&tracker, 50), []);
    tracker.note(Part::Ipvs, one(), at(55));
    assert_eq!(states(&tracker, 70), [("x".into(), 15, State::New)]);
    // The same subject of another kind is another difference.
    tracker.note(Part::Ipvs, found(&[(Kind::StrayWeight, "x", Grace::Sync)]), at(80));
    assert_eq!(states(&tracker, 80), [("x".into(), 0, State::New)]);
    // A part that was not read says nothing of others.
    tracker.note(Part::Conntrack, Found::default(), at(200));
    assert_eq!(states(&tracker, 200), [("x".into(), 120, State::Fault)]);
    tracker.forget(Part::Ipvs);
    assert_eq!(states(&tracker, 200), []);
    assert_eq!(tracker.watched(Part::Ipvs), None);
    assert_eq!(tracker.watched(Part::Conntrack), Some(at(200)));
}

#[test]
fn what_no_longer_drains_has_its_time_from_then_on() {
    let mut tracker = Tracker::new(FAULT_AFTER);
    tracker.note(Part::Ipvs, found(&[(STALE, "x", Grace::Draining)]), at(0));
    tracker.note(Part::Ipvs, found(&[(STALE, "x", Grace::Termination)]), at(900));
    assert_eq!(states(&tracker, 900), [("x".into(), 0, State::New)]);
    // Its weight was raised: that is no other difference.
    tracker.note(Part::Ipvs, found(&[(STALE, "x", Grace::Sync)]), at(960));
    assert_eq!(states(&tracker, 960), [("x".into(), 60, State::Fault)]);
    tracker.note(Part::Ipvs, found(&[(STALE, "x", Grace::Draining)]), at(970));
    assert_eq!(states(&tracker, 970), [("x".into(), 0, State::Draining)]);
}

#[test]
fn there_is_room_for_so_many_and_the_rest_is_counted() {
    let mut many = Found::default();
    for index in 0..AT_MOST as u32 + 5 {
        many.add(Kind::StaleUdp, || Difference {
            kind: Kind::StaleUdp,
            subject: subject(index + 1),
            service: None,
            detail: String::new(),
            grace: Grace::Sync,
            mend: None,
        });
    }
    let mut tracker = Tracker::new(FAULT_AFTER);
    tracker.note(Part::Conntrack, many, at(0));
    assert_eq!(tracker.observed(at(0)).count(), AT_MOST);
    assert_eq!(tracker.left_out().get(&Kind::StaleUdp), Some(&5));
    tracker.note(Part::Conntrack, Found::default(), at(1));
    assert!(tracker.left_out().is_empty());
}

#[test]
fn each_kind_is_of_one_part() {
    // The error for an unknown kind names all kinds.
    let refusal = serde_json::from_value::<Kind>("none".into()).unwrap_err().to_string();
    let names: Vec<&str> = refusal.split('`').skip(3).step_by(2).collect();
    let in_parts: Vec<&str> = Kind::all().map(Kind::name).collect();
    assert_eq!(
        in_parts, names,
        "one name in reports and on the command line, and each in one part: {refusal}"
    );
}
