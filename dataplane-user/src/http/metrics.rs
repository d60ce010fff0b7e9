//! The agent's state as metrics, in Prometheus' text format. Pure.
//!
//! Names and labels are an interface, and `docs/metrics.md` has a row for each. No label has a value that anybody outside of the cluster chooses,
//! and the number of series is bounded.

use std::{collections::BTreeMap, fmt};

use nodefence_common::{Counter, Reason};
use prometheus_client::{
    collector::Collector,
    encoding::{DescriptorEncoder, EncodeMetric as _, prometheus_text},
    metrics::{counter::ConstCounter, gauge::ConstGauge},
    registry::Registry,
};

use super::verdicts::{json_word, verdicts};
use crate::{
    dataplane::Unanswered,
    plan::audit::Kind,
    report::{OffStatus, ScopeRow, StatusReport},
    rescue::Fate,
};

/// The numbers that `status` does not have.
#[derive(Clone, Debug, Default)]
pub struct Measured {
    /// The counters of the kernel programs, each by its reason. Empty if they could not be read.
    pub kernel: Vec<(Reason, Counter)>,
    /// Packets that got no answer.
    pub unanswered: Vec<(Unanswered, Counter)>,
    /// The fates of packets that were to be rescued.
    pub rescue: Vec<(Fate, Counter)>,
    /// The faults that the audit last found, by kind.
    pub audit_faults: BTreeMap<Kind, usize>,
    /// Whether the maps hold a view.
    pub has_tables: bool,
}

/// The state and the mode of an agent that is off.
const OFF: &str = "off";
/// The words with which `nodefence status` begins.
const STATES: [&str; 5] = ["ok", "degraded", "observe", "blind", OFF];
const MODES: [&str; 3] = ["enforce", "observe", OFF];

/// The node label of the series that stands for all flagged nodes without a series of their own.
const OTHERS: &str = "_others";

type Labels = Vec<(&'static str, String)>;

/// A metric with its series. A counter's name ends in `_total`.
#[derive(Debug)]
struct Family {
    name: &'static str,
    help: &'static str,
    series: Vec<(Labels, f64)>,
}

/// What becomes of the packets that a counter of the kernel programs counts.
enum Outcome {
    Cut,
    Passed,
    WouldCut,
}

const fn outcome(reason: Reason) -> Outcome {
    match reason {
        Reason::Reset
        | Reason::Refused
        | Reason::Unreachable
        | Reason::Dropped
        | Reason::Handed
        | Reason::IcmpLimited
        | Reason::FragmentDropped
        | Reason::Failed
        | Reason::Rescue
        | Reason::IcmpSenderLimited
        | Reason::AnswerLimited => Outcome::Cut,
        Reason::FragmentPassed
        | Reason::Unparsed
        | Reason::Lapsed
        | Reason::Stale
        | Reason::NeighbourDiscovery
        | Reason::Exempt
        | Reason::OwnSocket
        | Reason::Foreign => Outcome::Passed,
        Reason::Observed => Outcome::WouldCut,
    }
}

/// The metrics as text.
///
/// # Errors
/// Where the encoder fails, which no state makes it do.
pub(super) fn text(report: &StatusReport, measured: &Measured) -> Result<String, fmt::Error> {
    encoded(families(report, measured))
}

/// The metrics of an agent that is off, as text. It has no maps, no view and no devices, so their metrics are left out.
///
/// # Errors
/// As of [`text`].
pub(super) fn text_of_off(status: &OffStatus, log_lines_lost: usize) -> Result<String, fmt::Error> {
    let own = [version(&status.version), state(OFF), mode(OFF), lines_lost(log_lines_lost)];
    encoded(own.into())
}

fn encoded(families: Vec<Family>) -> Result<String, fmt::Error> {
    let mut registry = Registry::default();
    registry.register_collector(Box::new(Families(families)));
    let mut text = String::new();
    prometheus_text::encode(&mut text, &registry)?;
    Ok(text)
}

#[derive(Debug)]
struct Families(Vec<Family>);

impl Collector for Families {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        for Family { name, help, series } in &self.0 {
            // The encoder adds the ending that each counter has.
            let counts = name.strip_suffix("_total");
            let kind = match counts {
                Some(_) => ConstCounter::new(0.0).metric_type(),
                None => ConstGauge::new(0.0).metric_type(),
            };
            let mut metric = encoder.encode_descriptor(counts.unwrap_or(name), help, None, kind)?;
            for (labels, value) in series {
                let one = metric.encode_family(labels)?;
                match counts {
                    Some(_) => ConstCounter::new(*value).encode(one)?,
                    None => ConstGauge::new(*value).encode(one)?,
                }
            }
        }
        Ok(())
    }
}

