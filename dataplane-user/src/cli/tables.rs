//! Results as columns and lines, for people.

use std::{
    fmt::Write as _,
    path::{Path, PathBuf},
};

use serde::Serialize;

use super::output::{columns, or_dash, printable, seconds};
use crate::{
    dataplane::DetachReport,
    flags::Origin,
    plan::Mode,
    report::{
        AskRow, BackendRow, CounterRow, FlagReport, FlagRow, Flows, NodeRow, PinnedRow, RescueRow, Status,
        TakeOutRow, UnflagReport,
    },
};

fn flag_text(flag: &FlagRow) -> String {
    let origin = match flag.origin {
        Origin::Cli => "flagged",
        Origin::ClusterFile => "flagged by the cluster file",
    };
    let mut text = origin.to_owned();
    match flag.remaining_seconds {
        Some(left) => drop(write!(text, ", {} left", seconds(left))),
        None if flag.origin == Origin::Cli => text.push_str(" until unflagged"),
        None => {}
    }
    if !flag.reason.is_empty() {
        let _ = write!(text, ": {}", printable(&flag.reason));
    }
    text
}

pub(super) fn nodes(rows: &[NodeRow]) -> String {
    columns(
        ["NAME", "ADDRESS", "ZONE", "INDEX", "BACKENDS", "ACTION", "FLAG"],
        rows.iter().map(|row| {
            [
                if row.own { format!("{} (own)", row.name) } else { row.name.clone() },
                row.address.to_string(),
                or_dash(row.zone.as_ref()),
                row.index.to_string(),
                row.backends.to_string(),
                match row.kept {
                    0 => row.action.clone(),
                    kept => format!("{}, {kept} ports kept", row.action),
                },
                or_dash(row.flag.as_ref().map(flag_text)),
            ]
        }),
    )
}

pub(super) fn backends(rows: &[BackendRow]) -> String {
    columns(
        ["ADDRESS", "PORT", "NODE", "FLAGGED", "INTERFACE"],
        rows.iter().map(|row| {
            [
                row.address.to_string(),
                match (row.port, row.protocol) {
                    (Some(port), Some(protocol)) => format!("{port}/{protocol}"),
                    _ => "-".to_owned(),
                },
                row.node.clone(),
                if row.flagged { "yes" } else { "no" }.to_owned(),
                match (&row.interface, &row.uncovered) {
                    (Some(interface), _) => interface.clone(),
                    (None, Some(why)) => format!("none: {why}"),
                    (None, None) => "-".to_owned(),
                },
            ]
        }),
    )
}

pub(super) fn flows(flows: &Flows) -> String {
    columns(
        ["PROTOCOL", "CLIENT", "SERVICE", "BACKEND", "NODE", "STATE", "ZONE", "TIMEOUT"],
        flows.flows.iter().map(|row| {
            [
                row.protocol.clone(),
                row.client.to_string(),
                row.service.to_string(),
                row.backend.to_string(),
                row.node.clone(),
                or_dash(row.state.as_ref()),
                row.zone.to_string(),
                seconds(row.timeout_seconds.into()),
            ]
        }),
    )
}

pub(super) fn counters(rows: &[CounterRow]) -> String {
    columns(
        ["REASON", "PACKETS", "BYTES", "MEANING"],
        rows.iter().map(|row| {
            [row.reason.clone(), row.packets.to_string(), row.bytes.to_string(), row.help.clone()]
        }),
    )
}

pub(super) fn flag(report: &FlagReport) -> String {
    let mut text = format!(
        "node {} (index {}): {} for {} backends, written in {} us",
        report.node, report.index, report.action, report.backends, report.flip_micros
    );
    match report.for_seconds {
        Some(time) => drop(write!(text, ", ends in {}", seconds(time))),
        None => text.push_str(", until `nodefence unflag`"),
    }
    text.push('\n');
    if let Some(before) = &report.replaced {
        let _ = writeln!(text, "takes the place of: {}", flag_text(before));
    }
    for backend in &report.uncovered {
        let _ = writeln!(text, "not covered: {backend}");
    }
    if report.uncovered_count > report.uncovered.len() {
        let _ = writeln!(text, "not covered: {} more", report.uncovered_count - report.uncovered.len());
    }
    match &report.asked {
        Some(asked) => drop(writeln!(text, "idle clients: {}", asked_text(asked))),
        None if report.asking => text.push_str("idle clients are being asked: see `nodefence status`\n"),
        None => {}
    }
    text
}

fn pinned_text(row: &PinnedRow) -> String {
    let mut text = format!("{} conntrack entries of UDP and SCTP, {} of TCP", row.datagrams, row.tcp);
    for (count, what) in [
        (row.by_filter, "requests by filter"),
        (row.affinity, "sets or lists of affinity"),
        (row.affinity_unknown, "sets of unknown Services left alone"),
        (row.refused, "refused by the kernel"),
    ] {
        if count != 0 {
            let _ = write!(text, ", {count} {what}");
        }
    }
    text
}

