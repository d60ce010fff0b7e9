//! Differences as the rows that `audit` prints.
use std::{
    collections::BTreeMap,
    net::{IpAddr, SocketAddr},
    time::Duration,
};

use super::{
    super::watched::{AuditMemory, now},
    look::look,
    read::AuditContext,
};
use crate::{
    ipvs::Protocol,
    plan::audit::{Kind, Observed, Part, State, Subject},
    report::{AuditReport, DifferenceRow, KindRow},
};

/// How many rows of one kind are listed at most.
const LISTED: usize = 1_000;

/// Looks at everything, and reports what is not as it should be. Blocking.
pub(super) fn report(context: &AuditContext, memory: &mut AuditMemory) -> AuditReport {
    look(memory, context, Part::ALL);
    let at = now();
    let observed: Vec<Observed> = memory.tracker.observed(at).collect();
    let mut kinds: Vec<KindRow> = Kind::all().map(|kind| kind_row(memory, kind, at)).collect();
    for one in &observed {
        if let Some(row) = kinds.iter_mut().find(|row| row.kind == one.difference.kind) {
            *match one.state {
                State::Fault => &mut row.faults,
                State::New => &mut row.new,
                State::Draining => &mut row.draining,
            } += 1;
        }
    }
    let mut differences = Vec::new();
    for (kind, mut rows) in by_kind(&observed, at) {
        // The oldest faults first.
        rows.sort_by(|a, b| (a.state, b.age_seconds, &a.subject).cmp(&(b.state, a.age_seconds, &b.subject)));
        let cut: usize = rows.iter().skip(LISTED).map(|row| row.count).sum();
        rows.truncate(LISTED);
        differences.extend(rows);
        if let Some(row) = kinds.iter_mut().find(|row| row.kind == kind) {
            row.not_listed += cut;
        }
    }
    differences.sort_by_key(|row| (row.state, row.kind));
    AuditReport {
        node: context.sight.own_node.to_string(),
        fault_after_seconds: memory.tracker.fault_after().as_secs_f64(),
        faults: kinds.iter().map(|row| row.faults).sum(),
        kinds,
        differences,
        repairs: context.sight.settings.audit.repair.iter().copied().collect(),
    }
}

fn kind_row(memory: &AuditMemory, kind: Kind, at: Duration) -> KindRow {
    let since = memory.tracker.watched(kind.part());
    KindRow {
        kind,
        not_looked_at: memory.not_looked_at.get(&kind).cloned(),
        watched_seconds: since.map(|since| at.saturating_sub(since).as_secs()),
        faults: 0,
        new: 0,
        draining: 0,
        not_listed: memory.tracker.left_out().get(&kind).copied().unwrap_or(0),
    }
}

/// The rows of each kind. Flows, or clients, that differ in the same way share one row.
fn by_kind(observed: &[Observed], at: Duration) -> BTreeMap<Kind, Vec<DifferenceRow>> {
    let mut merged: BTreeMap<(Kind, State, String), DifferenceRow> = BTreeMap::new();
    for one in observed {
        let kind = one.difference.kind;
        let subject = subject(&one.difference.subject);
        let age = at.saturating_sub(one.since).as_secs();
        let row = merged.entry((kind, one.state, subject.clone())).or_insert_with(|| DifferenceRow {
            kind,
            state: one.state,
            age_seconds: age,
            subject,
            count: 0,
            service: one.difference.service.clone(),
            detail: one.difference.detail.clone(),
            remedy: kind.remedy().to_owned(),
        });
        row.count += 1;
        row.age_seconds = row.age_seconds.max(age);
    }
    let mut rows: BTreeMap<Kind, Vec<DifferenceRow>> = BTreeMap::new();
    for ((kind, ..), row) in merged {
        rows.entry(kind).or_default().push(row);
    }
    rows
}

/// A subject as text. A flow is named only by where it was sent and where it goes, a client only by its Service and endpoint: there
/// may be thousands of each.
pub(super) fn subject(subject: &Subject) -> String {
    // The words are those of the virtual servers beside it.
    match subject {
        Subject::Flow(flow) => {
            let protocol = Protocol(flow.orig.protocol.into());
            let to = SocketAddr::new(IpAddr::from(flow.orig.dst), flow.orig.dst_port);
            format!("flow {protocol} {to} -> {}", flow.backend())
        }
        Subject::Client(client) => {
            let protocol = Protocol(client.endpoint().protocol.number().into());
            format!("affinity {protocol} {} -> {}", client.service(), client.endpoint().socket)
        }
        Subject::Pair(_) | Subject::Server(_) | Subject::KubeProxy(_) => subject.to_string(),
    }
}
