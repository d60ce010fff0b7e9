//! Flags as they are printed. Pure.

use std::fmt::Write as _;

use jiff::Timestamp;
use kube::ResourceExt as _;
use schemars::JsonSchema;
use serde::Serialize;

use super::{known::Known, lines::lines};
use crate::{
    cli::{
        args::Format,
        output::{columns, or_dash},
    },
    crds::{FlagCause, FlagState, NodeFlag},
    report::Document,
};

/// A flag of the API server.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
pub(super) struct NodeFlagRow {
    /// The name of the NodeFlag.
    pub(super) name: String,
    /// The node.
    pub(super) node: String,
    /// The UID of the node for which the flag holds.
    pub(super) uid: String,
    /// What agents do about the flag, as the controller worked it out. `Over` and `NodeUnknown` also where the controller has not said so yet.
    pub(super) state: FlagState,
    /// The same in words. Empty if the controller has not said anything.
    pub(super) message: String,
    /// What kind of author the flag has.
    pub(super) cause: FlagCause,
    /// Who set the flag. `None` if it does not say so.
    pub(super) by: Option<String>,
    /// Whether the flag holds where a limit would be exceeded.
    pub(super) force: bool,
    /// Why.
    pub(super) reason: String,
    /// When the flag was created. `None` if the API server does not say so.
    pub(super) created: Option<Timestamp>,
    /// When the flag ends.
    pub(super) until: Timestamp,
}

impl NodeFlagRow {
    /// The row of a flag.
    pub(super) fn new(known: &Known, flag: &NodeFlag) -> Self {
        let row = Self::as_judged(flag);
        Self { state: known.idle(flag).unwrap_or(row.state), ..row }
    }

    /// The row of a flag with the state that the controller gave it.
    pub(super) fn as_judged(flag: &NodeFlag) -> Self {
        let status = flag.status.clone().unwrap_or_default();
        let created = flag.metadata.creation_timestamp.as_ref().map(|created| created.0);
        Self {
            name: flag.name_any(),
            node: flag.spec.node.clone(),
            uid: flag.spec.uid.clone(),
            state: status.state,
            message: status.message,
            cause: flag.spec.cause,
            by: flag.spec.by.clone(),
            force: flag.spec.force,
            reason: flag.spec.reason.clone(),
            created,
            until: flag.spec.until,
        }
    }

    /// The flag in a few words.
    pub(super) fn text(&self) -> String {
        let mut text = format!("{} until {:.0}", state(self.state), self.until);
        if let Some(by) = &self.by {
            let _ = write!(text, " by {by}");
        }
        if !self.reason.is_empty() {
            let _ = write!(text, ": {}", self.reason);
        }
        text
    }
}

/// A list of flags.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
pub(super) struct ClusterFlags {
    /// The flags, by node and name.
    pub(super) items: Vec<NodeFlagRow>,
    /// The objects that cannot be read, and why. Agents leave them out too.
    pub(super) unread: Vec<String>,
}

impl Document for ClusterFlags {
    const KIND: &'static str = "ClusterFlagList";
    const PRINTED_BY: &'static str = "kubectl nodefence flags";
}

/// The result of `flag`.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
pub(super) struct ClusterFlagReport {
    /// The flag. With `--dry-run` nothing of it is stored.
    pub(super) flag: NodeFlagRow,
    /// Whether the API server was only asked whether it would take the flag.
    pub(super) dry_run: bool,
    /// What the settings have agents do, in words. An agent whose own mode is weaker does less.
    pub(super) agents: String,
    /// The names of the flags of the same user on the same node that were deleted since the new one replaces them.
    pub(super) replaced: Vec<String>,
    /// What to know besides, in words.
    pub(super) warnings: Vec<String>,
}

impl Document for ClusterFlagReport {
    const KIND: &'static str = "ClusterFlagReport";
    const PRINTED_BY: &'static str = "kubectl nodefence flag";
}

/// The result of `unflag`.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
pub(super) struct ClusterUnflagReport {
    /// The flags that were deleted.
    pub(super) items: Vec<NodeFlagRow>,
    /// The names of the flags that were deleted though they cannot be read.
    pub(super) unread: Vec<String>,
    /// The node that was named and had no flag. `None` if it had one, or if no node was named.
    pub(super) not_flagged: Option<String>,
}

impl Document for ClusterUnflagReport {
    const KIND: &'static str = "ClusterUnflagReport";
    const PRINTED_BY: &'static str = "kubectl nodefence unflag";
}

/// A state, as the objects have it.
pub(super) const fn state(state: FlagState) -> &'static str {
    match state {
        FlagState::Pending => "Pending",
        FlagState::Accepted => "Accepted",
        FlagState::Withheld => "Withheld",
        FlagState::NodeUnknown => "NodeUnknown",
        FlagState::Over => "Over",
    }
}

/// The flags as a table, or as names that kubectl takes.
pub(super) fn flags(list: &ClusterFlags, format: Format) -> String {
    if format == Format::Name {
        return names(&list.items);
    }
    let rows = list.items.iter().map(|row| {
        [
            row.node.clone(),
            state(row.state).to_owned(),
            or_dash(row.by.as_ref()),
            format!("{:.0}", row.until),
            if row.force { "yes" } else { "no" }.to_owned(),
            row.name.clone(),
            row.reason.clone(),
        ]
    });
    columns(["NODE", "STATE", "BY", "UNTIL", "FORCE", "NAME", "REASON"], rows)
}

/// The result of `flag` as text.
pub(super) fn flagged(report: &ClusterFlagReport, format: Format) -> String {
    let row = &report.flag;
    if format == Format::Name {
        return names(std::slice::from_ref(row));
    }
    let done = if report.dry_run { "would be flagged" } else { "is flagged" };
    let mut all = vec![format!("node {} {done} until {:.0} ({})", row.node, row.until, row.name)];
    all.push(format!("agents    {}", report.agents));
    if row.state != FlagState::Pending {
        let message = if row.message.is_empty() { String::new() } else { format!(": {}", row.message) };
        all.push(format!("state     {}{message}", state(row.state)));
    }
    if !report.replaced.is_empty() {
        all.push(format!("replaces  {}", report.replaced.join(", ")));
    }
    lines(all)
}

/// The result of `unflag` as text.
pub(super) fn unflagged(report: &ClusterUnflagReport, format: Format) -> String {
    if format == Format::Name {
        let unread = report.unread.iter().map(String::as_str);
        return named(report.items.iter().map(|row| row.name.as_str()).chain(unread));
    }
    let mut all: Vec<String> = report
        .items
        .iter()
        .map(|row| format!("node {}: the flag {} is deleted ({})", row.node, row.name, row.text()))
        .collect();
    all.extend(report.unread.iter().map(|name| format!("the flag {name} is deleted, which cannot be read")));
    all.extend(report.not_flagged.iter().map(|node| format!("node {node} was not flagged")));
    lines(all)
}

fn names(rows: &[NodeFlagRow]) -> String {
    named(rows.iter().map(|row| row.name.as_str()))
}

fn named<'a>(names: impl Iterator<Item = &'a str>) -> String {
    names.map(|name| format!("nodeflag.nodefence.io/{name}")).collect::<Vec<_>>().join("\n")
}
