//! Objects of the API server that flag nodes, and settings for all agents.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use super::{
    model::{Cluster, Maps},
    rig::{Rig, SECOND, claim, lasting, settings},
    texts::text,
};
use crate::{
    enforce::{
        Auto, Change, ClaimCause, ClaimSource, EnforcerSettings, Event, Input, NewClaim, NewView, Saved,
        Share, SharedPause, SharedSettings, Standing,
    },
    plan::Mode,
};

/// Twelve nodes without zones or pools that matter, of which limited claims may cut four.
fn cluster() -> String {
    text("defghijklmno", &[]).replace(", zone: y", "").replace("- {name: d,", "- {name: z,")
}

/// An agent that takes settings from the API server, and has them.
fn rig() -> Rig {
    let mut rig = Rig::with(&cluster(), EnforcerSettings { shares: true, ..settings() });
    share(&mut rig, enforcing());
    rig
}

fn enforcing() -> SharedSettings {
    SharedSettings {
        off: false,
        mode: Mode::Enforce,
        auto: Auto::Enforce,
        limit: Share::default(),
        pauses: Vec::new(),
        opted_out: BTreeSet::new(),
    }
}

fn share(rig: &mut Rig, shared: SharedSettings) {
    rig.tell(Input::Shared(Some(Arc::new(shared))));
}

fn object(name: &str, forced: bool) -> ClaimSource {
    ClaimSource::Object { name: name.into(), cause: ClaimCause::Operator, forced, uid: None }
}

/// One object says that this node is flagged for an hour.
fn add(rig: &mut Rig, name: &str, node: &str, forced: bool) {
    let change = Change::Raise { claim: lasting(object(name, forced), 3_600), force: false };
    rig.tell(Input::Claim { node: node.into(), change, ticket: None });
}

fn remove(rig: &mut Rig, name: &str, node: &str, forced: bool) {
    let change = Change::Withdraw(object(name, forced));
    rig.tell(Input::Claim { node: node.into(), change, ticket: None });
}

fn standing(rig: &Rig, node: &str) -> Vec<Standing> {
    rig.world().claims.of(node).iter().map(|shown| shown.standing.clone()).collect()
}

#[test]
fn an_object_is_carried_out_as_the_mode_says_and_not_as_auto_does() {
    for auto in [Auto::Off, Auto::Observe, Auto::Enforce] {
        let mut rig = rig();
        share(&mut rig, SharedSettings { auto, ..enforcing() });
        add(&mut rig, "one", "e", false);
        assert_eq!(rig.cut(), "e", "{auto}");
        share(&mut rig, SharedSettings { mode: Mode::Observe, auto, ..enforcing() });
        assert_eq!((rig.cut().as_str(), standing(&rig, "e")), ("", vec![Standing::Observed]), "{auto}");
    }
}

#[test]
fn limits_hold_for_objects_and_automatic_claims_together() {
    let mut rig = rig();
    for node in ["e", "f", "g"] {
        add(&mut rig, &format!("of-{node}"), node, false);
    }
    rig.raise("h", lasting(ClaimSource::Hung, 10_000), false);
    assert_eq!(rig.cut(), "e,f,g,h");
    add(&mut rig, "fifth", "i", false);
    assert_eq!(rig.cut(), "");
    assert!(matches!(standing(&rig, "i")[..], [Standing::Withheld(_)]));
    // An object that is deleted and created anew under its name is no new one.
    remove(&mut rig, "fifth", "i", false);
    rig.pass(SECOND);
    add(&mut rig, "fifth", "i", false);
    assert_eq!(rig.cut(), "");
    // A forced one is cut in spite of that, as a person's flag is.
    add(&mut rig, "forced", "i", true);
    assert_eq!(rig.cut(), "i");
}

#[test]
fn forced_objects_exceed_no_limit_and_count_towards_it() {
    let mut rig = rig();
    for node in ["e", "f", "g", "h", "i", "j"] {
        add(&mut rig, &format!("of-{node}"), node, true);
    }
    assert_eq!(rig.cut(), "e,f,g,h,i,j");
    add(&mut rig, "more", "k", false);
    assert_eq!(rig.cut(), "e,f,g,h,i,j");
    assert!(matches!(standing(&rig, "k")[..], [Standing::Withheld(_)]));
}

#[test]
fn a_node_is_cut_until_the_last_of_its_objects_is_gone() {
    let mut rig = rig();
    add(&mut rig, "one", "e", false);
    add(&mut rig, "two", "e", false);
    assert_eq!(standing(&rig, "e"), [Standing::Enforced, Standing::Enforced]);
    remove(&mut rig, "one", "e", false);
    assert_eq!(rig.cut(), "e");
    remove(&mut rig, "two", "e", false);
    assert_eq!(rig.cut(), "");
}

#[test]
fn an_object_ends_by_itself_only_where_it_says_so() {
    let mut rig = rig();
    rig.raise("e", claim(object("endless", false)), false);
    rig.raise("f", lasting(object("short", false), 60), false);
    rig.pass(59 * SECOND);
    assert_eq!(rig.cut(), "e,f");
    rig.pass(SECOND);
    assert_eq!(rig.cut(), "e");
    assert!(rig.events.contains(&Event::Over("f".into(), object("short", false))));
}

