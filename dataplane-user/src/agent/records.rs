//! The log's lines on claims and on the outcome of writes. The thread `verdicts` never writes them: flags wait for that thread.

use std::{collections::BTreeMap, time::Duration};

use super::{
    claim_rows::{share_text, source_name},
    refusals::unsaved,
};
use crate::{
    cluster::{NodeName, SourceName},
    enforce::{Claim, ClaimSource, Danger, Event, SharedSettings, Withheld},
    flags::{Adopted, now},
    plan::Mode,
    report::ReplacementRow,
};

/// How many nodes a line names.
const NAMED: usize = 10;
/// How many nodes a line names where the log must name all of them, in several lines.
const NAMED_OF_ALL: usize = 100;

/// Logs what an earlier agent left.
pub(super) fn adopted(adopted: &Adopted) {
    if let Some(problem) = &adopted.problem {
        tracing::error!(event = "flags-lost", problem, "flags were lost");
    }
    let mut others: BTreeMap<&ClaimSource, Vec<NodeName>> = BTreeMap::new();
    // A claim that is over is stored for its own sake alone (`FlagStore::adopt`).
    let now = now();
    for (node, claim) in adopted.saved.claims.iter().filter(|(_, claim)| !claim.ended(now)) {
        if claim.source == ClaimSource::Cli {
            tracing::info!(
                event = "flag-adopted",
                node = node.as_str(),
                by = &*claim.by,
                reason = &*claim.reason,
                "an earlier agent left a flag, which holds"
            );
        } else {
            others.entry(&claim.source).or_default().push(node.clone());
        }
    }
    // The name of the source of nodes is not known before the source is read.
    let unknown = SourceName::default();
    for (source, nodes) in others {
        let source = source_name(source, unknown);
        tracing::info!(
            event = "claims-adopted",
            source,
            count = nodes.len(),
            nodes = names(&nodes),
            "an earlier agent left claims, which hold"
        );
    }
}

/// Logs that a request has flagged a node.
pub(super) fn flagged(node: &str, by: &str, reason: &str, lasts: Option<Duration>) {
    tracing::info!(
        event = "flagged",
        node,
        by,
        reason,
        seconds = lasts.map(|lasts| lasts.as_secs()),
        "a command flagged the node"
    );
}

/// Logs that a request has withdrawn a flag.
pub(super) fn unflagged(node: &str) {
    tracing::info!(event = "unflagged", node, "a command took back the flag of the node");
}

/// Logs an event.
pub(super) fn record(event: &Event) {
    let unknown = SourceName::default();
    match event {
        // Whoever answers the request logs it, once it is carried out.
        Event::Raised(_, Claim { source: ClaimSource::Cli, .. }) | Event::Withdrawn(_, ClaimSource::Cli) => {}
        Event::Raised(node, claim) => tracing::warn!(
            event = "claimed",
            node = node.as_str(),
            source = source_name(&claim.source, unknown),
            reason = &*claim.reason,
            evidence = claim.evidence.as_deref(),
            "a source claims the node"
        ),
        Event::Withdrawn(node, source) => {
            tracing::info!(
                event = "claim-withdrawn",
                node = node.as_str(),
                source = source_name(source, unknown),
                "a source has taken back its claim on the node"
            );
        }
        Event::FileFlags { came, went } => file_flags(came, went),
        Event::Over(node, ClaimSource::Cli) => {
            tracing::info!(event = "flag-over", node = node.as_str(), "the time of the flag is over")
        }
        Event::Over(node, source) => {
            tracing::info!(
                event = "claim-over",
                node = node.as_str(),
                source = source_name(source, unknown),
                "a claim on the node is over"
            );
        }
        Event::Withheld(withheld, nodes) => withholds(withheld, nodes),
        Event::NoMoreWithheld(scope) => {
            tracing::info!(
                event = "claims-not-withheld",
                scope = scope.to_string(),
                "claims of this scope are no longer withheld"
            );
        }
        Event::ViewTooOld(max) => tracing::error!(
            event = "view-too-old",
            max_seconds = max.as_secs(),
            "the source of nodes has not confirmed its view for so long: nothing is cut, and packets that would be cut are counted"
        ),
        Event::ViewConfirmed => {
            tracing::info!(event = "view-confirmed", "the view is confirmed again: claimed nodes are cut")
        }
        Event::ModeChanged(mode, by) => tracing::info!(
            event = "mode-set",
            mode = %mode,
            by = by.by,
            "a command set the mode"
        ),
        Event::Shared(settings) => shared(settings.as_deref()),
        Event::Replaced(found) => {
            tracing::error!(
                event = "proxy-replaced",
                "{}",
                ReplacementRow::new(*found, Mode::Enforce, false).why
            )
        }
        Event::Forced(found) => tracing::warn!(
            event = "proxy-replaced-forced",
            "{}",
            ReplacementRow::new(*found, Mode::Enforce, true).why
        ),
        Event::NotReplaced => tracing::info!(
            event = "proxy-replacement-gone",
            "nothing forwards Services in kube-proxy's place any more"
        ),
        Event::Failed(node, error) => lapses(Some(node), error),
        Event::NotExempt(node, port, error) => {
            lapses(node.as_ref(), &format!("{port} must be exempt, which failed: {error}"));
        }
        Event::TablesFailed(error) => tracing::error!(
            event = "tables-not-written",
            %error,
            "backends could not be written into the maps; the agent tries again"
        ),
        Event::SaveFailed(error) => {
            tracing::error!(
                event = "flags-not-saved",
                problem = unsaved(error),
                "the flags file could not be written; the agent tries again"
            );
        }
        Event::Mended(nodes, ports) => tracing::warn!(
            event = "maps-mended",
            nodes,
            ports,
            "entries of nodes and exempt ports were not as they should be; the agent writes them again"
        ),
        Event::Danger(what) => {
            let node = if let Danger::OwnNode(node) = what { Some(node.as_str()) } else { None };
            tracing::error!(event = "flags-dangerous", node, "{}", danger(what, unknown));
        }
    }
}

