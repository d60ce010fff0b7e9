//! Requests: what is refused, and when they are answered.

use super::{
    model::Cluster,
    rig::{Fate, Rig, SECOND, claim, lasting, settings},
    texts::text,
};
use crate::enforce::{Change, Changed, ClaimSource, Done, Input, Output, Refusal, SaveState, Ticket};

fn rig() -> Rig {
    Rig::with(&text("abcdef", &["b"]), settings())
}

#[test]
fn what_is_unwise_is_refused() {
    let mut rig = rig();
    assert_eq!(rig.flag("x"), Err(Refusal::UnknownNode("x".into())));
    assert_eq!(rig.unflag("x"), Err(Refusal::UnknownNode("x".into())));
    assert_eq!(rig.flag("a"), Err(Refusal::OwnNode("a".into())));
    rig.flag("b").unwrap();
    rig.flag("c").unwrap();
    assert_eq!(rig.flag("d"), Err(Refusal::TooMany { flagged: 3, all: 6 }));
    // A node that bears a flag already adds nothing to the count.
    rig.flag("b").unwrap();
    assert_eq!(rig.cut(), "b,c");
    let forced = rig.raise("d", claim(ClaimSource::Cli), true);
    assert!(rig.answers[&forced].is_ok());
    assert_eq!(rig.cut(), "b,c,d");
}

#[test]
fn a_flag_on_a_node_that_left_can_be_taken_back() {
    let mut rig = rig();
    rig.flag("b").unwrap();
    rig.view(&Cluster::parse(&text("acdef", &[])));
    assert_eq!(rig.unflag("b").unwrap().changed, Changed::Withdrawn { was: true });
    assert_eq!(rig.unflag("b"), Err(Refusal::UnknownNode("b".into())));
}

#[test]
fn nobody_is_flagged_before_the_first_view() {
    let mut rig = Rig::new(settings());
    assert_eq!(rig.flag("b"), Err(Refusal::Starting));
}

#[test]
fn an_answer_says_what_changed() {
    let mut rig = rig();
    let done = rig.flag("b").unwrap();
    let at = rig.now;
    let wanted =
        Done { changed: Changed::Raised { before: None }, written: Some(at.mono), saved: SaveState::Saved };
    assert_eq!(done, wanted);
    rig.pass(5);
    let Changed::Raised { before: Some(before) } = rig.flag("b").unwrap().changed else { panic!() };
    assert_eq!((before.source, before.since), (ClaimSource::Cli, at.wall));
    assert_eq!(rig.unflag("b").unwrap().changed, Changed::Withdrawn { was: true });
    assert_eq!(rig.unflag("b").unwrap().changed, Changed::Withdrawn { was: false });
}

#[test]
fn an_answer_comes_after_the_write_and_after_the_save_or_a_second() {
    let mut rig = rig();
    rig.saves = false;
    let ticket = rig.raise("b", claim(ClaimSource::Cli), false);
    assert_eq!(rig.cut(), "b");
    assert!(rig.answers.is_empty());
    rig.pass(SECOND / 2);
    rig.save(Ok(()));
    rig.run();
    assert_eq!(rig.answers[&ticket].as_ref().unwrap().saved, SaveState::Saved);
    // The disk hangs.
    let late = rig.raise("c", claim(ClaimSource::Cli), false);
    rig.pass(SECOND - 1);
    assert!(!rig.answers.contains_key(&late));
    rig.pass(1);
    assert_eq!(rig.answers[&late].as_ref().unwrap().saved, SaveState::Late);
    // It is full.
    rig.save(Err("full".into()));
    rig.run();
    assert_eq!(rig.world().unsaved.as_deref(), Some("full"));
    let ticket = rig.ask("c", Change::Withdraw(ClaimSource::Cli));
    rig.save(Err("full".into()));
    rig.run();
    assert_eq!(rig.answers[&ticket].as_ref().unwrap().saved, SaveState::Failed("full".into()));
    // Tried each second.
    rig.pass(SECOND);
    rig.save(Ok(()));
    rig.run();
    assert_eq!((rig.saved.claims.len(), rig.world().unsaved.as_deref()), (1, None));
}

