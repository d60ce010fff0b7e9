//! `settings`, `mode`, `pause` and `resume`: the one object with the settings of all agents.

use jiff::Timestamp;
use serde_json::{Value, json};

use super::{
    args::PauseAgents,
    ask::{self, Patched},
    error::Error,
    flag::user,
    session::Session,
    settings_rows::ClusterSettings,
};
use crate::crds::{NodefenceSettings, NodefenceSettingsSpec, Pause, Raw, SETTINGS_NAME, SettingsMode};

/// How often a change is tried that others change at the same time.
const TRIES: u32 = 5;
/// Who a pause is by where the API server does not say who asks.
const NOBODY: &str = "unknown";

/// Shows the settings.
pub(super) async fn show(session: &Session) -> Result<ClusterSettings, Error> {
    let settings = ask::get(&session.settings(), SETTINGS_NAME).await?;
    Ok(ClusterSettings::read(session.server.now, settings, Vec::new()))
}

/// Sets the mode.
pub(super) async fn mode(session: &Session, mode: SettingsMode) -> Result<ClusterSettings, Error> {
    // Content that cannot be read must not keep anybody from setting the mode.
    let change = |_: &Raw<NodefenceSettings>| Ok(json!({ "spec": { "mode": mode } }));
    let spec = NodefenceSettingsSpec { mode, ..NodefenceSettingsSpec::default() };
    change_settings(session, change, spec, Vec::new()).await
}

/// Adds a pause, in place of an earlier one of the same user.
pub(super) async fn pause(session: &Session, args: &PauseAgents) -> Result<ClusterSettings, Error> {
    let now = session.server.now;
    let by = user(session).await.unwrap_or_else(|| NOBODY.to_owned());
    let until = now.saturating_add(args.lasts).unwrap_or(Timestamp::MAX);
    let pause = Pause { by, reason: args.reason.clone(), until };
    let change = |settings: &Raw<NodefenceSettings>| {
        let settings = read(settings)?;
        Ok(pauses(&settings, with(&settings.spec.pauses, &pause, now)))
    };
    let spec = NodefenceSettingsSpec { pauses: vec![pause.clone()], ..NodefenceSettingsSpec::default() };
    change_settings(session, change, spec, Vec::new()).await
}

/// Ends pauses of the user, or all.
pub(super) async fn resume(session: &Session, all: bool) -> Result<ClusterSettings, Error> {
    let now = session.server.now;
    let by = user(session).await.unwrap_or_else(|| NOBODY.to_owned());
    let Some(settings) = ask::get(&session.settings(), SETTINGS_NAME).await? else {
        return Ok(ClusterSettings::read(now, None, Vec::new()));
    };
    let known = read(&settings)?;
    let ends = |pause: &Pause| all || pause.by == by;
    let ended: Vec<Pause> = known.spec.pauses.iter().filter(|pause| ends(pause)).cloned().collect();
    if ended.is_empty() {
        return Ok(ClusterSettings::read(now, Some(settings), ended));
    }
    let change = |settings: &Raw<NodefenceSettings>| {
        let settings = read(settings)?;
        let kept = settings.spec.pauses.iter().filter(|pause| !ends(pause) && pause.until > now);
        Ok(pauses(&settings, kept.cloned().collect()))
    };
    change_settings(session, change, NodefenceSettingsSpec::default(), ended).await
}

/// Settings whose pauses are needed.
fn read(settings: &Raw<NodefenceSettings>) -> Result<NodefenceSettings, Error> {
    settings.read().map_err(|error| Error::UnreadSettings(error.to_string()))
}

/// The pauses with a new one. Those that are over, and an earlier one of the same user, are left out.
fn with(pauses: &[Pause], pause: &Pause, now: Timestamp) -> Vec<Pause> {
    let kept = pauses.iter().filter(|other| other.until > now && other.by != pause.by);
    kept.chain([pause]).cloned().collect()
}

/// The change that sets all pauses. The API server takes it only where nobody changed the object meanwhile, whose pause would be lost.
fn pauses(settings: &NodefenceSettings, pauses: Vec<Pause>) -> Value {
    json!({ "metadata": { "resourceVersion": settings.metadata.resource_version }, "spec": { "pauses": pauses } })
}

/// Changes the settings, or creates them with `spec` where there are none.
async fn change_settings(
    session: &Session,
    change: impl Fn(&Raw<NodefenceSettings>) -> Result<Value, Error>,
    spec: NodefenceSettingsSpec,
    ended: Vec<Pause>,
) -> Result<ClusterSettings, Error> {
    let api = session.settings();
    for _ in 0..TRIES {
        let done = match ask::get(&api, SETTINGS_NAME).await? {
            None => {
                let new = NodefenceSettings::new(SETTINGS_NAME, spec.clone());
                match ask::create(&session.new_settings(), &new, false).await {
                    // The controller may create the settings at the same time.
                    Err(Error::Exists) => Patched::Changed,
                    created => return Ok(ClusterSettings::new(session.server.now, Some(created?), ended)),
                }
            }
            Some(found) => ask::patch(&api, SETTINGS_NAME, &change(&found)?).await?,
        };
        if let Patched::Done(settings) = done {
            return Ok(ClusterSettings::read(session.server.now, Some(*settings), ended));
        }
    }
    Err(Error::Busy)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::cli::cluster::samples::{now, pause};

    #[test]
    fn a_user_has_one_pause_and_those_that_are_over_go() {
        let mut over = pause("carol");
        over.until = now();
        let mut earlier = pause("alice");
        earlier.until = now() + Duration::from_secs(5);
        let found = with(&[over, earlier, pause("bob")], &pause("alice"), now());
        assert_eq!(found, [pause("bob"), pause("alice")]);
    }
}