#[test]
fn a_list_withdraws_the_objects_that_it_lacks_and_nothing_else() {
    let mut rig = rig();
    add(&mut rig, "one", "e", false);
    add(&mut rig, "two", "f", false);
    rig.flag("g").unwrap();
    let since = rig.world().claims.of("f")[0].claim.raised;
    rig.pass(SECOND);
    rig.events.clear();
    let list: Vec<(_, NewClaim)> = [("two", "f"), ("three", "h")]
        .map(|(name, node)| (node.into(), lasting(object(name, false), 60)))
        .into();
    rig.tell(Input::Objects(list));
    assert_eq!(rig.cut(), "f,g,h");
    assert_eq!(rig.world().claims.of("f")[0].claim.raised, since, "it is the same flag");
    let told = |event: &Event| match event {
        Event::Raised(node, _) => format!("raised {node}"),
        Event::Withdrawn(node, _) => format!("withdrawn {node}"),
        other => format!("{other:?}"),
    };
    assert_eq!(rig.events.iter().map(told).collect::<Vec<_>>(), ["raised h", "withdrawn e"]);
}

#[test]
fn a_node_that_is_opted_out_is_never_cut_and_counts_in_no_limit() {
    let mut rig = rig();
    share(&mut rig, SharedSettings { opted_out: ["e".into()].into(), ..enforcing() });
    rig.flag("e").unwrap();
    add(&mut rig, "one", "e", true);
    for node in ["f", "g", "h", "i"] {
        add(&mut rig, &format!("of-{node}"), node, false);
    }
    assert_eq!(rig.cut(), "f,g,h,i");
    assert_eq!(standing(&rig, "e"), [Standing::OptedOut, Standing::OptedOut]);
    // It counts from now on, so that there are five.
    share(&mut rig, enforcing());
    assert_eq!(rig.cut(), "e");
}

#[test]
fn without_settings_an_agent_that_takes_them_observes() {
    let mut rig = Rig::with(&cluster(), EnforcerSettings { shares: true, ..settings() });
    rig.flag("e").unwrap();
    assert_eq!((rig.cut().as_str(), rig.world().mode), ("", Mode::Observe));
    share(&mut rig, enforcing());
    assert_eq!((rig.cut().as_str(), rig.world().mode), ("e", Mode::Enforce));
    // The object is deleted.
    rig.tell(Input::Shared(None));
    assert_eq!((rig.cut().as_str(), rig.world().mode), ("", Mode::Observe));
    // Where they come from elsewhere, they count nowhere.
    let mut rig = Rig::with(&cluster(), settings());
    share(&mut rig, SharedSettings { mode: Mode::Observe, ..enforcing() });
    rig.flag("e").unwrap();
    assert_eq!((rig.cut().as_str(), rig.world().shared.is_none()), ("e", true));
}

#[test]
fn the_weakest_mode_holds() {
    for started in [Mode::Observe, Mode::Enforce] {
        for (off, shared) in [(false, Mode::Observe), (false, Mode::Enforce), (true, Mode::Enforce)] {
            let settings = EnforcerSettings { mode: started, shares: true, ..settings() };
            let mut rig = Rig::with(&cluster(), settings);
            share(&mut rig, SharedSettings { off, mode: shared, ..enforcing() });
            rig.flag("e").unwrap();
            let cuts = started == Mode::Enforce && shared == Mode::Enforce && !off;
            assert_eq!(rig.cut(), if cuts { "e" } else { "" }, "{started} {off} {shared}");
            assert_eq!(rig.world().set_mode, started);
        }
    }
}

#[test]
fn the_weakest_of_what_is_done_about_automatic_claims_and_the_stricter_limit_hold() {
    let of = |own: Auto, shared: Auto, own_limit: (u32, u32), shared_limit: (u32, u32)| {
        let share_of = |(part, of)| Share { part, of };
        let own = EnforcerSettings { auto: own, limit: share_of(own_limit), shares: true, ..settings() };
        let mut rig = Rig::with(&cluster(), own);
        share(&mut rig, SharedSettings { auto: shared, limit: share_of(shared_limit), ..enforcing() });
        let world = rig.world();
        (world.auto, (world.limit.part, world.limit.of))
    };
    assert_eq!(of(Auto::Enforce, Auto::Observe, (1, 3), (1, 2)), (Auto::Observe, (1, 3)));
    assert_eq!(of(Auto::Off, Auto::Enforce, (2, 3), (1, 3)), (Auto::Off, (1, 3)));
    assert_eq!(of(Auto::Enforce, Auto::Enforce, (2, 6), (1, 3)), (Auto::Enforce, (2, 6)));
}

