//! Whether the agent cuts what it should, in a word, with the warnings that follow from its state. Pure.

use std::{
    fmt::{self, Display},
    time::Duration,
};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{
    devices::InterfaceRow,
    ipvs::GuardRow,
    model::{NodeAction, Status, VERDICT_LIFETIME},
    replacement::Beside,
    settings::SettingsRow,
    warnings::{Code, Effect},
};
use crate::plan::Mode;

/// Whether traffic to flagged nodes is cut on this node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum State {
    /// The traffic is cut.
    Ok,
    /// The traffic is cut, with the limits that the warnings name.
    Degraded,
    /// The traffic is only counted: the mode is set to observe, another program replaces kube-proxy, or the view is too old.
    Observe,
    /// The traffic is not cut although it should be: the agent sees no packets, or the kernel ignores its verdicts.
    Blind,
}

impl Display for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Ok => "OK",
            Self::Degraded => "DEGRADED",
            Self::Observe => "OBSERVE",
            Self::Blind => "BLIND",
        })
    }
}

/// A warning: something that needs attention, or something that was counted since the agent began.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Warning {
    /// The code of the warning. `nodefence doctor CODE` explains it.
    pub code: Code,
    /// What is wrong on this node, in words and with numbers.
    pub message: String,
    /// Whether the warning holds now. If not, it was counted since the agent began, and `status --check` ignores it.
    pub standing: bool,
}

/// The health of the agent.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Health {
    /// Whether traffic to flagged nodes is cut.
    pub state: State,
    /// The reason for the state, in one line.
    pub why: String,
    /// The warnings, by code. Each code is there at most once.
    pub warnings: Vec<Warning>,
}

/// The health of the agent and its state.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct StatusReport {
    /// The health of the agent.
    #[serde(flatten)]
    pub health: Health,
    /// The state of the agent.
    #[serde(flatten)]
    pub status: Status,
}

impl From<Status> for StatusReport {
    fn from(status: Status) -> Self {
        Self { health: Health::of(&status), status }
    }
}

impl Health {
    /// The health of an agent in that state.
    ///
    /// The first word answers whether anything is cut. So a state in which nothing is cut takes precedence over one in which a part is: blind over
    /// observe, and observe over degraded, whatever warnings an observing agent has. The reasons are in the same line.
    pub fn of(status: &Status) -> Self {
        let warnings = warnings(status);
        let has = |effect| warnings.iter().any(|warning| warning.code.explanation().effect == effect);
        let state = match status.mode {
            _ if has(Effect::Blind) => State::Blind,
            Mode::Observe => State::Observe,
            Mode::Enforce if has(Effect::Fails) || has(Effect::Limits) => State::Degraded,
            Mode::Enforce => State::Ok,
        };
        let why = why(status, state, &warnings);
        Self { state, why, warnings }
    }

    /// Whether a warning stands that wants attention.
    pub fn has_findings(&self) -> bool {
        self.warnings.iter().any(|warning| warning.standing)
    }
}

fn why(status: &Status, state: State, warnings: &[Warning]) -> String {
    let counted = counted(warnings);
    let observes = || format!("nothing is cut, only counted: {}", who_observes(status));
    let parts = match state {
        State::Ok => [Some(flagged(status)), counted],
        State::Degraded => [counted, None],
        State::Observe => [Some(observes()), counted],
        State::Blind => {
            let blind = warnings.iter().map(|warning| warning.code.explanation());
            let blind: Vec<&str> =
                blind.filter(|about| about.effect == Effect::Blind).map(|about| about.title).collect();
            let mode = match status.mode {
                Mode::Enforce => String::new(),
                Mode::Observe => format!("; the agent only observes ({})", who_observes(status)),
            };
            [Some(format!("nothing is cut: {}{mode}", blind.join(", "))), counted]
        }
    };
    parts.into_iter().flatten().collect::<Vec<_>>().join("; ")
}

/// How many warnings there are, and their codes. Warnings that do not stand now are named apart.
fn counted(warnings: &[Warning]) -> Option<String> {
    let names = |standing| {
        let names = warnings.iter().filter(|warning| warning.standing == standing);
        names.map(|warning| warning.code.name()).collect::<Vec<_>>()
    };
    let now = names(true);
    let before = names(false);
    let now_text = match now.len() {
        0 => None,
        1 => Some(format!("1 warning: {}", now.join(", "))),
        count => Some(format!("{count} warnings: {}", now.join(", "))),
    };
    let before_text = (!before.is_empty()).then(|| format!("since the agent began: {}", before.join(", ")));
    let texts: Vec<String> = now_text.into_iter().chain(before_text).collect();
    (!texts.is_empty()).then(|| texts.join("; "))
}

fn flagged(status: &Status) -> String {
    match status.flagged.iter().filter(|node| node.action != NodeAction::Pass).count() {
        0 => "no node is cut".to_owned(),
        1 => "1 node is cut".to_owned(),
        count => format!("{count} nodes are cut"),
    }
}

