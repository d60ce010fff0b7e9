//! Writes that fail.

use std::{collections::BTreeSet, net::IpAddr};

use nodefence_common::{NodeEntry, PortKey, port_flags};

use super::{
    model::Cluster,
    rig::{Fate, Rig, SECOND, claim, settings},
    texts::text,
};
use crate::enforce::{Change, ClaimSource, EnforcerSettings, Event, Input, Output, Refusal, Share};

fn wide() -> EnforcerSettings {
    EnforcerSettings { limit: Share { part: 1, of: 1 }, ..settings() }
}

fn refuse_place(rig: &mut Rig, node: &str) {
    let index = rig.slots.get(node).unwrap().index;
    rig.fates = Box::new(move |output| match output {
        Output::Node(at, _) if *at == index => Fate::Failed,
        _ => Fate::Done,
    });
}

/// Gives `ports` room for this many keys.
fn room(rig: &mut Rig, keys: usize) {
    let mut there: BTreeSet<_> = rig.maps.exempt.keys().copied().collect();
    rig.fates = Box::new(move |output| match output {
        Output::Exempt(key) | Output::Except(key) if !there.contains(key) && there.len() >= keys => {
            Fate::Failed
        }
        Output::Exempt(key) | Output::Except(key) => {
            there.insert(*key);
            Fate::Done
        }
        Output::Unexempt(key) => {
            there.remove(key);
            Fate::Done
        }
        _ => Fate::Done,
    });
}

fn detect(rig: &mut Rig, node: &str) {
    let change = Change::Raise { claim: claim(ClaimSource::Hung), force: false };
    rig.tell(Input::Claim { node: node.into(), change, ticket: None });
}

#[test]
fn a_node_that_cannot_be_renewed_leaves_the_others_held() {
    let mut rig = Rig::with(&text("abcdef", &["b"]), settings());
    rig.flag("b").unwrap();
    rig.flag("c").unwrap();
    let since = rig.world().enforced.iter().next().unwrap().challenge_since;
    refuse_place(&mut rig, "b");
    rig.pass(SECOND);
    let names = |list: &crate::enforce::Bearers| -> Vec<String> {
        list.iter().map(|bearer| bearer.name.as_ref().unwrap().to_string()).collect()
    };
    assert_eq!(
        (names(&rig.world().enforced), names(&rig.world().lapsing)),
        (vec!["c".into()], vec!["b".into()])
    );
    assert_eq!(rig.world().failed["b"].as_ref(), "no room");
    rig.pass(SECOND);
    assert_eq!(rig.cut(), "b,c");
    rig.pass(5 * SECOND);
    assert_eq!(rig.cut(), "c");
    // The log is told once.
    let told = rig.events.iter().filter(|event| matches!(event, Event::Failed(..))).count();
    assert_eq!(told, 1);
    // Another flag does not depend on it.
    rig.flag("d").unwrap_err();
    rig.raise("d", claim(ClaimSource::Cli), true);
    assert_eq!(rig.cut(), "c,d");
    // It can be written again: its clients are challenged anew.
    rig.fates = Box::new(|_| Fate::Done);
    rig.pass(SECOND);
    assert_eq!((rig.cut().as_str(), rig.world().failed.len()), ("b,c,d", 0));
    assert!(rig.world().enforced.iter().next().unwrap().challenge_since > since);
    assert_eq!(names(&rig.world().enforced), ["b", "c", "d"]);
}

#[test]
fn nobody_is_cut_whose_exemptions_do_not_fit() {
    let mut rig = Rig::with(&text("abcdef", &["b", "bc"]), settings());
    room(&mut rig, 1);
    let refused = rig.flag("b").unwrap_err();
    let Refusal::NotExempt { port, .. } = refused else { panic!("{refused:?}") };
    assert_eq!(port.to_string(), "10.1.1.2:80/tcp");
    assert_eq!((rig.cut().as_str(), rig.maps.exempt.len()), ("", 0));
    assert!(rig.world().claims.nodes().next().is_none());
    // One fits; a second claim that needs more is refused and leaves the first alone.
    room(&mut rig, 3);
    rig.flag("b").unwrap();
    rig.flag("c").unwrap_err();
    assert_eq!((rig.cut().as_str(), rig.maps.exempt.len()), ("b", 2));
    room(&mut rig, 6);
    rig.flag("c").unwrap();
    assert_eq!((rig.cut().as_str(), rig.maps.exempt.len()), ("b,c", 6));
}

