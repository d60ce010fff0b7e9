//! Results as columns and lines, for people.

use std::{fmt::Write as _, path::Path};

use super::{
    claims::flag_text,
    output::{columns, count, or_dash},
};
use crate::{
    dataplane::DetachReport,
    report::{BackendRow, CounterRow, Detached, FlowList, List, UnflagReport, seconds},
};

pub(super) fn backends(backends: &List<BackendRow>) -> String {
    columns(
        ["ADDRESS", "PORT", "NODE", "FLAGGED", "INTERFACE"],
        backends.items.iter().map(|row| {
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

pub(super) fn flows(flows: &FlowList) -> String {
    columns(
        ["PROTOCOL", "CLIENT", "SERVICE", "BACKEND", "NODE", "STATE", "ZONE", "TIMEOUT"],
        flows.items.iter().map(|row| {
            [
                row.protocol.map_or_else(|| row.protocol_number.to_string(), |protocol| protocol.to_string()),
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

pub(super) fn counters(counters: &List<CounterRow>) -> String {
    columns(
        ["REASON", "PACKETS", "BYTES", "MEANING"],
        counters.items.iter().map(|row| {
            [row.reason.clone(), row.packets.to_string(), row.bytes.to_string(), row.help.clone()]
        }),
    )
}

pub(super) fn unflag(report: &UnflagReport) -> String {
    match (&report.still, report.was_flagged) {
        (Some(flag), _) => format!("node {} stays {}", report.node, flag_text(flag)),
        (None, true) => format!("node {}: the flag is removed", report.node),
        (None, false) => format!("node {} was not flagged", report.node),
    }
}

pub(super) fn detach(detached: &Detached) -> String {
    let DetachReport { links, filters, qdiscs, maps } = &detached.removed;
    let mut text = format!(
        "removed {}, {}, {}, {}",
        count(*links, "link"),
        count(*filters, "clsact filter"),
        count(*qdiscs, "clsact qdisc"),
        count(*maps, "pinned map")
    );
    if detached.restored > 0 {
        let _ = write!(text, ", restored {}", count(detached.restored, "IPVS destination"));
    }
    if let Some(file) = &detached.flags_file {
        let _ = write!(text, ", and the flags in {}", file.display());
    }
    if let Some(file) = &detached.off_file {
        let _ = write!(text, ", and {}: the next agent starts on", file.display());
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

/// The warning that a detach may have looked in the wrong folder. Links are found only by their pins. A removed filter does not show that the
/// folder was right.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_detach_that_finds_no_pin_says_so() {
        let told = |removed: DetachReport, bpffs| {
            nothing_pinned(&removed, Path::new("/sys/fs/bpf/nodefence/v3"), bpffs)
        };
        let text = told(DetachReport::default(), true).unwrap();
        assert!(text.starts_with("nothing of ours is pinned at /sys/fs/bpf/nodefence/v3: "), "{text}");
        assert!(text.contains("another `--pin-dir`"), "{text}");
        let text = told(DetachReport { filters: 2, ..DetachReport::default() }, false).unwrap();
        assert!(text.contains("/v3, where no BPF filesystem is mounted: "), "{text}");
        for removed in [
            DetachReport { links: 1, ..DetachReport::default() },
            DetachReport { qdiscs: 1, ..DetachReport::default() },
            DetachReport { maps: 1, ..DetachReport::default() },
        ] {
            assert_eq!(told(removed, true), None);
        }
    }
}