#[test]
fn a_verdict_that_cannot_be_written_is_not_held() {
    let mut rig = rig();
    rig.fates = Box::new(|output| if matches!(output, Output::Node(..)) { Fate::Failed } else { Fate::Done });
    assert_eq!(rig.flag("c"), Err(Refusal::NotWritten("no room".into())));
    assert!(rig.world().claims.of("c").is_empty());
    assert_eq!(rig.saved.claims, []);
    rig.fates = Box::new(|_| Fate::Done);
    rig.pass(4 * SECOND);
    assert_eq!(
        (rig.cut().as_str(), rig.world().failed.len(), rig.world().lapsing.iter().count()),
        ("", 0, 0)
    );
    // An older claim stays as it was.
    rig.raise("c", lasting(ClaimSource::Cli, 100), false);
    rig.fates = Box::new(|output| if matches!(output, Output::Node(..)) { Fate::Failed } else { Fate::Done });
    rig.flag("c").unwrap_err();
    assert!(rig.world().claims.of("c")[0].claim.ends.is_some());
    rig.fates = Box::new(|_| Fate::Done);
    rig.pass(SECOND);
    assert_eq!((rig.cut().as_str(), rig.world().failed.len()), ("c", 0));
}

/// A refusal brings no claim back that was withdrawn after the refused one had replaced it.
#[test]
fn a_claim_that_was_withdrawn_meanwhile_stays_withdrawn() {
    let raise = |lasts| Change::Raise { claim: lasting(ClaimSource::Cli, lasts), force: false };
    let fails = |output: &Output| match output {
        Output::Node(..) => Fate::Failed,
        _ => Fate::Done,
    };
    let mut rig = rig();
    rig.flag("b").unwrap();
    rig.fates = Box::new(fails);
    // Both are taken before one write.
    for (ticket, change) in [(900, raise(100)), (901, Change::Withdraw(ClaimSource::Cli))] {
        let ask = Input::Claim { node: "b".into(), change, ticket: Some(Ticket(ticket)) };
        rig.enforcer.handle(ask, rig.now);
    }
    rig.run();
    assert_eq!(rig.answers[&900], Err(Refusal::NotWritten("no room".into())));
    assert_eq!(rig.answers[&901], Err(Refusal::NotTakenBack("no room".into())));
    assert!(rig.world().claims.of("b").is_empty());
    rig.fates = Box::new(|_| Fate::Done);
    rig.pass(SECOND);
    assert_eq!(rig.cut(), "");
    // Where all of them are refused, the first that was replaced is held again.
    rig.flag("b").unwrap();
    rig.fates = Box::new(fails);
    for (ticket, lasts) in [(902, 100), (903, 200)] {
        let ask = Input::Claim { node: "b".into(), change: raise(lasts), ticket: Some(Ticket(ticket)) };
        rig.enforcer.handle(ask, rig.now);
    }
    rig.run();
    assert!(rig.answers[&902].is_err() && rig.answers[&903].is_err());
    assert_eq!(rig.world().claims.of("b")[0].claim.ends, None);
}

/// Where a write that is said to have failed was done all the same, a verdict whose claim is not held is taken back at once.
#[test]
fn a_refused_verdict_is_taken_back() {
    let mut rig = rig();
    let mut first = true;
    rig.fates = Box::new(move |output| match output {
        Output::Node(..) if std::mem::take(&mut first) => Fate::FailedAndDone,
        _ => Fate::Done,
    });
    rig.flag("b").unwrap_err();
    assert_eq!(rig.cut(), "");
    assert!(rig.maps.exempt.is_empty());
    let did = rig.did();
    assert!(did.contains(&"failed: cut b".to_owned()) && did.contains(&"healthy b".to_owned()), "{did:?}");
}