/// A port that is cut at an exempt address finds no room: then all of the address passes.
#[test]
fn an_address_passes_whole_where_what_is_cut_there_does_not_fit() {
    let second = "- {name: x/s2, clusterIPs: [10.96.0.2], ports: [{port: 90, targetPort: 81}], endpoints: [{address: 10.1.1.2, node: b}, {address: 10.1.2.3, node: c}]}\n";
    let mut rig = Rig::with(&(text("abcdef", &["b"]) + second), settings());
    let refuse =
        |output: &Output| if matches!(output, Output::Except(_)) { Fate::Failed } else { Fate::Done };
    rig.fates = Box::new(refuse);
    rig.flag("b").unwrap();
    assert_eq!((rig.cut().as_str(), rig.maps.exempt.len()), ("b", 2));
    assert!(rig.world().failed.is_empty());
    let since = rig.world().enforced.iter().next().unwrap().challenge_since;
    rig.pass(3 * SECOND);
    assert_eq!((rig.cut().as_str(), rig.maps.exempt.len()), ("b", 2));
    rig.fates = Box::new(|_| Fate::Done);
    rig.pass(SECOND);
    assert_eq!((rig.cut().as_str(), rig.maps.exempt.len()), ("b", 3));
    assert!(rig.world().enforced.iter().next().unwrap().challenge_since > since, "clients passed meanwhile");
}

/// Answers may come to a port that nobody names any more: no node is cut that needs its key removed while that fails.
#[test]
fn what_is_cut_no_more_at_an_address_that_passes_must_go() {
    let second = |port: u16| {
        format!(
            "- {{name: x/s2, clusterIPs: [10.96.0.2], ports: [{{port: 90, targetPort: {port}}}], endpoints: [{{address: 10.1.1.2, node: b}}, {{address: 10.1.2.3, node: c}}]}}\n"
        )
    };
    let of = |port| Cluster::parse(&(text("abcdef", &["b"]) + &second(port)));
    let mut rig = Rig::new(settings());
    rig.view(&of(81));
    rig.flag("b").unwrap();
    rig.fates =
        Box::new(|output| if matches!(output, Output::Unexempt(_)) { Fate::Failed } else { Fate::Done });
    rig.did();
    rig.view(&of(82));
    let did = rig.did();
    let at = |what: &str| did.iter().position(|did| did == what).unwrap();
    assert!(
        at("failed: unexempt 10.1.1.2:81") < at("healthy b") && at("healthy b") < at("tables 2"),
        "{did:?}"
    );
    rig.pass(3 * SECOND);
    assert_eq!(rig.cut(), "");
    rig.fates = Box::new(|_| Fate::Done);
    rig.pass(2 * SECOND);
    assert_eq!((rig.cut().as_str(), rig.maps.exempt.len()), ("b", 3));
}

/// A claim without a waiting request is tried again, and nodes that do not need the exemption are not held up.
#[test]
fn a_claim_without_a_request_waits_for_its_exemptions() {
    let mut rig = Rig::with(&text("abcdef", &["b"]), wide());
    room(&mut rig, 0);
    detect(&mut rig, "b");
    detect(&mut rig, "c");
    assert_eq!(rig.cut(), "c");
    let why = "10.1.1.2:80/tcp must be exempt, which failed: no room";
    assert_eq!(rig.world().failed["b"].as_ref(), why);
    rig.pass(3 * SECOND);
    assert_eq!(rig.cut(), "c");
    let told = rig.events.iter().filter(|event| matches!(event, Event::NotExempt(..))).count();
    assert_eq!(told, 1);
    room(&mut rig, 2);
    rig.pass(SECOND);
    assert_eq!((rig.cut().as_str(), rig.world().failed.len()), ("b,c", 0));
}

/// V2: an exemption that a new view needs does not fit, for a node that is cut already. The node is released before the tables are written.
#[test]
fn a_node_whose_exemption_fails_later_is_released() {
    let mut rig = Rig::with(&text("abcdef", &["bc"]), settings());
    rig.flag("b").unwrap();
    rig.did();
    room(&mut rig, 0);
    rig.view(&Cluster::parse(&text("abcdef", &["b"])));
    let did = rig.did();
    let at = |what: &str| did.iter().position(|did| did == what).unwrap();
    assert!(at("healthy b") < at("tables 2"), "{did:?}");
    assert_eq!(rig.cut(), "");
    assert!(!rig.world().claims.of("b").is_empty());
    rig.pass(5 * SECOND);
    assert_eq!(rig.cut(), "");
    room(&mut rig, 2);
    rig.pass(SECOND);
    assert_eq!((rig.cut().as_str(), rig.maps.exempt.len()), ("b", 2));
}

