use super::{Conntrack, Finding, Findings};

fn findings(conntrack: Finding<Conntrack>, ipvs_translates: Finding<bool>) -> Findings {
    Findings { conntrack, ipvs_translates, milliseconds: 1 }
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