/// An agent whose command line says nothing of automatic claims.
#[test]
fn settings_alone_decide_about_automatic_claims_where_the_command_line_says_nothing() {
    let own = EnforcerSettings { auto: Auto::Enforce, limit: Share::ALL, shares: true, ..settings() };
    let mut rig = Rig::with(&cluster(), own);
    let held = |rig: &mut Rig| (rig.world().auto, rig.world().limit);
    assert_eq!(held(&mut rig), (Auto::Observe, Share::default()), "nothing has come");
    let wide = Share { part: 2, of: 3 };
    share(&mut rig, SharedSettings { auto: Auto::Enforce, limit: wide, ..enforcing() });
    assert_eq!(held(&mut rig), (Auto::Enforce, wide));
    rig.tell(Input::Shared(None));
    assert_eq!(held(&mut rig), (Auto::Observe, Share::default()), "they are gone");
}

#[test]
fn another_limit_holds_at_once() {
    let mut rig = rig();
    for node in ["e", "f", "g"] {
        add(&mut rig, &format!("of-{node}"), node, false);
    }
    assert_eq!(rig.cut(), "e,f,g");
    share(&mut rig, SharedSettings { limit: Share { part: 1, of: 6 }, ..enforcing() });
    assert_eq!(rig.cut(), "");
}

#[test]
fn a_pause_observes_until_it_ends_by_itself() {
    let mut rig = rig();
    rig.flag("e").unwrap();
    let pause = |seconds| SharedPause {
        by: "ann".into(),
        reason: "".into(),
        ends: rig.now.boot + Duration::from_secs(seconds),
    };
    let pauses = vec![pause(5), pause(60)];
    share(&mut rig, SharedSettings { pauses, ..enforcing() });
    assert_eq!(rig.cut(), "");
    rig.pass(59 * SECOND);
    assert_eq!(rig.cut(), "");
    rig.pass(SECOND);
    assert_eq!(rig.cut(), "e");
}

/// The next agent finds claims and settings before the API server answers, and does not let the cut lapse.
#[test]
fn claims_of_objects_and_settings_outlive_the_agent() {
    let mut rig = rig();
    add(&mut rig, "one", "e", false);
    let saved = rig.saved.clone();
    assert_eq!(saved.shared.as_deref(), Some(&enforcing()));
    let own = EnforcerSettings { shares: true, ..settings() };
    let over = |maps: Maps, saved: Saved, own: EnforcerSettings, mono| {
        let mut rig = Rig::over(maps, saved, own, mono);
        for _ in 0..10 {
            rig.pass(SECOND);
        }
        rig
    };
    let mut next = over(rig.maps.clone(), saved.clone(), own.clone(), rig.now.mono + SECOND);
    assert_eq!(next.cut(), "e");
    next.view(&Cluster::parse(&cluster()));
    assert_eq!(next.cut(), "e");
    // The first complete list lacks the object.
    next.tell(Input::Objects(Vec::new()));
    assert_eq!(next.cut(), "");
    // Neither an agent that observes, nor one to which nobody would tell the object's end, goes on.
    let observing = Saved {
        shared: Some(Arc::new(SharedSettings { mode: Mode::Observe, ..enforcing() })),
        ..saved.clone()
    };
    let begin = rig.now.mono + SECOND;
    assert_eq!(over(rig.maps.clone(), observing, own.clone(), begin).cut(), "");
    assert_eq!(over(rig.maps.clone(), Saved { shared: None, ..saved.clone() }, own, begin).cut(), "");
    assert_eq!(over(rig.maps.clone(), saved, settings(), begin).cut(), "");
}

/// While the agent was down the node was made anew under its name: the claim was about the machine before.
#[test]
fn a_saved_claim_of_an_earlier_machine_does_not_stand() {
    let cut = |claimed: Option<&str>, own: Option<&str>| {
        let mut rig = rig();
        let source = ClaimSource::Object {
            name: "one".into(),
            cause: ClaimCause::Operator,
            forced: true,
            uid: claimed.map(Into::into),
        };
        let change = Change::Raise { claim: lasting(source, 3_600), force: true };
        rig.tell(Input::Claim { node: "e".into(), change, ticket: None });
        assert_eq!(rig.cut(), "e");
        let settings = EnforcerSettings { shares: true, ..settings() };
        let mut next = Rig::over(rig.maps, rig.saved, settings, rig.now.mono + SECOND);
        let view = next.deliver(&Cluster::parse(&cluster()));
        let mut members = BTreeMap::clone(&view.members);
        members.get_mut("e").unwrap().uid = own.map(Into::into);
        let members = Arc::new(members);
        next.tell(Input::View { view: Arc::new(NewView { members, ..NewView::clone(&view) }), flags: None });
        (next.cut(), standing(&next, "e"))
    };
    let stands = || ("e".to_owned(), vec![Standing::Enforced]);
    assert_eq!(cut(Some("1"), Some("1")), stands());
    assert_eq!(cut(Some("1"), Some("2")), (String::new(), vec![Standing::Unknown]));
    // An agent that knew no UIDs saved the claim, or stored the view.
    assert_eq!(cut(None, Some("2")), stands());
    assert_eq!(cut(Some("1"), None), stands());
}