/// V2, and the node cannot be released either: the tables wait until its verdict has lapsed.
#[test]
fn tables_wait_for_what_must_be_exempt() {
    let mut rig = Rig::with(&text("abcdef", &["bc"]), settings());
    rig.flag("b").unwrap();
    rig.fates = Box::new(|output| match output {
        Output::Node(..) | Output::Exempt(_) => Fate::Failed,
        _ => Fate::Done,
    });
    rig.writes_tables = false;
    rig.view(&Cluster::parse(&text("abcdef", &["b"])));
    assert_eq!(rig.cut(), "b");
    rig.pass(3 * SECOND - 1);
    assert!(rig.tables.is_none());
    rig.pass(SECOND);
    assert!(rig.tables.is_some());
    assert_eq!(rig.cut(), "");
}

/// A node needs an exemption that another node, which is being released, needs too: the first is not cut before.
#[test]
fn an_exemption_that_failed_holds_up_who_needs_it_later() {
    let mut rig = Rig::with(&text("abcdef", &["bc", "bcd"]), wide());
    rig.flag("b").unwrap();
    rig.fates = Box::new(|output| match output {
        Output::Exempt(_) => Fate::Failed,
        _ => Fate::Done,
    });
    for _ in 0..3 {
        detect(&mut rig, "c");
        detect(&mut rig, "d");
        assert_eq!(rig.cut(), "b,d");
        rig.pass(SECOND / 3);
    }
}

#[test]
fn an_exemption_that_cannot_be_removed_is_tried_again() {
    let mut rig = Rig::with(&text("abcdef", &["b"]), settings());
    rig.flag("b").unwrap();
    rig.fates = Box::new(|output| match output {
        Output::Unexempt(_) => Fate::FailedAndDone,
        _ => Fate::Done,
    });
    rig.unflag("b").unwrap();
    // The key may be gone: it is written again where it is needed.
    rig.did();
    rig.flag("b").unwrap();
    assert_eq!(rig.did(), ["publish b", "exempt 10.1.1.2:80", "exempt 10.1.1.2", "cut b"]);
    rig.unflag("b").unwrap();
    rig.fates = Box::new(|_| Fate::Done);
    rig.did();
    rig.pass(SECOND);
    assert_eq!(rig.did(), ["unexempt 10.1.1.2", "unexempt 10.1.1.2:80"]);
    assert!(rig.maps.exempt.is_empty());
}

#[test]
fn the_tables_wait_for_new_owners() {
    let mut rig = Rig::with(&text("abcdef", &[]), settings());
    rig.fates = Box::new(|output| if matches!(output, Output::Node(..)) { Fate::Failed } else { Fate::Done });
    rig.view(&Cluster::parse(&text("abcdefg", &[])));
    rig.pass(2 * SECOND);
    assert!(!rig.did().contains(&"tables 2".to_owned()));
    rig.fates = Box::new(|_| Fate::Done);
    rig.pass(SECOND);
    assert!(rig.did().contains(&"tables 2".to_owned()));
}

/// Entries that others changed behind the agent's back are written again.
#[test]
fn what_differs_is_mended() {
    let mut rig = Rig::with(&text("abcdef", &["b"]), settings());
    rig.flag("b").unwrap();
    let same = rig.found(true);
    rig.did();
    rig.tell(same);
    assert_eq!(rig.did(), [""; 0]);
    // A verdict is gone, another node bears one, an exemption is gone and another one there.
    let places = ["b", "c"].map(|node| rig.slots.get(node).unwrap().index);
    let (cut, healthy) = (rig.entry("b"), rig.entry("c"));
    let swap = |from: NodeEntry, name: [u8; 28]| NodeEntry { name, ..from };
    rig.maps.nodes.insert(places[0], swap(healthy, cut.name));
    rig.maps.exempt.pop_first();
    let key = PortKey::exempt(IpAddr::from([0; 16]).into(), 1, 6);
    rig.maps.exempt.insert(key, port_flags::EXEMPT);
    let differs = rig.found(true);
    rig.maps.nodes.insert(places[1], swap(cut, healthy.name));
    let cut_c = Input::Found { nodes: rig.maps.pinned(), exempt: Vec::new(), whole: false };
    rig.world = None;
    rig.tell(differs);
    rig.tell(cut_c);
    assert_eq!((rig.cut().as_str(), rig.maps.exempt.len()), ("b", 2));
    assert!(rig.events.contains(&Event::Mended(1, 2)), "{:?}", rig.events);
}
