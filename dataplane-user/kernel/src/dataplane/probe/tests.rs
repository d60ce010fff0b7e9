use super::{Conntrack, Finding, Findings, Present};
use crate::conntrack::ByFilter;

fn findings(conntrack: Finding<Conntrack>, ipvs_translates: Finding<bool>) -> Findings {
    let deletes_by_filter = Finding::Found(ByFilter { v4: true, v6: false });
    Findings { conntrack, ipvs_translates, deletes_by_filter, milliseconds: 1 }
}

const GOOD: Conntrack = Conntrack { syn_ack: true, far_past: true, liberal: true };

#[test]
fn what_is_unknown_gets_the_choice_that_always_works() {
    let unknown = findings(Finding::Failed("no".into()), Finding::Failed("no".into()));
    assert!(unknown.inject() && unknown.manner().far_is_invalid && unknown.manner().syn_ack);
    let without = findings(Finding::Found(GOOD), Finding::NotNeeded("no IPVS".into()));
    assert!(!without.inject() && !without.manner().far_is_invalid);
    let old = Conntrack { far_past: false, ..GOOD };
    let old = findings(Finding::Found(old), Finding::Found(false));
    assert!(old.inject() && old.manner().far_is_invalid && old.manner().syn_ack);
    assert!(!findings(Finding::Found(GOOD), Finding::Found(true)).inject());
    let odd = Conntrack { syn_ack: false, ..GOOD };
    assert!(!findings(Finding::Found(odd), Finding::Found(true)).manner().syn_ack);
    assert_eq!(unknown.by_filter(), ByFilter { v4: true, v6: false });
    let blind = Findings { deletes_by_filter: Finding::Failed("no".into()), ..unknown };
    assert_eq!(blind.by_filter(), ByFilter { v4: false, v6: false });
}

#[test]
fn findings_can_be_stored_and_read() {
    for findings in [
        findings(Finding::Found(GOOD), Finding::NotNeeded("no IPVS".into())),
        findings(Finding::Failed("why".into()), Finding::Found(false)),
    ] {
        let text = serde_json::to_string(&findings).unwrap();
        assert_eq!(serde_json::from_str::<Findings>(&text).unwrap(), findings, "{text}");
        assert!(!findings.to_string().is_empty());
    }
}

#[test]
fn what_comes_late_is_probed_once() {
    let present = |ipvs, conntrack| Present { ipvs, conntrack };
    let none = present(false, false);
    let without = findings(Finding::Found(GOOD), Finding::NotNeeded("no IPVS".into()));
    assert!(!without.outdated(none, none));
    assert!(!without.outdated(none, present(false, true)), "conntrack was probed: the probe loaded it");
    // IPVS may also be loaded while the probes run.
    for then in [none, present(true, true)] {
        assert!(without.outdated(then, present(true, true)));
    }
    for found in [Finding::Found(true), Finding::Found(false), Finding::Failed("why".into())] {
        assert!(!findings(Finding::Found(GOOD), found).outdated(present(true, true), present(true, true)));
    }
    let blind = findings(Finding::Failed("no nf_tables".into()), Finding::NotNeeded("no IPVS".into()));
    assert!(blind.outdated(none, present(false, true)));
    assert!(!blind.outdated(present(false, true), present(false, true)), "it would fail again");
}
