//! The check for a replacement of kube-proxy, which forwards Services in its place.

use crate::{
    doctor::Check,
    report::{Beside, ReplacementRow},
};

/// The check of `doctor`.
pub(super) fn check(found: Option<&ReplacementRow>) -> Check {
    const NAME: &str = "kube-proxy replacement";
    match found {
        None => Check::ok(NAME, "no trace of one"),
        Some(row) if row.beside == Beside::Observes => Check::warn(NAME, &*row.why, row.remedy.clone()),
        Some(row) => Check::ok(NAME, &*row.why),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{doctor::Level, plan::Mode, proxy::Replacement};

    #[test]
    fn it_is_a_problem_only_where_it_keeps_the_agent_from_cutting() {
        let found = Replacement::by_devices(|name| name == "cilium_host").unwrap();
        for (mode, force, beside, level) in [
            (Mode::Enforce, false, Beside::Observes, Level::Warn),
            (Mode::Enforce, true, Beside::Forced, Level::Ok),
            (Mode::Observe, false, Beside::Nothing, Level::Ok),
            (Mode::Observe, true, Beside::Nothing, Level::Ok),
        ] {
            let row = ReplacementRow::new(found, mode, force);
            assert_eq!((row.beside, check(Some(&row)).level), (beside, level));
            assert!(
                row.why.starts_with("Cilium forwards Services here (device cilium_host): "),
                "{}",
                row.why
            );
        }
        let row = ReplacementRow::new(found, Mode::Enforce, false);
        assert!(row.why.contains("only counted") && row.why.ends_with("--force"), "{}", row.why);
        let remedy = check(Some(&row)).remedy.unwrap();
        assert!(remedy.starts_with("ip link delete cilium_host  # "), "{remedy}");
        assert_eq!(check(None).level, Level::Ok);
    }
}
