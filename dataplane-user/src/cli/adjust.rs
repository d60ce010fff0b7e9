//! The settings of a running agent as text, for people.

use std::fmt::Display;

use super::output::printable;
use crate::{
    enforce::ChangedBy,
    report::{Adjusted, ModeReport, SettingsRow},
};

/// The user who runs this command by sudo, which sets the variable SUDO_USER (sudo(8)).
pub(super) fn sudo_user() -> Option<String> {
    std::env::var("SUDO_USER").ok().filter(|user| (1..=256).contains(&user.len()))
}

fn changed_by(by: &ChangedBy) -> String {
    printable(&format!("by {} at {}", by.by, by.at))
}

/// The value that a command set, and who set it. `None` where no command did.
pub(super) fn changed(row: &Adjusted<impl Display>) -> Option<String> {
    let by = row.changed.as_ref()?;
    Some(format!("set to {} {}; started with {}", row.set, changed_by(by), row.started))
}

fn setting(row: &Adjusted<impl Display>, holds: impl Display) -> String {
    let changed = changed(row).map(|changed| format!("{changed}\n")).unwrap_or_default();
    format!("{holds}\n{changed}")
}

/// The text of `mode`.
pub(super) fn mode(report: &ModeReport) -> String {
    let text = setting(&report.adjusted, report.mode);
    let settings = report.settings.as_ref().filter(|settings| settings.found);
    let settings = settings.map(|settings| format!("settings of the cluster: {}\n", settings_text(settings)));
    text + &settings.unwrap_or_default()
}

/// What the settings for all agents say.
pub(super) fn settings_text(settings: &SettingsRow) -> String {
    let mode = format!("{:?}", settings.mode).to_lowercase();
    let mut text = format!("{mode}, automatic claims {}, limit {}", settings.automatic, settings.limit);
    for pause in &settings.pauses {
        text += &printable(&format!("; paused by {} until {}", pause.by, pause.until));
    }
    if !settings.opted_out.is_empty() {
        text += &printable(&format!("; never cut: {}", settings.opted_out.join(", ")));
    }
    text
}

/// The text of `log-level`.
pub(super) fn log_level(row: &Adjusted<String>) -> String {
    setting(row, &row.set)
}

#[cfg(test)]
mod tests {
    use jiff::Timestamp;

    use super::*;
    use crate::plan::Mode;

    #[test]
    fn what_holds_comes_first_and_then_who_changed_it() {
        let by = ChangedBy { by: "root (sudo by ann)".to_owned(), at: Timestamp::UNIX_EPOCH };
        let adjusted = Adjusted { started: Mode::Observe, set: Mode::Enforce, changed: Some(by.clone()) };
        let held =
            ModeReport { mode: Mode::Observe, adjusted, settings: None, warnings: vec!["it is".to_owned()] };
        let expected =
            "observe\nset to enforce by root (sudo by ann) at 1970-01-01T00:00:00Z; started with observe\n";
        assert_eq!(mode(&held), expected);
        let never = Adjusted { changed: None, ..held.adjusted };
        let never = ModeReport { mode: Mode::Enforce, adjusted: never, settings: None, warnings: Vec::new() };
        assert_eq!(mode(&never), "enforce\n");
        let by = ChangedBy { by: "user 7".to_owned(), ..by };
        let row = Adjusted { started: "info".to_owned(), set: "debug".to_owned(), changed: Some(by) };
        assert_eq!(
            log_level(&row),
            "debug\nset to debug by user 7 at 1970-01-01T00:00:00Z; started with info\n"
        );
    }
}