fn families(report: &StatusReport, measured: &Measured) -> Vec<Family> {
    let mut families = of_agent(report);
    families.extend(of_flags(report));
    families.extend(of_source(report));
    families.extend(of_devices(report));
    families.extend(of_packets(measured));
    families.extend(of_tables(report, measured));
    families
}

/// A metric of one series without labels.
fn one(name: &'static str, help: &'static str, value: f64) -> Family {
    Family { name, help, series: vec![(Labels::new(), value)] }
}

/// A metric whose series have one label.
fn by(
    name: &'static str,
    help: &'static str,
    label: &'static str,
    series: impl IntoIterator<Item = (String, f64)>,
) -> Family {
    let series = series.into_iter().map(|(value, number)| (vec![(label, value)], number));
    Family { name, help, series: series.collect() }
}

/// The series of a choice: 1 for the one that holds, 0 for the others.
fn choice(all: &[&str], holds: &str) -> Vec<(String, f64)> {
    all.iter().map(|&each| (each.to_owned(), flag(each == holds))).collect()
}

const fn flag(holds: bool) -> f64 {
    if holds { 1.0 } else { 0.0 }
}

/// Numbers of packets and nodes are far below 2^53, above which a number would be rounded.
const fn number(count: u64) -> f64 {
    count as f64
}

const fn size(count: usize) -> f64 {
    number(count as u64)
}

fn version(version: &str) -> Family {
    by(
        "nodefence_build_info",
        "1. The label has the version of the agent.",
        "version",
        [(version.to_owned(), 1.0)],
    )
}

fn state(holds: &str) -> Family {
    by(
        "nodefence_state",
        "1 for the word with which nodefence status begins, 0 for the others.",
        "state",
        choice(&STATES, holds),
    )
}

fn mode(holds: &str) -> Family {
    by("nodefence_mode", "1 for the mode in effect, 0 for the others.", "mode", choice(&MODES, holds))
}

fn lines_lost(count: usize) -> Family {
    one(
        "nodefence_log_lines_dropped_total",
        "Lines of the log that were lost since the agent began.",
        size(count),
    )
}

fn of_agent(report: &StatusReport) -> Vec<Family> {
    let StatusReport { health, status } = report;
    let standing = health.warnings.iter().filter(|warning| warning.standing);
    vec![
        version(&status.version),
        state(&json_word(&health.state)),
        mode(&json_word(&status.mode)),
        by(
            "nodefence_warning",
            "1 for each warning that holds now, by its code. nodefence doctor CODE explains it.",
            "code",
            standing.map(|warning| (warning.code.name().to_owned(), 1.0)),
        ),
        one(
            "nodefence_renewal_age_seconds",
            "Seconds since all verdicts were last renewed. The kernel ignores a verdict after 3 seconds.",
            status.dataplane.renewed_seconds_ago,
        ),
        lines_lost(status.log_lines_lost),
    ]
}

fn of_flags(report: &StatusReport) -> Vec<Family> {
    let (listed, others) = verdicts(&report.status.flagged);
    let mut series: Vec<(Labels, f64)> = listed
        .into_iter()
        .map(|verdict| {
            let labels =
                vec![("node", verdict.node), ("cause", verdict.cause), ("standing", verdict.standing)];
            (labels, 1.0)
        })
        .collect();
    if others != 0 {
        series.push((vec![("node", OTHERS.to_owned())], size(others)));
    }
    let withheld = &report.status.withheld;
    let of_kind = |word: &str| withheld.iter().filter(|row| scope_kind(&row.scope) == word).count();
    let kinds = ["all_nodes", "zone", "pool"].map(|word| (word.to_owned(), size(of_kind(word))));
    vec![
        Family {
            name: "nodefence_verdict",
            help: "1 for each node with a flag or an automatic claim, with the cause and the effect of the claim that counts most. \
                   The series of the node _others has the number of nodes beyond the first 50.",
            series,
        },
        by(
            "nodefence_limit_engaged",
            "Number of scopes of this kind in which more nodes are claimed than automatic claims, and flags without force, may cut.",
            "scope_kind",
            kinds,
        ),
    ]
}