#[test]
fn a_verdict_that_cannot_be_taken_back_is_said_to_lapse() {
    let mut rig = rig();
    rig.flag("b").unwrap();
    rig.fates = Box::new(|output| if matches!(output, Output::Node(..)) { Fate::Failed } else { Fate::Done });
    assert_eq!(rig.unflag("b"), Err(Refusal::NotTakenBack("no room".into())));
    assert!(rig.world().claims.nodes().next().is_none() && rig.saved.claims.is_empty());
    assert_eq!((rig.cut().as_str(), rig.maps.exempt.len()), ("b", 2));
    rig.pass(3 * SECOND);
    assert_eq!((rig.cut().as_str(), rig.maps.exempt.len()), ("", 0));
}

#[test]
fn the_own_node_waits_for_its_devices_but_a_second_at_most() {
    let mut rig = rig();
    let ticket = rig.raise("a", claim(ClaimSource::Cli), true);
    assert_eq!(rig.cut(), "");
    // Whoever attaches them sees the claim.
    assert!(!rig.world().claims.of("a").is_empty());
    rig.pass(SECOND / 2);
    assert!(rig.cut().is_empty() && !rig.answers.contains_key(&ticket));
    rig.tell(Input::Routes { own_attached: true });
    assert_eq!(rig.cut(), "a");
    assert_eq!(rig.answers[&ticket].as_ref().unwrap().written, Some(rig.now.mono));
    rig.tell(Input::Routes { own_attached: false });
    rig.pass(SECOND * 3);
    assert_eq!(rig.cut(), "a");
    rig.unflag("a").unwrap();
    let ticket = rig.raise("a", claim(ClaimSource::Cli), true);
    assert_eq!(rig.enforcer.deadline().min(rig.now.mono + SECOND), rig.enforcer.deadline());
    rig.pass(SECOND - 1);
    assert_eq!(rig.cut(), "");
    rig.pass(1);
    assert_eq!(rig.cut(), "a");
    assert!(rig.answers[&ticket].as_ref().unwrap().written.is_some());
}

#[test]
fn a_verdict_that_waits_for_its_tables_is_answered_after_a_second() {
    let mut rig = rig();
    rig.writes_tables = false;
    rig.view(&Cluster::parse(&text("abcdefg", &["b"])));
    let ticket = rig.raise("g", claim(ClaimSource::Cli), false);
    rig.pass(SECOND - 1);
    assert!(rig.answers.is_empty());
    rig.pass(1);
    assert_eq!(rig.answers[&ticket].as_ref().unwrap().written, None);
    rig.write_tables();
    rig.run();
    assert_eq!(rig.cut(), "g");
}

/// The agent that was to take over may have ended while it waited for the disk.
#[test]
fn an_agent_whose_successor_has_gone_goes_on() {
    let mut rig = rig();
    rig.flag("b").unwrap();
    rig.tell(Input::HandOver(Ticket(900)));
    assert!(rig.world().closing && rig.world().handed_over);
    // Another one asks, and goes: the first one has heard it.
    rig.tell(Input::HandOver(Ticket(901)));
    rig.tell(Input::HandOverUnheard);
    assert!(rig.world().closing && rig.world().handed_over);
    assert_eq!(rig.flag("c"), Err(Refusal::HandingOver));
    rig.tell(Input::HandOverUnheard);
    assert!(!rig.world().closing && !rig.world().handed_over);
    rig.flag("c").unwrap();
    rig.pass(SECOND);
    assert_eq!(rig.cut(), "b,c");
}

#[test]
fn of_two_hand_overs_one_that_fails_does_not_open_the_other() {
    let mut rig = rig();
    rig.saves = false;
    rig.tell(Input::HandOver(Ticket(900)));
    rig.pass(4 * SECOND);
    rig.tell(Input::HandOver(Ticket(901)));
    rig.pass(SECOND);
    assert!(matches!(rig.answers[&900], Err(Refusal::NotSaved(_))));
    assert_eq!(rig.flag("c"), Err(Refusal::HandingOver));
    // A source that only tells hears no refusal, and does not tell again.
    let told = Change::Raise { claim: lasting(ClaimSource::External("npd".into()), 60), force: false };
    rig.tell(Input::Claim { node: "d".into(), change: told, ticket: None });
    assert_eq!(rig.world().claims.of("d").len(), 1);
    rig.pass(4 * SECOND);
    assert!(matches!(rig.answers[&901], Err(Refusal::NotSaved(_))));
    assert!(!rig.world().closing);
}

