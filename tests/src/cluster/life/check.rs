//! What was checked, and by which evidence.

/// One thing that was checked.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Check {
    what: String,
    outcome: Outcome,
}

/// How a check ended, with the evidence.
#[derive(Clone, PartialEq, Eq, Debug)]
enum Outcome {
    Held(String),
    Broken(String),
    /// It failed, and only so because this machine or a guest stood still. It may be repeated.
    StoodStill(String),
}

impl Check {
    /// A check that holds if `holds`.
    pub(super) fn of(what: impl Into<String>, holds: bool, evidence: impl Into<String>) -> Self {
        let evidence = evidence.into();
        Self {
            what: what.into(),
            outcome: if holds { Outcome::Held(evidence) } else { Outcome::Broken(evidence) },
        }
    }

    /// A check that did not hold because something stood still.
    pub(super) fn stood_still(what: impl Into<String>, evidence: impl Into<String>) -> Self {
        Self { what: what.into(), outcome: Outcome::StoodStill(evidence.into()) }
    }

    fn is_held(&self) -> bool {
        matches!(self.outcome, Outcome::Held(_))
    }

    fn line(&self) -> String {
        let (word, evidence) = match &self.outcome {
            Outcome::Held(evidence) => ("held", evidence),
            Outcome::Broken(evidence) | Outcome::StoodStill(evidence) => ("broken", evidence),
        };
        // Evidence of several lines stands below its check.
        let evidence = evidence.trim_end().replace('\n', "\n  ");
        format!("{word}: {}: {evidence}\n", self.what)
    }
}

/// The lines of these checks.
pub(super) fn lines(checks: &[Check]) -> String {
    checks.iter().map(Check::line).collect()
}

/// Whether all of these hold.
pub(super) fn all_held(checks: &[Check]) -> bool {
    checks.iter().all(Check::is_held)
}

/// Why the part with these checks is to be repeated: each check that failed is explained by a stand-still.
pub(super) fn again(checks: &[Check]) -> Option<String> {
    let mut reason = None;
    for check in checks {
        match &check.outcome {
            Outcome::Held(_) => {}
            Outcome::Broken(_) => return None,
            Outcome::StoodStill(evidence) => {
                reason = reason.or_else(|| evidence.lines().next().map(str::to_owned))
            }
        }
    }
    reason
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_a_stand_still_explains_is_repeated() {
        let held = Check::of("a", true, "1 of 1");
        let still = Check::stood_still("b", "node-1 stood still for 2 s\nbroken: c");
        let broken = Check::of("c", false, "0 of 1");
        assert!(all_held(std::slice::from_ref(&held)) && again(std::slice::from_ref(&held)).is_none());
        let both = [held.clone(), still.clone()];
        assert!(!all_held(&both));
        assert_eq!(again(&both).as_deref(), Some("node-1 stood still for 2 s"));
        assert_eq!(again(&[still.clone(), broken.clone()]), None);
        let text = "held: a: 1 of 1\nbroken: b: node-1 stood still for 2 s\n  broken: c\nbroken: c: 0 of 1\n";
        assert_eq!(lines(&[held, still, broken]), text);
    }
}