/// What keeps an observing agent from cutting.
fn who_observes(status: &Status) -> String {
    let set = status.mode_set.as_ref();
    match (&status.replacement, set.and_then(|set| set.changed.as_ref().map(|by| (set, by)))) {
        (Some(row), _) if row.beside == Beside::Observes => format!("{} is here", row.product),
        _ if status.cluster.is_old => "the view is too old".to_owned(),
        (_, Some((set, by))) if set.set == Mode::Observe => {
            format!("set to observe by {} at {}; started with {}", by.by, by.at, set.started)
        }
        _ => {
            let shared = status.settings.as_ref().and_then(SettingsRow::why_observe);
            shared
                .filter(|_| set.is_none_or(|set| set.set == Mode::Enforce))
                .unwrap_or("--mode observe".to_owned())
        }
    }
}

/// A time in whole seconds, as in `1m 30s`.
pub(crate) fn seconds(seconds: u64) -> String {
    humantime::format_duration(Duration::from_secs(seconds)).to_string()
}

/// Collects warnings; a code stands there once, its texts joined.
#[derive(Default)]
struct Warnings(Vec<Warning>);

impl Warnings {
    fn add(&mut self, code: Code, message: impl Into<String>) {
        self.0.push(Warning { code, message: message.into(), standing: code.is_standing() });
    }

    /// Adds one warning with all of these texts, where there are any.
    fn all(&mut self, code: Code, texts: impl IntoIterator<Item = String>) {
        let texts: Vec<String> = texts.into_iter().collect();
        if !texts.is_empty() {
            self.add(code, texts.join("; "));
        }
    }
}

fn warnings(status: &Status) -> Vec<Warning> {
    let mut warnings = Warnings::default();
    of_source(status, &mut warnings);
    of_devices(status, &mut warnings);
    of_maps(status, &mut warnings);
    of_flows(status, &mut warnings);
    warnings.0.sort_by_key(|warning| warning.code);
    warnings.0
}

/// Adds warnings of the source: which nodes exist, which are flagged, and what keeps flags from being carried out.
fn of_source(status: &Status, to: &mut Warnings) {
    let cluster = &status.cluster;
    if cluster.view == 0 {
        to.add(Code::NoView, format!("{} has not yet said which nodes there are", cluster.source));
    }
    if let Some(row) = status.replacement.as_ref().filter(|row| row.beside == Beside::Observes) {
        to.add(Code::Replaced, row.why.clone());
    }
    if let Some(max) = cluster.max_age_seconds.filter(|_| cluster.is_old) {
        let message = format!(
            "the view was read {} ago, and holds for {}: nothing is cut, what would be is counted",
            seconds(cluster.age_seconds),
            seconds(max)
        );
        to.add(Code::ViewTooOld, message);
    }
    if let Some(error) = &cluster.error {
        to.add(
            Code::SourceRefused,
            format!("{} was not taken, the last good view holds: {error}", cluster.source),
        );
    }
    to.all(Code::SourceNotWatched, cluster.watch.clone());
    let holds = match cluster.is_stored {
        true => format!(
            "the view that an earlier agent stored on the disk holds, of {} ago",
            seconds(cluster.age_seconds)
        ),
        false => "the last good view holds".to_owned(),
    };
    match &cluster.away {
        Some(away) => {
            to.add(Code::SourceAway, format!("{} does not answer, {holds}: {away}", cluster.source));
        }
        None if cluster.is_stored => {
            to.add(Code::SourceAway, format!("{} has not listed all objects yet, {holds}", cluster.source));
        }
        None => {}
    }
    if let Some(settings) = &status.settings {
        let refused = settings.problem.iter().map(|problem| {
            format!("the newest NodefenceSettings cannot be read, the last good ones hold: {problem}")
        });
        let away = settings
            .away
            .iter()
            .map(|away| format!("flags or settings are not known, what was known last holds: {away}"));
        let first = settings.ignored_flags.first();
        let ignored = first.map(|first| {
            let count = settings.ignored_flags.len();
            format!("NodeFlags that cannot be read: {count}; the first: {}: {}", first.name, first.problem)
        });
        to.all(Code::OrdersNotTaken, refused.chain(away).chain(ignored));
    }
    if cluster.conflicts != 0 {
        let first = cluster.conflict_examples.first().map(|row| format!("; the first: {row}"));
        let message = format!(
            "{} conflicts in {}; what conflicts is left out and not cut{}",
            cluster.conflicts,
            cluster.source,
            first.unwrap_or_default()
        );
        to.add(Code::Conflicts, message);
    }
    if cluster.left_out != 0 {
        let first = cluster.left_out_examples.first();
        let first = first.map(|row| format!("; the first: {} on {}: {}", row.address, row.node, row.why));
        let message =
            format!("{} endpoints are left out and not cut{}", cluster.left_out, first.unwrap_or_default());
        to.add(Code::EndpointsLeftOut, message);
    }
    to.all(Code::DangerousFlags, cluster.flags.clone());
    to.all(Code::FlagsFile, status.flags_problem.clone());
    to.all(Code::ClaimsWithheld, status.withheld.iter().map(ToString::to_string));
}