/// Sources tell it to nobody else.
#[test]
fn what_is_told_while_a_hand_over_waits_goes_with_it() {
    let mut rig = rig();
    rig.saves = false;
    rig.tell(Input::HandOver(Ticket(900)));
    let told = Change::Raise { claim: lasting(ClaimSource::External("npd".into()), 60), force: false };
    rig.tell(Input::Claim { node: "d".into(), change: told, ticket: None });
    rig.save(Ok(()));
    rig.run();
    assert!(!rig.answers.contains_key(&900));
    rig.save(Ok(()));
    rig.run();
    assert_eq!(rig.answers[&900].as_ref().unwrap().changed, Changed::HandedOver);
    assert_eq!(rig.saved.claims.iter().filter(|(node, _)| node.as_str() == "d").count(), 1);
}

#[test]
fn no_stream_of_what_is_told_puts_a_hand_over_off() {
    let mut rig = rig();
    rig.saves = false;
    rig.tell(Input::HandOver(Ticket(900)));
    // The disk takes a fifth of a second, in which a cause always tells something.
    let mut saves = 0;
    while !rig.answers.contains_key(&900) {
        let source = ClaimSource::External("npd".into());
        let raise = Change::Raise { claim: lasting(source.clone(), 60), force: false };
        for change in [raise, Change::Withdraw(source)] {
            rig.tell(Input::Claim { node: "d".into(), change, ticket: None });
        }
        rig.pass(SECOND / 5);
        rig.save(Ok(()));
        rig.run();
        saves += 1;
        assert!(saves < 10, "it waits still");
    }
    assert!(saves > 4, "what was told in the first second is left");
    assert_eq!(rig.answers[&900].as_ref().unwrap().changed, Changed::HandedOver);
}

#[test]
fn a_hand_over_ends_all_changes_and_saves() {
    let mut rig = rig();
    rig.flag("b").unwrap();
    rig.saves = false;
    rig.pass(SECOND / 2);
    rig.tell(Input::HandOver(Ticket(900)));
    // The successor has the whole lifetime.
    assert_eq!(rig.entry("b").until, rig.now.mono + 3 * SECOND);
    assert!(!rig.answers.contains_key(&900));
    assert_eq!(rig.unflag("b"), Err(Refusal::HandingOver));
    assert_eq!(rig.flag("c"), Err(Refusal::HandingOver));
    // It could not be saved: this agent goes on.
    rig.save(Err("full".into()));
    rig.run();
    assert_eq!(rig.answers[&900], Err(Refusal::NotSaved("full".into())));
    assert!(!rig.world().closing);
    rig.tell(Input::HandOver(Ticket(902)));
    rig.pass(4 * SECOND);
    assert!(!rig.answers.contains_key(&902));
    // Nor does the disk answer: whoever asked still hears of it.
    rig.pass(SECOND);
    assert_eq!(rig.answers[&902], Err(Refusal::NotSaved("the disk has not answered for 5 s".into())));
    assert!(!rig.world().closing && !rig.world().handed_over);
    rig.save(Ok(()));
    rig.run();
    assert!(!rig.world().handed_over);
    rig.saves = true;
    rig.pass(SECOND);
    rig.tell(Input::HandOver(Ticket(901)));
    assert_eq!(rig.answers[&901].as_ref().unwrap().changed, Changed::HandedOver);
    assert!(rig.world().closing && rig.world().handed_over);
    // What is saved is another agent's: nothing is written there any more, and verdicts are renewed until the end.
    rig.pass(2 * SECOND);
    assert!(rig.saving.is_none());
    assert_eq!(rig.cut(), "b");
    rig.tell(Input::Renew);
    assert_eq!(rig.entry("b").until, rig.now.mono + 3 * SECOND);
}
