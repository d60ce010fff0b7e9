use std::time::Duration;

use super::texts;
use crate::{
    conntrack::Stats,
    plan::audit::{Drops, Found, Mend, System, judge_system},
    proxy::Mode,
};

const WINDOW: Duration = Duration::from_secs(60);

fn judged(system: &System, drops: &Drops) -> Vec<String> {
    let mut out = Found::default();
    judge_system(system, drops, &mut out);
    let mut all = texts(&out);
    all.iter_mut().zip(&out.differences).for_each(|(text, d)| *text += &format!(": {}", d.detail));
    all
}

/// All sysctls 0.
fn zero(mode: Option<Mode>) -> System {
    System { mode, sysctls: System::paths().map(|_| Some(0)).collect(), ..System::default() }
}

#[test]
fn sysctls_count_in_the_modes_that_need_them() {
    let names = |mode| {
        let mut out = Found::default();
        judge_system(&zero(mode), &Drops::default(), &mut out);
        let set = |mend: &Option<Mend>| match mend {
            Some(Mend::Set(path, 1)) => path.replace('/', "."),
            other => panic!("{other:?}"),
        };
        let named = |text: &str| text.trim_start_matches("sysctl ").to_owned();
        for (text, difference) in texts(&out).iter().zip(&out.differences) {
            assert_eq!(named(text), set(&difference.mend));
        }
        texts(&out).iter().map(|text| named(text)).collect::<Vec<_>>()
    };
    let ipvs =
        ["net.ipv4.vs.conntrack", "net.ipv4.vs.expire_nodest_conn", "net.ipv4.vs.expire_quiescent_template"];
    assert_eq!(names(Some(Mode::Ipvs)), ipvs);
    for mode in [Mode::Iptables, Mode::Nftables] {
        assert_eq!(names(Some(mode)), ["net.netfilter.nf_conntrack_tcp_loose"]);
    }
    assert_eq!(names(None), [""; 0]);
    let fine = System { sysctls: vec![Some(1), None, Some(1), Some(2)], ..zero(Some(Mode::Ipvs)) };
    assert_eq!(judged(&fine, &Drops::default()), [""; 0]);
}

#[test]
fn a_table_that_is_nearly_full() {
    for (entries, most, full) in [
        (Some(89), Some(100), false),
        (Some(90), Some(100), true),
        (Some(120), Some(100), true),
        (Some(100), None, false),
        (None, Some(100), false),
        // Switched off.
        (Some(5), Some(0), false),
    ] {
        let found = judged(&System { entries, most, ..System::default() }, &Drops::default());
        assert_eq!(found.len(), usize::from(full), "{entries:?} of {most:?}");
    }
    let system = System { entries: Some(236_000), most: Some(262_144), ..System::default() };
    let text = "conntrack-full net.netfilter.nf_conntrack_max: 236000 of 262144 entries (90 %)";
    assert_eq!(judged(&system, &Drops::default()), [text]);
}

#[test]
fn counters_are_told_as_long_as_they_grow() {
    let mut drops = Drops::default();
    let at = |second| Duration::from_secs(second);
    let counts = |insert_failed, drop, early_drop| Stats { insert_failed, drop, early_drop };
    let told = |drops: &Drops| judged(&System::default(), drops);
    // What there was before anybody looked is history.
    drops.note(counts(1_000, 10, 1), at(0), WINDOW);
    assert_eq!(told(&drops), [""; 0]);
    drops.note(counts(1_003, 10, 1), at(10), WINDOW);
    drops.note(counts(1_004, 10, 1), at(60), WINDOW);
    let failed = "conntrack-drops insert_failed: 4 entries could not be inserted, their packets were dropped";
    assert_eq!(told(&drops), [failed]);
    drops.note(counts(1_004, 12, 4), at(120), WINDOW);
    let dropped = "conntrack-drops drop: 2 packets were dropped without an entry";
    let early = "conntrack-drops early_drop: 3 entries of other flows were thrown away to make room";
    assert_eq!(told(&drops), [failed, dropped, early]);
    drops.note(counts(1_004, 12, 4), at(121), WINDOW);
    assert_eq!(told(&drops), [dropped, early]);
    // A CPU went away: its counts are no growth, nor is their absence.
    drops.note(counts(4, 0, 0), at(200), WINDOW);
    assert_eq!(told(&drops), [""; 0]);
    drops.note(counts(5, 0, 0), at(201), WINDOW);
    assert_eq!(told(&drops).len(), 1);
}
