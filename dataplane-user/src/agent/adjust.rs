//! Changes that commands make to a running agent: its mode, and what it logs.

use std::time::Duration;

use tokio::time::timeout;

use super::{
    claim_rows::whole_seconds,
    inbox::{Inbox, NoAnswer},
    logging::Logging,
    notes::{Note, mode_changes_later},
    rows::{Shown, replacement},
    settings_rows::settings_row,
};
use crate::{
    enforce::{ChangedBy, Input},
    flags::now,
    plan::Mode,
    report::{Adjusted, Beside, Failure, ModeReport, SettingsRow},
};

/// How long a command waits until all verdicts follow a new mode.
const CARRIED_OUT: Duration = Duration::from_secs(10);

/// A change that this user asks for now.
fn asked_now(by: String) -> ChangedBy {
    ChangedBy { by, at: whole_seconds(now().wall) }
}

/// Changes the mode where one is given, and waits until all verdicts follow it, as far as they can be written. Returns the mode.
pub(super) async fn mode(
    shown: &Shown,
    verdicts: &Inbox,
    mode: Option<Mode>,
    by: String,
) -> Result<ModeReport, Failure> {
    if let Some(mode) = mode {
        verdicts.tell(Input::Mode(mode, asked_now(by)));
        let carried_out = timeout(CARRIED_OUT, verdicts.settled()).await;
        let carried_out = carried_out.map_err(|_| mode_changes_later())?;
        carried_out.map_err(|_| Failure::failed(NoAnswer::Ended))?;
    }
    Ok(report(shown))
}

/// Changes what is logged where a level is given. Returns what is logged.
pub(super) fn log_level(
    log: &Logging,
    level: Option<String>,
    by: String,
) -> Result<Adjusted<String>, Failure> {
    if let Some(level) = level {
        let asked = asked_now(by.clone());
        let tell = || {
            tracing::info!(
                event = "log-level-set",
                filter = level,
                by,
                "a command set the filter of the log"
            );
        };
        log.set(&level, asked, tell)?;
    }
    Ok(log.row())
}

fn report(shown: &Shown) -> ModeReport {
    let world = shown.sight.world();
    let settings = settings_row(shown.rows.orders.as_ref(), &world, now());
    let mut warnings = Vec::new();
    if world.held.set_mode == Mode::Enforce {
        let replaced = replacement(&shown.sight, &world);
        warnings.extend(replaced.filter(|row| row.beside == Beside::Observes).map(|row| row.why));
        warnings.extend(
            settings
                .as_ref()
                .and_then(SettingsRow::why_observe)
                .map(|why| format!("{why}: nothing is cut, only counted")),
        );
        if world.held.view_is_old {
            warnings.push(Note::NotConfirmed(world.view.source).to_string());
        }
    }
    let lapsing = world.held.lapsing.iter().count();
    if lapsing != 0 {
        warnings.push(Note::Lapsing(lapsing).to_string());
    }
    ModeReport { mode: world.held.mode, adjusted: shown.mode_set(&world), settings, warnings }
}
