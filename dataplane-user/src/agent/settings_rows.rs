//! What the API server says of settings and flags, as a row of `status` and of `mode`.

use std::sync::Arc;

use tokio::sync::watch;

use super::{
    claim_rows::{share_text, whole_seconds},
    world::World,
};
use crate::{
    enforce::{Now, SharedPause},
    plan::Mode,
    report::{IgnoredFlagRow, PauseRow, SettingsMode, SettingsRow},
    source::OrdersRow,
};

/// The row; `None` where the source of nodes is no API server.
pub(super) fn settings_row(
    told: Option<&watch::Receiver<OrdersRow>>,
    world: &World,
    now: Now,
) -> Option<SettingsRow> {
    let told = told?.borrow().clone();
    let shared = world.held.shared.as_deref();
    let mode = match shared {
        _ if told.off => SettingsMode::Off,
        Some(shared) if shared.mode == Mode::Enforce => SettingsMode::Enforce,
        _ => SettingsMode::Observe,
    };
    let rows = |flags: Vec<(Arc<str>, String)>| {
        let flags = flags.into_iter();
        flags.map(|(name, problem)| IgnoredFlagRow { name: name.to_string(), problem }).collect()
    };
    Some(SettingsRow {
        found: shared.is_some(),
        mode,
        automatic: shared.map(|shared| shared.auto).unwrap_or_default(),
        limit: share_text(shared.map(|shared| shared.limit).unwrap_or_default()),
        pauses: shared
            .into_iter()
            .flat_map(|shared| shared.holding(now))
            .map(|pause| row(pause, now))
            .collect(),
        opted_out: shared.into_iter().flat_map(|shared| &shared.opted_out).map(ToString::to_string).collect(),
        problem: told.problem,
        away: told.away,
        ignored_flags: rows(told.ignored),
        flags_without_machine: rows(told.without_machine),
    })
}

fn row(pause: &SharedPause, now: Now) -> PauseRow {
    let left = pause.ends.saturating_sub(now.boot);
    PauseRow {
        by: pause.by.to_string(),
        reason: pause.reason.to_string(),
        until: whole_seconds(now.wall.checked_add(left).unwrap_or(now.wall)),
    }
}
