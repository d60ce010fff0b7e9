//! The NodefenceSettings `default`: what agents make of it. Pure.

use std::{collections::BTreeSet, sync::Arc};

use jiff::Timestamp;
use serde::de::DeserializeOwned;

use super::{
    date::{ServerClock, ServerTime},
    read::Read,
    wire,
};
use crate::{
    cluster::NodeName,
    crds::{NodefenceSettingsSpec, OptOuts, Pause, SETTINGS_NAME, SettingsMode, share},
    enforce::{Auto, Input, Now, Share, SharedPause, SharedSettings},
    plan::Mode,
    source::Texts,
};

/// Settings that could be read, with times by the API server's clock.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Given {
    mode: SettingsMode,
    automatic: SettingsMode,
    limit: Share,
    pauses: Vec<Pause>,
    opted_out: BTreeSet<NodeName>,
}

/// What is told of the settings.
#[derive(Clone, Debug)]
pub(super) enum SettingsChange {
    /// All that there are, of which one has the name that counts.
    All(Vec<Given>),
    /// They are new, or changed.
    One(Given),
    /// They are gone.
    Gone,
    /// They cannot be read, and why.
    Unreadable(String),
    /// An object of a name that does not count.
    Other,
}

impl Read for wire::Settings {
    type Object = Given;
    type Change = SettingsChange;
    type Fault = String;

    fn read(&self, _: &mut Texts) -> Result<Option<Given>, String> {
        if !self.counts() {
            return Ok(None);
        }
        Given::of(&self.spec).map(Some)
    }

    fn single(given: Given) -> SettingsChange {
        SettingsChange::One(given)
    }

    fn list(given: Vec<Given>) -> SettingsChange {
        SettingsChange::All(given)
    }

    fn gone(&self) -> SettingsChange {
        if self.counts() { SettingsChange::Gone } else { SettingsChange::Other }
    }

    fn left_out(why: String) -> SettingsChange {
        SettingsChange::Unreadable(why)
    }
}

impl wire::Settings {
    fn counts(&self) -> bool {
        self.metadata.name.as_deref() == Some(SETTINGS_NAME)
    }
}

/// A field of the content. The API server writes null, or nothing, where a field has its default.
fn field<T: DeserializeOwned>(
    spec: &serde_json::Value,
    name: &str,
    default: impl Fn() -> T,
) -> Result<T, String> {
    match spec.get(name) {
        None | Some(serde_json::Value::Null) => Ok(default()),
        Some(value) => T::deserialize(value).map_err(|error| format!("spec.{name}: {error}")),
    }
}

/// What is known of the settings.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Settings {
    given: Option<Given>,
    /// Why the newest version cannot be read.
    problem: Option<String>,
    /// The first list has come to its end.
    are_listed: bool,
}

impl Settings {
    /// Takes what the API server tells together. What cannot be read changes nothing: the last good settings hold.
    pub(super) fn take(&mut self, changes: Vec<SettingsChange>) {
        let last_good = self.given.clone();
        for change in changes {
            match change {
                SettingsChange::All(given) => {
                    self.given = given.into_iter().next();
                    self.problem = None;
                    self.are_listed = true;
                }
                SettingsChange::One(given) => {
                    self.given = Some(given);
                    self.problem = None;
                }
                SettingsChange::Gone => {
                    self.given = None;
                    self.problem = None;
                }
                SettingsChange::Unreadable(why) => {
                    if self.problem.as_ref() != Some(&why) {
                        tracing::warn!(
                            event = "settings-refused",
                            problem = why,
                            "the NodefenceSettings cannot be read; the last good ones hold"
                        );
                    }
                    self.given = last_good.clone();
                    self.problem = Some(why);
                }
                SettingsChange::Other => {}
            }
        }
    }

    /// Whether their list has come.
    pub(super) const fn are_listed(&self) -> bool {
        self.are_listed
    }

    /// Whether they turn the agent off. `None` where nothing could be read that says so or otherwise.
    pub(super) fn off(&self) -> Option<bool> {
        match &self.given {
            Some(given) => Some(given.mode == SettingsMode::Off),
            None => (self.are_listed && self.problem.is_none()).then_some(false),
        }
    }

    /// Why the newest version cannot be read.
    pub(super) fn problem(&self) -> Option<&str> {
        self.problem.as_deref()
    }
}

/// What the Enforcer was told of the settings.
#[derive(Debug, Default)]
pub(super) struct SettingsTold {
    /// What it was told last; `None`: nothing.
    told: Option<Option<Arc<SharedSettings>>>,
}

impl SettingsTold {
    /// What the Enforcer is to be told now.
    pub(super) fn news(&mut self, settings: &Settings, clock: ServerTime) -> Option<Input> {
        let Settings { given, problem, are_listed } = settings;
        // What an earlier agent saved holds where nothing else could ever be read.
        let never_read = given.is_none() && problem.is_some() && self.told.is_none();
        if !are_listed || never_read {
            return None;
        }
        let settings = given.as_ref().map(|given| Arc::new(given.shared(clock)));
        if self.told.as_ref() == Some(&settings) {
            return None;
        }
        self.told = Some(settings.clone());
        Some(Input::Shared(settings))
    }

    /// Whether it was told anything.
    pub(super) const fn is_told(&self) -> bool {
        self.told.is_some()
    }
}

/// What agents make of this content of the settings now. The error names the field.
pub(crate) fn shared_settings(
    spec: &serde_json::Value,
    clock: &ServerClock,
    now: Now,
) -> Result<SharedSettings, String> {
    Given::of(spec).map(|given| given.shared(clock.read(now)))
}

impl Given {
    fn of(spec: &serde_json::Value) -> Result<Self, String> {
        let limit: String = field(spec, "limit", || NodefenceSettingsSpec::default().limit)?;
        let opted_out: OptOuts = field(spec, "optOuts", OptOuts::default)?;
        Ok(Self {
            mode: field(spec, "mode", SettingsMode::default)?,
            automatic: field(spec, "automatic", SettingsMode::default)?,
            limit: share(&limit)
                .ok_or_else(|| format!("spec.limit: `{limit}`; expected a part of the nodes as in 1/3"))?,
            pauses: field(spec, "pauses", Vec::new)?,
            opted_out: opted_out.nodes.into_iter().map(NodeName::from).collect(),
        })
    }

    fn shared(&self, clock: ServerTime) -> SharedSettings {
        // A pause that ends too early is a cut that nobody wants.
        let ends = |until: Timestamp| clock.last_shows(until);
        let pauses = self.pauses.iter().map(|pause| SharedPause {
            by: pause.by.as_str().into(),
            reason: pause.reason.as_str().into(),
            ends: ends(pause.until),
        });
        SharedSettings {
            off: self.mode == SettingsMode::Off,
            mode: match self.mode {
                SettingsMode::Enforce => Mode::Enforce,
                SettingsMode::Off | SettingsMode::Observe => Mode::Observe,
            },
            auto: match self.automatic {
                SettingsMode::Off => Auto::Off,
                SettingsMode::Observe => Auto::Observe,
                SettingsMode::Enforce => Auto::Enforce,
            },
            limit: self.limit,
            pauses: pauses.collect(),
            opted_out: self.opted_out.clone(),
        }
    }
}

#[cfg(test)]
mod tests;