/// Adds warnings of the devices that packets leave by.
fn of_devices(status: &Status, to: &mut Warnings) {
    let devices = &status.interfaces;
    let is_attached = |row: &InterfaceRow| row.tc.is_some();
    let is_wanted = !devices.is_empty() || status.uncovered != 0;
    let none_attached = is_wanted && !devices.iter().any(is_attached);
    if none_attached {
        let names: Vec<&str> = devices.iter().map(|row| row.name.as_str()).collect();
        let message = match names.len() {
            0 => "there is no device to attach to".to_owned(),
            count => format!("none of {count} devices is attached: {}", names.join(", ")),
        };
        to.add(Code::NotAttached, message);
    }
    to.all(
        Code::DeviceFails,
        devices.iter().filter_map(|row| Some(format!("{}: {}", row.name, row.error.as_ref()?))),
    );
    let functions = devices.iter().filter(|row| row.virtual_functions != 0);
    let functions: Vec<String> =
        functions.map(|row| format!("{} has {}", row.name, row.virtual_functions)).collect();
    if !functions.is_empty() {
        let message = format!("what is sent by virtual functions is not cut here: {}", functions.join(", "));
        to.add(Code::VirtualFunctions, message);
    }
    if let Some(error) = &status.routes_problem {
        let message = format!("what devices cover is of before, since they could not be looked at: {error}");
        to.add(Code::RoutesUnknown, message);
    }
    if status.uncovered != 0 {
        let first = status.uncovered_examples.first();
        let first = first.and_then(|row| {
            Some(format!("; the first: {} on {}: {}", row.address, row.node, row.uncovered.as_ref()?))
        });
        let message = format!(
            "{} backends are not covered, and not cut here{}",
            status.uncovered,
            first.unwrap_or_default()
        );
        let none_covered = status.covered == Some(0) && !none_attached;
        to.add(if none_covered { Code::NothingCovered } else { Code::Uncovered }, message);
    }
}

/// Adds warnings of the pinned tables, and of the agent itself.
fn of_maps(status: &Status, to: &mut Warnings) {
    let plane = &status.dataplane;
    if plane.renewed_late() {
        let code = if plane.has_lapsed() { Code::Lapsed } else { Code::RenewedLate };
        let message = format!(
            "verdicts were last renewed {:.1} s ago; the kernel ignores them after {} s",
            plane.renewed_seconds_ago,
            VERDICT_LIFETIME.as_secs()
        );
        to.add(code, message);
    }
    to.all(Code::RenewFailed, plane.renew_error.clone());
    to.all(Code::MapsNotWritten, plane.error.clone());
    to.all(
        Code::MapsNotCompared,
        plane.compare_error.as_ref().map(|error| format!("the maps could not be compared: {error}")),
    );
    if plane.differed != 0 {
        let message = format!(
            "{} entries were changed by somebody else, and corrected since the agent began (see the log)",
            plane.differed
        );
        to.add(Code::MapsChanged, message);
    }
    if plane.left_out != 0 {
        let first: Vec<String> = plane.left_out_first.iter().map(ToString::to_string).collect();
        let message = format!(
            "{} backends do not fit and pass: {}{} (room for {})",
            plane.left_out,
            first.join(", "),
            if plane.left_out > first.len() as u64 { ", ..." } else { "" },
            plane.max_backends
        );
        to.add(Code::BackendsBeyondMaps, message);
    }
    if plane.left_out_ports != 0 {
        to.add(
            Code::PortsBeyondMaps,
            format!("{} host-network ports do not fit and pass", plane.left_out_ports),
        );
    }
    if status.log_lines_lost != 0 {
        let message = format!(
            "{} lines were lost since the agent began: they came faster than they could be written",
            status.log_lines_lost
        );
        to.add(Code::LogLinesLost, message);
    }
}

/// Adds warnings of what is done about flows of flagged nodes.
fn of_flows(status: &Status, to: &mut Warnings) {
    let challenged = status.challenged.iter();
    to.all(
        Code::ChallengeIncomplete,
        challenged.filter_map(|(node, row)| Some(format!("{node}: {}", row.problem.as_ref()?))),
    );
    let stale = status.stale.iter();
    to.all(
        Code::StaleIncomplete,
        stale.filter_map(|(node, row)| Some(format!("{node}: {}", row.problem.as_ref()?))),
    );
    to.all(Code::DrainLimited, status.ipvs.note.clone());
    to.all(Code::DrainFails, status.ipvs.problems.clone());
    let drained = status.ipvs.nodes.iter();
    to.all(
        Code::DestinationsFail,
        drained.flat_map(|(node, row)| row.problems.iter().map(move |problem| format!("{node}: {problem}"))),
    );
    if status.ipvs.guard == (GuardRow::External { seen: false }) {
        let message =
            "the guard is external, and none is there: where this agent is killed, weights of 0 stay";
        to.add(Code::NoGuard, message);
    }
}

#[cfg(test)]
#[path = "health_tests.rs"]
mod tests;
