//! The settings as they are printed. Pure.

use jiff::Timestamp;
use schemars::JsonSchema;
use serde::Serialize;

use super::{
    known::{Known, paused},
    lines::lines,
    off_rows::Waited,
};
use crate::{
    crds::{NodefenceSettings, NodefenceSettingsSpec, Pause, Raw, SettingsMode},
    report::Document,
};

/// The settings of all agents.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
pub(super) struct ClusterSettings {
    /// What NodefenceSettings/default has. `None` if there is none, or if it cannot be read.
    pub(super) settings: Option<NodefenceSettingsSpec>,
    /// What agents do by that, in words.
    pub(super) agents: String,
    /// The pauses that this command ended.
    pub(super) ended: Vec<Pause>,
    /// Which agents were off when this command ended. `None` if it did not wait for that.
    pub(super) waited: Option<Waited>,
}

impl Document for ClusterSettings {
    const KIND: &'static str = "ClusterSettings";
    const PRINTED_BY: &'static str = "kubectl nodefence settings";
}

impl ClusterSettings {
    /// The settings at a time.
    pub(super) fn new(now: Timestamp, settings: Option<NodefenceSettings>, ended: Vec<Pause>) -> Self {
        Self::of(Known::new(now, Vec::new(), Vec::new(), settings), ended)
    }

    /// The settings as the API server sent them.
    pub(super) fn read(now: Timestamp, settings: Option<Raw<NodefenceSettings>>, ended: Vec<Pause>) -> Self {
        Self::of(Known::read(now, Vec::new(), Vec::new(), settings), ended)
    }

    fn of(known: Known, ended: Vec<Pause>) -> Self {
        let (_, agents) = known.does();
        Self { settings: known.settings, agents, ended, waited: None }
    }
}

/// A mode, as the objects have it.
pub(super) const fn mode(mode: SettingsMode) -> &'static str {
    match mode {
        SettingsMode::Off => "off",
        SettingsMode::Observe => "observe",
        SettingsMode::Enforce => "enforce",
    }
}

/// The settings as text.
pub(super) fn text(report: &ClusterSettings) -> String {
    let mut all = vec![format!("agents     {}", report.agents)];
    if let Some(settings) = &report.settings {
        all.push(format!("mode       {}", mode(settings.mode)));
        all.push(format!("automatic  {}", mode(settings.automatic)));
        all.push(format!("limit      {} of all nodes, of each zone and of each pool", settings.limit));
        for pause in &settings.pauses {
            all.push(format!("pause      {}", paused(pause)));
        }
        if !settings.opt_outs.nodes.is_empty() {
            all.push(format!("never cut  {}", settings.opt_outs.nodes.join(", ")));
        }
    }
    for pause in &report.ended {
        all.push(format!("ended      {}", paused(pause)));
    }
    all.extend(report.waited.iter().flat_map(Waited::lines));
    lines(all)
}
