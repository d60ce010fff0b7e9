//! The text of `status` for people: a word, the warnings, and the agent's current state.

use std::fmt::{Display, Write as _};

use super::{
    adjust,
    args::Format,
    claims::{all_text, unknown_lines},
    exit::Exit,
    output::{count, printable},
    status_wide,
};
use crate::{
    dataplane::XdpStatus,
    plan::Mode,
    report::{
        Beside, ClusterRow, DrainRow, Health, InterfaceRow, NodeRow, PodRow, Status, StatusReport, seconds,
    },
};

pub(super) fn status(report: &StatusReport, format: Format) -> String {
    let StatusReport { health, status } = report;
    let mut text = format!("{}: {}\n", health.state, printable(&health.why));
    for warning in &health.warnings {
        let _ = writeln!(text, "  {}  {}", warning.code, printable(&warning.message));
    }
    let lines = if format == Format::Wide { status_wide::lines(status) } else { lines(status) };
    for (name, value) in lines {
        let _ = writeln!(text, "{name:<16}{}", printable(&value));
    }
    text
}

/// The exit code of `status --check`. A warning about the current state is a finding. A count of past events is none: it would stay a finding
/// for as long as the agent lives.
pub(super) fn check(health: &Health) -> Exit {
    if health.has_findings() { Exit::Findings } else { Exit::Ok }
}

/// The lines of the current state, each with its name. The name is empty where a line continues the subject of the line before.
fn lines(status: &Status) -> Vec<(String, String)> {
    let mut lines = Vec::new();
    let mut line = |name: &str, value: String| lines.push((name.to_owned(), value));
    line(
        "Agent",
        format!(
            "{} (nodefence {}, process {}, since {}): {}, answer {}; kube-proxy: {}",
            status.node,
            status.version,
            status.pid,
            status.started,
            status.mode,
            format!("{:?}", status.answer).to_lowercase(),
            status.proxy
        ),
    );
    if let Some(again) = status.pod.as_ref().and_then(PodRow::again) {
        line("", again);
    }
    // Where the agent observes, the first line of the status says so.
    let changed = status.mode_set.as_ref().filter(|_| status.mode == Mode::Enforce);
    if let Some(changed) = changed.and_then(adjust::changed) {
        line("", changed);
    }
    if let Some(row) = status.replacement.as_ref().filter(|row| row.beside != Beside::Observes) {
        line("", row.why.clone());
    }
    line("View", view(&status.cluster));
    line("Devices", devices(status));
    for row in &status.interfaces {
        for more in status_wide::of_device(row) {
            line("", format!("{}: {more}", row.name));
        }
    }
    if let Some(why) = status.rescue.idle.as_ref().filter(|_| status.mode == Mode::Enforce) {
        line("Rescue", format!("none, new connections are refused: {why}"));
    }
    if let Some(changed) = status.log_level.as_ref().and_then(adjust::changed) {
        line("Log level", changed);
    }
    for (name, value) in
        unknown_lines(&status.flagged_unknown, &status.claimed_unknown, &status.cluster.source)
    {
        line(name, value);
    }
    for row in &status.flagged {
        let name = if row.flag.is_some() { "Flagged" } else { "Claimed" };
        line(name, node(row, status));
    }
    for (name, row) in &status.ipvs.nodes {
        if !status.flagged.iter().any(|node| node.name == name.as_str()) {
            line("Restored", format!("{name}: IPVS {}", drained(row)));
        }
    }
    lines
}

fn view(cluster: &ClusterRow) -> String {
    let services = match (cluster.services, cluster.endpoints) {
        (Some(services), Some(endpoints)) => {
            format!("{} with {}", count(services, "Service"), count(endpoints, "endpoint"))
        }
        _ => "no word on Services".to_owned(),
    };
    let holds = cluster.max_age_seconds.map(|max| format!(", holds for {}", seconds(max)));
    format!(
        "{}: {}, {}, {services}; number {}, read {} ago{}{}",
        cluster.file.as_ref().unwrap_or(&cluster.source),
        count(cluster.nodes, "node"),
        count(cluster.backends, "backend"),
        cluster.view,
        seconds(cluster.age_seconds),
        if cluster.is_stored { " by an earlier agent" } else { "" },
        holds.unwrap_or_default()
    )
}

fn devices(status: &Status) -> String {
    let device = |row: &InterfaceRow| {
        let xdp = if row.xdp == XdpStatus::default() { String::new() } else { format!(", XDP {}", row.xdp) };
        format!(
            "{} ({}{xdp})",
            row.name,
            row.tc.map_or_else(|| "not attached".to_owned(), |mode| mode.to_string())
        )
    };
    let names: Vec<String> = status.interfaces.iter().map(device).collect();
    let names = if names.is_empty() { "none".to_owned() } else { names.join(", ") };
    match status.covered {
        Some(covered) => {
            let all = count(covered + status.uncovered, "backend");
            format!("{names}; they cover {covered} of {all}")
        }
        None => format!("{names}; not covered: {}", count(status.uncovered, "backend")),
    }
}

/// The line of a flagged or claimed node: the action, its progress, and who asked for it.
fn node(row: &NodeRow, status: &Status) -> String {
    let mut text = format!("{}: {}", row.name, row.action);
    let mut add = |what: String| {
        let _ = write!(text, ", {what}");
    };
    let since = row.flag.as_ref().map(|flag| flag.since);
    let since = since.or_else(|| row.claims.iter().map(|claim| claim.since).min());
    if let Some(since) = since {
        add(format!("since {since}"));
    }
    if let Some(until) = row.flag.as_ref().and_then(|flag| flag.until) {
        add(format!("until {until}"));
    }
    if row.exempt != 0 {
        add(format!("{} exempt", count(row.exempt, "port")));
    }
    if let Some(row) = status.ipvs.nodes.get(row.name.as_str()) {
        add(format!("IPVS {}", drained(row)));
    }
    if let Some(row) = status.challenged.get(row.name.as_str()) {
        let flows = count(row.established().unwrap_or(row.listed), "flow");
        add(format!("challenged {} of {flows}", row.challenged));
    }
    if let Some(row) = status.stale.get(row.name.as_str()) {
        // The kernel does not say how many entries it deleted by a filter.
        let filters = match row.by_filter {
            0 => String::new(),
            filters => format!(", and the matches of {}", count(filters, "filter")),
        };
        add(format!("stale entries deleted: {}{filters}", row.datagrams + row.tcp + row.affinity));
    }
    let who = all_text(row).map(|who| format!("; {who}"));
    text + &who.unwrap_or_default()
}

/// How far a node is drained from IPVS.
fn drained(row: &DrainRow) -> impl Display {
    let mut text = match row.planned {
        0 => format!("drained {} of {}", row.drained, row.drained + row.waiting),
        planned => format!("would drain {planned}"),
    };
    if row.exempt_services != 0 {
        let _ = write!(text, " and exempts {}", count(row.exempt_services, "service"));
    }
    text
}

#[cfg(test)]
#[path = "status_tests.rs"]
mod tests;
