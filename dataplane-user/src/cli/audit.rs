//! The texts and exit codes of `audit` and `repair`.

use std::{collections::BTreeMap, fmt::Write as _};

use super::{
    exit::Exit,
    output::{columns, count, or_dash, printable},
};
use crate::{
    plan::audit::{Kind, State},
    report::{AuditReport, RepairOutcome, RepairReport, RepairRow, seconds},
};

/// The exit code of `audit`. Faults are findings.
pub(super) fn audit_exit(report: &AuditReport) -> Exit {
    if report.faults == 0 { Exit::Ok } else { Exit::Findings }
}

/// The exit code of `repair`. A repair that failed is an error.
pub(super) fn repair_exit(report: &RepairReport) -> Exit {
    let failed = report.rows.iter().any(|row| row.outcome == RepairOutcome::Failed);
    if failed { Exit::Error } else { Exit::Ok }
}

/// The warning that the agent has not watched long enough for a report without faults to mean anything.
pub(super) fn audit_warnings(report: &AuditReport) -> Vec<String> {
    let fault_after = report.fault_after_seconds;
    let watched = report.kinds.iter().filter_map(|row| row.watched_seconds).min();
    let early = watched.filter(|watched| (*watched as f64) < fault_after).map(|watched| {
        format!(
            "the agent has watched for {} only: a difference is no fault before {}",
            seconds(watched),
            seconds(fault_after.ceil() as u64)
        )
    });
    early.into_iter().collect()
}

pub(super) fn audit(report: &AuditReport) -> String {
    let mut text = String::new();
    if !report.differences.is_empty() {
        let rows = report.differences.iter().map(|row| {
            [
                row.kind.to_string(),
                state(row.state).to_owned(),
                seconds(row.age_seconds),
                match row.count {
                    1 => row.subject.clone(),
                    count => format!("{} ({count})", row.subject),
                },
                or_dash(row.service.as_ref()),
                row.detail.clone(),
            ]
        });
        text = columns(["KIND", "STATE", "AGE", "SUBJECT", "SERVICE", "WHAT"], rows);
        text.push_str("\n\n");
        let remedies: BTreeMap<Kind, &str> = report
            .differences
            .iter()
            .filter(|row| row.state != State::Draining)
            .map(|row| (row.kind, row.remedy.as_str()))
            .collect();
        for (kind, remedy) in remedies {
            let _ = writeln!(text, "{kind} -> {remedy}");
        }
    }
    let mut why: BTreeMap<&str, Vec<String>> = BTreeMap::new();
    for row in &report.kinds {
        if row.not_listed > 0 {
            let _ = writeln!(text, "{}: {} more not listed", row.kind, row.not_listed);
        }
        if let Some(reason) = &row.not_looked_at {
            why.entry(reason).or_default().push(row.kind.to_string());
        }
    }
    for (reason, kinds) in why {
        let _ = writeln!(text, "not looked at: {} ({})", kinds.join(", "), printable(reason));
    }
    let sum = |count: fn(&crate::report::KindRow) -> usize| report.kinds.iter().map(count).sum::<usize>();
    let _ = write!(
        text,
        "{}, {} not faults yet, {} draining",
        count(report.faults, "fault"),
        sum(|row| row.new),
        sum(|row| row.draining)
    );
    let _ =
        write!(text, "; a difference is a fault after {}", seconds(report.fault_after_seconds.ceil() as u64));
    if !report.repairs.is_empty() {
        let kinds: Vec<String> = report.repairs.iter().map(Kind::to_string).collect();
        let _ = write!(text, "; the agent repairs {}", kinds.join(", "));
    }
    text
}

const fn state(state: State) -> &'static str {
    match state {
        State::Fault => "fault",
        State::New => "new",
        State::Draining => "draining",
    }
}

pub(super) fn repair(report: &RepairReport) -> String {
    let mut text = String::new();
    if !report.rows.is_empty() {
        // One line for all flows to one backend.
        let mut merged: BTreeMap<(Kind, &str, RepairOutcome), (usize, &RepairRow)> = BTreeMap::new();
        for row in &report.rows {
            merged.entry((row.kind, &row.subject, row.outcome)).or_insert((0, row)).0 += 1;
        }
        let rows = merged.into_iter().map(|((kind, subject, outcome), (count, row))| {
            [
                kind.to_string(),
                if count == 1 { subject.to_owned() } else { format!("{subject} ({count})") },
                or_dash(row.service.as_ref()),
                format!("{}: {}", outcome_text(outcome), row.action),
            ]
        });
        text = columns(["KIND", "SUBJECT", "SERVICE", "RESULT"], rows);
        text.push_str("\n\n");
    }
    let with = |outcome| report.rows.iter().filter(|row| row.outcome == outcome).count();
    let done = match report.dry_run {
        true => format!("{} would be fixed", with(RepairOutcome::WouldFix)),
        false => format!("{} fixed, {} failed", with(RepairOutcome::Fixed), with(RepairOutcome::Failed)),
    };
    let _ = write!(
        text,
        "{done}, {} skipped; no fault, or not yet: {}",
        with(RepairOutcome::Skipped),
        count(report.not_due, "difference")
    );
    text
}

/// The word for an outcome. Behind it stands the repair, or why there is none.
const fn outcome_text(outcome: RepairOutcome) -> &'static str {
    match outcome {
        RepairOutcome::WouldFix => "would fix",
        RepairOutcome::Fixed => "fixed",
        RepairOutcome::Failed => "failed",
        RepairOutcome::Skipped => "skipped",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(kind: Kind, subject: &str, action: &str, outcome: RepairOutcome) -> RepairRow {
        RepairRow { kind, subject: subject.to_owned(), service: None, action: action.to_owned(), outcome }
    }

    #[test]
    fn a_repair_says_what_became_of_each_fault() {
        let flow = |outcome| row(Kind::StaleUdp, "flow x", "delete its conntrack entry", outcome);
        let left = row(Kind::MissingService, "y", "it is only reported", RepairOutcome::Skipped);
        let report = |dry_run, rows| RepairReport { dry_run, rows, not_due: 3, notes: Vec::new() };
        let done = report(
            false,
            vec![
                left.clone(),
                flow(RepairOutcome::Fixed),
                flow(RepairOutcome::Fixed),
                flow(RepairOutcome::Failed),
            ],
        );
        assert_eq!(
            repair(&done),
            "KIND             SUBJECT     SERVICE  RESULT\n\
             missing-service  y           -        skipped: it is only reported\n\
             stale-udp        flow x (2)  -        fixed: delete its conntrack entry\n\
             stale-udp        flow x      -        failed: delete its conntrack entry\n\n\
             2 fixed, 1 failed, 1 skipped; no fault, or not yet: 3 differences"
        );
        assert_eq!(repair_exit(&done), Exit::Error);
        let planned = report(true, vec![left, flow(RepairOutcome::WouldFix)]);
        assert_eq!(
            repair(&planned),
            "KIND             SUBJECT  SERVICE  RESULT\n\
             missing-service  y        -        skipped: it is only reported\n\
             stale-udp        flow x   -        would fix: delete its conntrack entry\n\n\
             1 would be fixed, 1 skipped; no fault, or not yet: 3 differences"
        );
        assert_eq!(repair_exit(&planned), Exit::Ok);
    }
}