/// Logs that claims are withheld. Names every node: whoever looks for why a node is not cut finds it in the log.
fn withholds(withheld: &Withheld, nodes: &[NodeName]) {
    let scope = withheld.scope.to_string();
    let (first, others) = nodes.split_at(nodes.len().min(NAMED_OF_ALL));
    tracing::error!(
        event = "claims-withheld",
        scope,
        claimed = withheld.counted,
        allowed = withheld.allowed,
        nodes = joined(first),
        "more nodes are claimed than the limit of this scope allows; automatic claims are not enforced there"
    );
    for more in others.chunks(NAMED_OF_ALL) {
        tracing::error!(
            event = "claims-withheld-more",
            scope,
            nodes = joined(more),
            "automatic claims on these nodes are not enforced either"
        );
    }
}

/// Logs the settings for all agents.
fn shared(settings: Option<&SharedSettings>) {
    let Some(settings) = settings else {
        return tracing::warn!(
            event = "settings-none",
            "the API server has no NodefenceSettings `default`: nothing is cut, and packets that would be cut are counted"
        );
    };
    let opted_out: Vec<NodeName> = settings.opted_out.iter().cloned().collect();
    tracing::info!(
        event = "settings-taken",
        off = settings.off,
        mode = %settings.mode,
        automatic = %settings.auto,
        limit = share_text(settings.limit),
        pauses = settings.holding(now()).count(),
        opted_out = names(&opted_out),
        "the settings for all agents of the cluster changed; of these, --mode and `nodefence mode` the weakest holds"
    );
}

fn lapses(node: Option<&NodeName>, error: &str) {
    tracing::error!(
        event = "verdict-lapses",
        node = node.map(NodeName::as_str),
        error,
        "the verdict cannot be renewed; it lapses"
    );
}

/// Logs all nodes in one line: a file may flag hundreds.
fn file_flags(came: &[NodeName], went: &[NodeName]) {
    if !came.is_empty() {
        tracing::info!(
            event = "source-flagged",
            count = came.len(),
            nodes = names(came),
            "the source of nodes flags these nodes"
        );
    }
    if !went.is_empty() {
        tracing::info!(
            event = "source-unflagged",
            count = went.len(),
            nodes = names(went),
            "the source of nodes no longer flags these nodes"
        );
    }
}

/// The danger of flags that come with a view, for the log and `status`. Such flags reach every agent at once, and no command stands
/// between them and the cut: a slip must be seen.
pub(super) fn danger(danger: &Danger, source: SourceName) -> String {
    match danger {
        Danger::TooMany(flagged, all) => format!(
            "{source} flags {flagged} of {all} nodes, more than a third: the rest may not carry the load"
        ),
        Danger::OwnNode(node) => format!(
            "{source} flags `{node}`, the node this agent runs on: whoever enters here is cut off from its pods"
        ),
        Danger::Over(nodes) => {
            format!("{} flags in {source} ended in the past and mean nothing: {}", nodes.len(), names(nodes))
        }
    }
}

fn names(nodes: &[NodeName]) -> String {
    let mut text = joined(&nodes[..nodes.len().min(NAMED)]);
    if nodes.len() > NAMED {
        text += &format!(" and {} more", nodes.len() - NAMED);
    }
    text
}

fn joined(nodes: &[NodeName]) -> String {
    nodes.iter().map(NodeName::as_str).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests;