const fn scope_kind(scope: &ScopeRow) -> &'static str {
    match scope {
        ScopeRow::AllNodes => "all_nodes",
        ScopeRow::Zone(_) => "zone",
        ScopeRow::Pool(_) => "pool",
    }
}

fn of_source(report: &StatusReport) -> Vec<Family> {
    let cluster = &report.status.cluster;
    vec![
        one(
            "nodefence_view_age_seconds",
            "Seconds since the source of nodes last confirmed the view.",
            number(cluster.age_seconds),
        ),
        one(
            "nodefence_source_away",
            "1 while the API server does not answer. The last view holds.",
            flag(cluster.away.is_some()),
        ),
        one("nodefence_nodes", "Number of nodes in the view.", size(cluster.nodes)),
        one("nodefence_backends", "Number of backends in the view.", size(cluster.backends)),
    ]
}

fn of_devices(report: &StatusReport) -> Vec<Family> {
    let status = &report.status;
    let attached = status.interfaces.iter().filter(|row| row.tc.is_some()).count();
    vec![
        one(
            "nodefence_interface_attached",
            "Number of network devices on which the programs run.",
            size(attached),
        ),
        one(
            "nodefence_interface_blind",
            "Number of network devices on which the programs should run and do not.",
            size(status.interfaces.len() - attached),
        ),
        one(
            "nodefence_uncovered_backends",
            "Number of backends that no attached device covers. Traffic to them is not cut.",
            size(status.uncovered),
        ),
    ]
}

fn of_packets(measured: &Measured) -> Vec<Family> {
    let packets = |counter: &Counter| number(counter.packets);
    let kernel = |wanted: fn(Outcome) -> bool| {
        let counters = measured.kernel.iter().filter(move |(reason, _)| wanted(outcome(*reason)));
        counters.map(|(reason, counter)| (reason.name().to_owned(), packets(counter)))
    };
    let would_cut = kernel(|outcome| matches!(outcome, Outcome::WouldCut));
    vec![
        by(
            "nodefence_cut_packets_total",
            "Packets that were cut since the maps were made, by the reason that nodefence counters explains.",
            "reason",
            kernel(|outcome| matches!(outcome, Outcome::Cut)),
        ),
        Family {
            name: "nodefence_would_cut_total",
            help: "Packets that passed and would have been cut if the agent did not only observe, since the maps were made.",
            series: would_cut.map(|(_, count)| (Labels::new(), count)).collect(),
        },
        by(
            "nodefence_passed_packets_total",
            "Packets to flagged nodes that passed since the maps were made, by the reason that nodefence counters explains.",
            "reason",
            kernel(|outcome| matches!(outcome, Outcome::Passed)),
        ),
        by(
            "nodefence_rescued_total",
            "Packets that were to be sent to another backend, since the agent began. The fate rescued is the good one.",
            "fate",
            measured.rescue.iter().map(|(fate, counter)| (fate.name().to_owned(), packets(counter))),
        ),
        by(
            "nodefence_unanswered_packets_total",
            "Cut packets whose answer the agent could not make, since the agent began.",
            "reason",
            measured.unanswered.iter().map(|(why, counter)| (why.name().to_owned(), packets(counter))),
        ),
    ]
}

fn of_tables(report: &StatusReport, measured: &Measured) -> Vec<Family> {
    let drained = report.status.ipvs.nodes.values().map(|row| row.drained + row.waiting);
    let faults = |kind: Kind| measured.audit_faults.get(&kind).copied().unwrap_or_default();
    vec![
        one(
            "nodefence_ipvs_owned",
            "Number of IPVS destinations whose weight the agent holds at 0.",
            size(drained.sum()),
        ),
        by(
            "nodefence_audit_faults",
            "Number of faults that the audit last found, by kind. nodefence audit names them.",
            "kind",
            Kind::all().map(|kind| (kind.name().to_owned(), size(faults(kind)))),
        ),
    ]
}

#[cfg(test)]
#[path = "metrics_tests.rs"]
mod tests;