fn asked_text(row: &AskRow) -> String {
    let mut text = format!(
        "{} flows listed, {} asked, {} of them closed in {:.3} s",
        row.listed, row.asked, row.closed, row.seconds
    );
    for (count, what) in [
        (row.skipped_closed, "closed already"),
        (row.skipped_not_tcp, "not TCP"),
        (row.skipped_opening_or_ended, "opening or ended"),
        (row.unreachable, "without an attached device"),
        (row.liberal, "made liberal"),
    ] {
        if count != 0 {
            let _ = write!(text, ", {count} {what}");
        }
    }
    for (zone, count) in &row.zones {
        let _ = write!(text, ", {count} in zone {zone}");
    }
    text
}

fn taken_out_text(row: &TakeOutRow) -> String {
    if row.planned > 0 {
        return format!("would take out {} destinations, keeps {} services", row.planned, row.kept_services);
    }
    format!(
        "{} destinations taken out, {} with connections left, {} services kept, {} failed",
        row.taken, row.waiting, row.kept_services, row.failed
    )
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
    let _ = write!(text, "; {} put in again, {} refused after their tries", row.put_in, row.tries);
    for (name, count) in &row.not {
        let _ = write!(text, ", {count} {name}");
    }
    text
}

pub(super) fn unflag(report: &UnflagReport) -> String {
    match (&report.still, report.was_flagged) {
        (Some(flag), _) => format!("node {} stays {}", report.node, flag_text(flag)),
        (None, true) => format!("node {}: traffic passes again", report.node),
        (None, false) => format!("node {} was not flagged", report.node),
    }
}

/// What `detach` took away.
#[derive(Serialize)]
pub(super) struct Detached {
    /// From the kernel.
    #[serde(flatten)]
    pub(super) removed: DetachReport,
    /// Destinations that were put back into IPVS.
    pub(super) put_back: usize,
    /// The file that kept the CLI's flags, where there was one.
    pub(super) flags_file: Option<PathBuf>,
    /// Ledgers that could not be read and were put aside: they are left.
    pub(super) ledgers_left: Vec<PathBuf>,
}

pub(super) fn detach(detached: &Detached) -> String {
    let DetachReport { links, filters, qdiscs, maps } = &detached.removed;
    let mut text = format!(
        "removed {links} links, {filters} clsact filters, {qdiscs} clsact qdiscs, {maps} pinned maps"
    );
    if detached.put_back > 0 {
        let _ = write!(text, ", put {} destinations back into IPVS", detached.put_back);
    }
    if let Some(file) = &detached.flags_file {
        let _ = write!(text, ", and the flags in {}", file.display());
    }
    for file in &detached.ledgers_left {
        let _ = write!(
            text,
            "\nleft {}: it could not be read, and what it speaks of may still have weight 0 in IPVS or be missing there; remove it once that is seen to",
            file.display()
        );
    }
    text
}

/// The warning that a detach may have looked in the wrong place. Links are found by their pins alone; a filter that was removed says
/// nothing of the folder.
pub(super) fn nothing_pinned(removed: &DetachReport, pin_dir: &Path, bpffs: bool) -> Option<String> {
    let none = DetachReport { filters: removed.filters, ..DetachReport::default() };
    let place = if bpffs { "" } else { ", where no BPF filesystem is mounted" };
    (*removed == none).then(|| {
        format!(
            "nothing of ours is pinned at {}{place}: if an agent ran with another `--pin-dir`, its programs may still be attached; detach with that one",
            pin_dir.display()
        )
    })
}

