//! State that outlives the agent is saved at once, mere renewals once a second.

use super::{
    rig::{Rig, SECOND, claim, lasting, settings},
    texts::text,
};
use crate::enforce::{Change, ClaimSource, Input, NewClaim, Ticket};

/// A rig whose disk is as slow as the test says. Node `b` bears an automatic claim, which is saved.
fn rig() -> Rig {
    let mut rig = Rig::with(&text("abcdef", &[]), settings());
    rig.saves = false;
    rig.pass(SECOND / 3);
    raise(&mut rig, "b", lasting(ClaimSource::Hung, 30));
    assert!(is_saved(&mut rig), "a new claim");
    rig
}

fn raise(rig: &mut Rig, node: &str, claim: NewClaim) {
    let change = Change::Raise { claim, force: false };
    rig.tell(Input::Claim { node: node.into(), change, ticket: None });
}

/// Whether something was handed out to be saved. If so, saves it.
fn is_saved(rig: &mut Rig) -> bool {
    let is = rig.saving.is_some();
    rig.save(Ok(()));
    rig.run();
    is
}

/// Whether a successor would find all claims that hold.
fn is_up_to_date(rig: &Rig) -> bool {
    let held = rig.world().claims.by_name().into_iter();
    let held = held.flat_map(|(node, claims)| claims.iter().map(|its| (node.clone(), its.claim.clone())));
    rig.saved.claims == held.collect::<Vec<_>>()
}

#[test]
fn renewals_alone_are_saved_once_a_second() {
    let mut rig = rig();
    let begin = rig.now.mono;
    assert!(rig.enforcer.deadline() < begin + SECOND, "verdicts are renewed at other times");
    let mut saves = Vec::new();
    for _ in 0..70 {
        rig.pass(SECOND / 20);
        let when_it_is_time = is_saved(&mut rig);
        raise(&mut rig, "b", lasting(ClaimSource::Hung, 30));
        if when_it_is_time || is_saved(&mut rig) {
            saves.push(rig.now.mono - begin);
        }
    }
    assert_eq!(saves, [SECOND, 2 * SECOND, 3 * SECOND]);
    // The last renewal is not forgotten.
    assert!(!is_up_to_date(&rig));
    rig.pass(SECOND * 4 / 10);
    assert!(!is_saved(&mut rig) && rig.enforcer.deadline() == begin + 4 * SECOND);
    rig.pass(SECOND / 10);
    assert!(is_saved(&mut rig) && is_up_to_date(&rig));
    rig.pass(10 * SECOND);
    assert!(!is_saved(&mut rig), "nothing is new");
    // After a pause a renewal is saved at once, as anything new.
    raise(&mut rig, "b", lasting(ClaimSource::Hung, 30));
    assert!(is_saved(&mut rig));
}

#[test]
fn what_is_more_than_a_renewal_is_saved_at_once_and_the_renewals_with_it() {
    let mut rig = rig();
    let raised = |claim: NewClaim| Change::Raise { claim, force: false };
    let all = [
        ("c", raised(lasting(ClaimSource::Hung, 30)), "a new claim"),
        ("c", raised(lasting(ClaimSource::Unreachable, 30)), "of another source"),
        ("c", raised(lasting(ClaimSource::Hung, 20)), "one that ends sooner"),
        ("c", Change::Withdraw(ClaimSource::Hung), "one that is withdrawn"),
        ("d", raised(claim(ClaimSource::Cli)), "an operator's"),
        ("d", raised(lasting(ClaimSource::Cli, 60)), "an operator's, again"),
    ];
    for (node, change, what) in all {
        rig.pass(SECOND / 100);
        raise(&mut rig, "b", lasting(ClaimSource::Hung, 30));
        assert!(!is_saved(&mut rig), "a renewal, before {what}");
        rig.tell(Input::Claim { node: node.into(), change, ticket: None });
        assert!(is_saved(&mut rig) && is_up_to_date(&rig), "{what}");
    }
    for (input, what) in [(Input::SaveAnew, "the file is gone"), (Input::HandOver(Ticket(9)), "a successor")]
    {
        rig.pass(SECOND / 100);
        raise(&mut rig, "b", lasting(ClaimSource::Hung, 30));
        assert!(!is_saved(&mut rig), "a renewal, before {what}");
        rig.tell(input);
        assert!(is_saved(&mut rig) && is_up_to_date(&rig), "{what}");
    }
}

/// Each save that failed is tried again each second; renewals meanwhile do not make it more.
#[test]
fn renewals_do_not_hurry_what_failed() {
    let mut rig = rig();
    rig.pass(SECOND);
    raise(&mut rig, "c", claim(ClaimSource::Cli));
    let mut tries = 0;
    for _ in 0..95 {
        if rig.saving.is_some() {
            tries += 1;
            rig.save(Err("full".into()));
            rig.run();
        }
        rig.pass(SECOND / 50);
        raise(&mut rig, "b", lasting(ClaimSource::Hung, 30));
    }
    assert_eq!(tries, 2);
    raise(&mut rig, "d", claim(ClaimSource::Cli));
    assert!(is_saved(&mut rig) && is_up_to_date(&rig), "something new is tried at once");
}
