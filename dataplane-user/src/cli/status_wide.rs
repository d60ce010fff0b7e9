//! The lines of `status -o wide`: the agent's whole state, for people. Facts that a warning tells stand only in that warning.

use std::fmt::Write as _;

use super::{
    adjust,
    claims::{automatic_text, has_automatic, held_lines},
    flag::challenged_text,
    output::{count, or_dash},
};
use crate::{
    plan::Mode,
    report::{
        Beside, ClusterRow, Code, DrainRow, GuardRow, InterfaceRow, IpvsRow, LeftOutRow, PodRow, RescueRow,
        StaleRow, Status, seconds,
    },
};

fn stale_text(row: &StaleRow) -> String {
    let datagrams = count(row.datagrams, "conntrack entry");
    let mut text = format!("{datagrams} of UDP and SCTP, {} of TCP", row.tcp);
    for (number, noun, more) in [
        (row.by_filter, "request", " by filter"),
        (row.affinity, "affinity table", ""),
        (row.affinity_unknown, "set", " of unknown Services left alone"),
    ] {
        if number != 0 {
            let _ = write!(text, ", {}{more}", count(number, noun));
        }
    }
    if row.refused != 0 {
        let _ = write!(text, ", {} refused by the kernel", row.refused);
    }
    if row.nodes > 1 {
        let _ = write!(text, ", of {} together", count(row.nodes, "node"));
    }
    text
}

fn drained_text(row: &DrainRow) -> String {
    let services = count(row.exempt_services, "service");
    if row.planned > 0 {
        return format!("would drain {}, leaves {services} exempt", count(row.planned, "destination"));
    }
    format!(
        "{} drained, {} with connections left, {services} exempt, {} failed",
        count(row.drained, "destination"),
        row.waiting,
        row.failed
    )
}

/// The text about the guard. `None` where there is nothing to restore, and where a warning says that the external guard is missing.
fn guard_text(ipvs: &IpvsRow) -> Option<&'static str> {
    match ipvs.guard {
        GuardRow::Child => ipvs.loaded.then_some("child: the agent starts it once something is drained"),
        GuardRow::External { seen: true } => Some("external, and it is there"),
        GuardRow::External { seen: false } => None,
    }
}

fn rescue(row: &RescueRow, mode: Mode) -> String {
    let mut text = match &row.idle {
        Some(why) if mode == Mode::Observe => format!("none: {why}"),
        Some(why) => format!("none, new connections are refused: {why}"),
        None => format!(
            "new connections and datagrams that meet the cut are balanced anew (of own sockets: {})",
            row.own
        ),
    };
    let _ = write!(text, "; {} rescued, {} refused after their tries", row.rescued, row.tries);
    if row.beyond_budget != 0 {
        let _ =
            write!(text, ", {} refused at once beyond the budget (--rescue-per-second)", row.beyond_budget);
    }
    for (name, count) in &row.not {
        let _ = write!(text, ", {count} {name}");
    }
    text
}

/// The name of the line about a source: the source's name without its article, with a capital.
fn as_title(source: &str) -> String {
    let name = source.strip_prefix("the ").unwrap_or(source);
    let mut letters = name.chars();
    letters.next().map_or_else(String::new, |first| first.to_uppercase().chain(letters).collect())
}

fn view_text(cluster: &ClusterRow) -> String {
    let text = format!("number {}, read {} ago", cluster.view, seconds(cluster.age_seconds));
    match cluster.max_age_seconds {
        Some(max) if cluster.is_old => {
            format!("{text}, older than {} ({})", seconds(max), Code::ViewTooOld)
        }
        Some(max) => format!("{text}, holds for {}", seconds(max)),
        None => text,
    }
}

/// The lines about a device besides its warnings.
pub(super) fn of_device(row: &InterfaceRow) -> Vec<String> {
    let mut lines = Vec::new();
    if let Some(bridge) = &row.bridge {
        let what =
            if *bridge == row.name { "a bridge".to_owned() } else { format!("port of the bridge {bridge}") };
        lines.push(format!(
            "{what}: what pods and guests on its ports send to a backend is switched there, and not cut"
        ));
    }
    for ahead in &row.programs_ahead {
        lines.push(format!("runs ahead of ours: {} (id {}) at {}", ahead.name, ahead.id, ahead.place));
    }
    lines
}

/// A line for each of the few rows that are shown, and for how many more there are of `all`.
fn examples<T>(all: usize, shown: &[T], text: impl Fn(&T) -> String, line: &mut impl FnMut(&str, String)) {
    for row in shown {
        line("", text(row));
    }
    if all > shown.len() {
        line("", format!("and {} more", all - shown.len()));
    }
}