pub(super) fn status(status: &Status) -> String {
    let mut text = String::new();
    let mut line = |name: &str, value: String| {
        let _ = writeln!(text, "{name:<16}{}", printable(&value));
    };
    line("Agent", format!("{} (process {}), since {}", status.version, status.pid, status.started));
    line("Node", status.node.clone());
    line("Mode", format!("{:?}, answer {:?}", status.mode, status.answer).to_lowercase());
    let cluster = &status.cluster;
    let services = match (cluster.services, cluster.endpoints) {
        (Some(services), Some(endpoints)) => format!("{services} Services with {endpoints} endpoints, "),
        _ => String::new(),
    };
    line(
        "Cluster file",
        format!(
            "{}: {} nodes, {} backends, {services}read {}",
            cluster.file, cluster.nodes, cluster.backends, cluster.loaded
        ),
    );
    if cluster.services.is_none() {
        let unknown = "it has no `services`: what else a Service could use is not known, nothing is kept for one that is cut whole";
        line("", unknown.to_owned());
    }
    for problem in
        cluster.error.iter().chain(&cluster.watch).chain(&cluster.flags).chain(&status.flags_problem)
    {
        line("", format!("problem: {problem}"));
    }
    let plane = &status.dataplane;
    line("Maps", format!("{}, room for {} backends", plane.pin_dir, plane.max_backends));
    let late = if plane.renewed_late() { " (problem: verdicts lapse 3 s after it)" } else { "" };
    line("Renewed", format!("{:.1} s ago{late}", plane.renewed_seconds_ago));
    for problem in plane.error.iter().chain(&plane.renew_error) {
        line("", format!("problem: {problem}"));
    }
    if plane.left_out != 0 {
        let first: Vec<String> = plane.left_out_first.iter().map(ToString::to_string).collect();
        line(
            "",
            format!("problem: {} backends do not fit and pass: {} ...", plane.left_out, first.join(", ")),
        );
    }
    if plane.left_out_ports != 0 {
        line("", format!("problem: {} host-network ports do not fit and pass", plane.left_out_ports));
    }
    for row in &status.interfaces {
        let tc = row.tc.as_deref().unwrap_or("not attached");
        let layer = row.link_layer.as_deref().unwrap_or("?");
        line("Interface", format!("{} (index {}): {layer}, TC {tc}, XDP {}", row.name, row.ifindex, row.xdp));
        if let Some(error) = &row.error {
            line("", format!("problem: {error}"));
        }
        for ahead in &row.programs_ahead {
            line("", format!("runs ahead of ours: {} (id {}) at {}", ahead.name, ahead.id, ahead.place));
        }
    }
    if status.uncovered != 0 {
        let count = status.uncovered;
        line("Not covered", format!("problem: {count} backends, whose traffic is not cut here"));
        for row in &status.uncovered_examples {
            line("", format!("{} on {}: {}", row.address, row.node, or_dash(row.uncovered.as_ref())));
        }
        if count > status.uncovered_examples.len() {
            line(
                "",
                format!("and {} more: see `nodefence backends`", count - status.uncovered_examples.len()),
            );
        }
    }
    line("This kernel", status.probe_text.clone());
    if !status.cannot_ask.is_empty() {
        let what =
            "idle clients of flows that conntrack does not list; those flows are cut when they next send:";
        line("Cannot ask", what.to_owned());
    }
    for flows in &status.cannot_ask {
        line("", format!("- {flows}"));
    }
    for (node, row) in &status.asked {
        line("Asked", format!("{node}: {}", asked_text(row)));
        if let Some(problem) = &row.problem {
            line("", format!("problem: {problem}"));
        }
    }
    line("kube-proxy", status.proxy.to_string());
    for (node, row) in &status.pinned {
        line("Let go", format!("{node}: {}", pinned_text(row)));
        if let Some(problem) = &row.problem {
            line("", format!("problem: {problem}"));
        }
    }
    for row in &status.neighbours {
        line("Next hop", format!("{} on {}: {}", row.address, row.interface, row.state));
    }
    if status.kept != 0 {
        line("Kept", format!("{} ports of flagged nodes, which are not cut", status.kept));
        for row in &status.kept_examples {
            let socket = std::net::SocketAddr::new(row.address, row.port);
            line("", format!("{socket}/{} on {}: {}", row.protocol, row.node, row.why));
        }
    }
    for problem in status.ipvs.note.iter().chain(&status.ipvs.problems) {
        line("IPVS", format!("problem: {problem}"));
    }
    for (node, row) in &status.ipvs.nodes {
        line("IPVS", format!("{node}: {}", taken_out_text(row)));
        for kept in &row.kept {
            line("", format!("kept: {}: {}", kept.service, kept.why));
        }
        for problem in &row.problems {
            line("", format!("problem: {problem}"));
        }
    }
    line("Rescue", rescue(&status.rescue, status.mode));
    for (node, flag) in &status.flagged_unknown {
        line("Flagged", format!("{node} (not in the cluster file): {}", flag_text(flag)));
    }
    if status.flagged.is_empty() && status.flagged_unknown.is_empty() {
        line("Flagged", "none".to_owned());
    }
    for row in &status.flagged {
        line(
            "Flagged",
            format!("{} ({}): {}", row.name, row.action, or_dash(row.flag.as_ref().map(flag_text))),
        );
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_detach_that_finds_no_pin_says_so() {
        let told = |removed: DetachReport, bpffs| {
            nothing_pinned(&removed, Path::new("/sys/fs/bpf/nodefence/v1"), bpffs)
        };
        let text = told(DetachReport::default(), true).unwrap();
        assert!(text.starts_with("nothing of ours is pinned at /sys/fs/bpf/nodefence/v1: "), "{text}");
        assert!(text.contains("another `--pin-dir`"), "{text}");
        let text = told(DetachReport { filters: 2, ..DetachReport::default() }, false).unwrap();
        assert!(text.contains("/v1, where no BPF filesystem is mounted: "), "{text}");
        for removed in [
            DetachReport { links: 1, ..DetachReport::default() },
            DetachReport { qdiscs: 1, ..DetachReport::default() },
            DetachReport { maps: 1, ..DetachReport::default() },
        ] {
            assert_eq!(told(removed, true), None);
        }
    }

    #[test]
    fn nothing_is_refused_in_observe_mode() {
        let row = RescueRow { idle: Some("why".to_owned()), ..RescueRow::default() };
        assert!(rescue(&row, Mode::Observe).starts_with("none: why; "));
        assert!(rescue(&row, Mode::Enforce).starts_with("none, new connections are refused: why; "));
    }
}