/// The lines, each with its name. The name is empty where a line continues the subject of the line before.
pub(super) fn lines(status: &Status) -> Vec<(String, String)> {
    let mut lines = Vec::new();
    let mut line = |name: &str, value: String| lines.push((name.to_owned(), value));
    line("Agent", format!("{} (process {}), since {}", status.version, status.pid, status.started));
    if let Some(again) = status.pod.as_ref().and_then(PodRow::again) {
        line("", again);
    }
    line("Node", status.node.clone());
    line("Mode", format!("{:?}, answer {:?}", status.mode, status.answer).to_lowercase());
    if let Some(changed) = status.mode_set.as_ref().and_then(adjust::changed) {
        line("", changed);
    }
    if let Some(settings) = &status.settings {
        line("Settings", if settings.found { adjust::settings_text(settings) } else { "none".to_owned() });
    }
    let without_machine = status.settings.iter().flat_map(|settings| &settings.flags_without_machine);
    for row in without_machine {
        line("", format!("NodeFlag {} has no effect: {}", row.name, row.problem));
    }
    if let Some(row) = status.replacement.as_ref().filter(|row| row.beside != Beside::Observes) {
        line("", row.why.clone());
    }
    if has_automatic(&status.flagged, &status.claimed_unknown) || !status.withheld.is_empty() {
        line("Automatic", automatic_text(status.auto, &status.auto_limit));
    }
    let cluster = &status.cluster;
    let services = match (cluster.services, cluster.endpoints) {
        (Some(services), Some(endpoints)) => {
            format!("{} with {}, ", count(services, "Service"), count(endpoints, "endpoint"))
        }
        _ => String::new(),
    };
    let file = cluster.file.as_ref().map(|file| format!("{file}: ")).unwrap_or_default();
    line(
        &as_title(&cluster.source),
        format!(
            "{file}{}, {}, {services}read {}",
            count(cluster.nodes, "node"),
            count(cluster.backends, "backend"),
            cluster.loaded
        ),
    );
    if cluster.services.is_none() {
        let unknown = "it has no `services`: what else a Service could use is not known, nothing is exempt for one that is cut whole";
        line("", unknown.to_owned());
    }
    if cluster.conflicts != 0 {
        line("Conflicts", format!("{} ({})", cluster.conflicts, Code::Conflicts));
    }
    examples(cluster.conflicts, &cluster.conflict_examples, ToString::to_string, &mut line);
    if cluster.skipped != 0 {
        line("Not cut", format!("{} without a member, or in two slices", count(cluster.skipped, "endpoint")));
    }
    examples(cluster.skipped, &cluster.skipped_examples, ToString::to_string, &mut line);
    if cluster.left_out != 0 {
        line("Left out", format!("{} ({})", count(cluster.left_out, "endpoint"), Code::EndpointsLeftOut));
    }
    let left_out = |row: &LeftOutRow| format!("{} on {}: {}", row.address, row.node, row.why);
    examples(cluster.left_out, &cluster.left_out_examples, left_out, &mut line);
    line("View", view_text(cluster));
    let plane = &status.dataplane;
    line("Maps", format!("{}, room for {}", plane.pin_dir, count(plane.max_backends, "backend")));
    let late = match plane.renewed_late() {
        true if plane.has_lapsed() => format!(" ({})", Code::Lapsed),
        true => format!(" ({})", Code::RenewedLate),
        false => String::new(),
    };
    line("Renewed", format!("{:.1} s ago{late}", plane.renewed_seconds_ago));
    for row in &status.interfaces {
        let tc = row.tc.map_or_else(|| "not attached".to_owned(), |mode| mode.to_string());
        let layer = row.link_layer.map_or_else(|| "?".to_owned(), |layer| layer.to_string());
        line("Interface", format!("{} (index {}): {layer}, TC {tc}, XDP {}", row.name, row.ifindex, row.xdp));
        for more in of_device(row) {
            line("", more);
        }
    }
    if status.uncovered != 0 {
        let uncovered = status.uncovered;
        line("Not covered", count(uncovered, "backend"));
        for row in &status.uncovered_examples {
            line("", format!("{} on {}: {}", row.address, row.node, or_dash(row.uncovered.as_ref())));
        }
        if uncovered > status.uncovered_examples.len() {
            line(
                "",
                format!("and {} more: see `nodefence backends`", uncovered - status.uncovered_examples.len()),
            );
        }
    }
    line("This kernel", status.probe_text.clone());
    if !status.cannot_challenge.is_empty() {
        let what =
            "idle clients of flows that conntrack does not list; those flows are cut when they next send:";
        line("Not challenged", what.to_owned());
    }
    for flows in &status.cannot_challenge {
        line("", format!("- {flows}"));
    }
    for (node, row) in &status.challenged {
        line("Challenged", format!("{node}: {}", challenged_text(row)));
    }
    line("kube-proxy", status.proxy.to_string());
    for (node, row) in &status.stale {
        line("Stale", format!("{node}: {}", stale_text(row)));
    }
    for row in &status.neighbours {
        line("Next hop", format!("{} on {}: {}", row.address, row.interface, row.state));
    }
    if status.exempt != 0 {
        line("Exempt", format!("{} of flagged nodes, not cut", count(status.exempt, "port")));
        for row in &status.exempt_examples {
            line("", format!("{} on {}: {}", row.backend(), row.node, row.why));
        }
    }
    if status.would_exempt != 0 {
        line(
            "Would exempt",
            format!("{}, were what is observed enforced", count(status.would_exempt, "more port")),
        );
    }
    if let Some(guard) = guard_text(&status.ipvs) {
        line("IPVS guard", guard.to_owned());
    }
    for (node, row) in &status.ipvs.nodes {
        line("IPVS", format!("{node}: {}", drained_text(row)));
        for exempt in &row.exempt {
            line("", format!("exempt: {}: {}", exempt.service, exempt.why));
        }
    }
    line("Rescue", rescue(&status.rescue, status.mode));
    if let Some(changed) = status.log_level.as_ref().and_then(adjust::changed) {
        line("Log level", changed);
    }
    for (name, value) in
        held_lines(&status.flagged, &status.flagged_unknown, &status.claimed_unknown, &status.cluster.source)
    {
        line(name, value);
    }
    lines
}

#[cfg(test)]
#[path = "status_wide_tests.rs"]
mod tests;
