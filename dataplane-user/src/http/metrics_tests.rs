use std::collections::BTreeSet;

use serde_json::{Value, json};

use super::*;
use crate::report::{Code, Health, State, Status, Warning, sample};

const PAGE: &str = include_str!("../../../docs/metrics.md");
const RULES: &str = include_str!("../../../deploy/chart/nodefence/files/alerts.yaml");

fn report(status: Status) -> StatusReport {
    StatusReport::from(status)
}

/// Every number that is measured, each different.
fn measured() -> Measured {
    let counter = |packets| Counter { packets, bytes: 0 };
    Measured {
        kernel: Reason::ALL.iter().map(|reason| (*reason, counter(100 + *reason as u64))).collect(),
        unanswered: vec![(Unanswered::Unanswerable, counter(1)), (Unanswered::NotInjected, counter(2))],
        rescue: Fate::ALL.iter().map(|fate| (*fate, counter(200 + *fate as u64))).collect(),
        audit_faults: Kind::all().map(|kind| (kind, 3)).collect(),
        has_tables: true,
    }
}

/// The state with the most series: every flagged node, warning and kind that there may be.
fn worst() -> StatusReport {
    let status = sample::changed(|status| {
        let claim = json!({
            "source": "hung", "cause": "hung", "by": "", "reason": "", "evidence": null, "since": "2026-01-01T00:00:00Z",
            "until": null, "standing": "enforced", "withheld_by": []
        });
        let row = |at: usize| {
            json!({
                "name": format!("node-{at:04}"), "address": null, "addresses": [], "zone": null, "pool": null, "index": at,
                "generation": 1, "backends": 1, "own": false, "action": "refuse", "exempt": 0, "flag": null, "claims": [claim]
            })
        };
        status["flagged"] = (0..1_000).map(row).collect();
        let scope = |scope: Value| {
            json!({
                "scope": scope, "since": "2026-01-01T00:00:00Z", "until": "2026-01-01T00:05:00Z", "counted": 3, "allowed": 2
            })
        };
        let zones = (0..100).map(|at| scope(json!({"kind": "zone", "name": format!("z{at}")})));
        status["withheld"] = zones.chain([scope(json!({"kind": "all_nodes"}))]).collect();
        status["cluster"]["away"] = json!("refused");
    });
    let mut report = report(status);
    let all = Code::ALL.iter();
    report.health.warnings =
        all.map(|code| Warning { code: *code, message: String::new(), standing: true }).collect();
    report
}

/// The lines with a value.
fn series(text: &str) -> Vec<&str> {
    text.lines().filter(|line| !line.starts_with('#')).collect()
}

/// The metrics in a text, each with the names of its labels.
fn exported(text: &str) -> BTreeMap<String, BTreeSet<String>> {
    let mut found = BTreeMap::<String, BTreeSet<String>>::new();
    for line in text.lines().filter_map(|line| line.strip_prefix("# TYPE ")) {
        found.insert(line.split(' ').next().unwrap().to_owned(), BTreeSet::new());
    }
    for line in series(text) {
        let (name, labels) = line.split_once('{').unwrap_or((line.split(' ').next().unwrap(), ""));
        let labels =
            labels.split(',').filter_map(|label| label.split_once('=')).map(|(name, _)| name.to_owned());
        found.get_mut(name).unwrap_or_else(|| panic!("{name} has no type")).extend(labels);
    }
    found
}

fn value(text: &str, series: &str) -> Option<f64> {
    let line = text.lines().find_map(|line| line.strip_prefix(series)?.strip_prefix(' '))?;
    line.parse().ok()
}

#[test]
fn an_agent_has_two_hundred_series_at_most() {
    let text = text(&worst(), &measured()).unwrap();
    let count = series(&text).len();
    assert!((100..=200).contains(&count), "{count} series");
    assert_eq!(value(&text, "nodefence_verdict{node=\"_others\"}"), Some(950.0));
    assert_eq!(series(&text).iter().filter(|line| line.starts_with("nodefence_verdict{")).count(), 51);
    assert_eq!(value(&text, "nodefence_limit_engaged{scope_kind=\"zone\"}"), Some(100.0));
}

#[test]
fn each_line_has_its_type_and_help_and_a_value() {
    let text = text(&worst(), &measured()).unwrap();
    for name in exported(&text).keys() {
        let kind = if name.ends_with("_total") { "counter" } else { "gauge" };
        assert!(text.contains(&format!("# TYPE {name} {kind}\n")), "{name}");
        let help = text.lines().find_map(|line| line.strip_prefix(&format!("# HELP {name} ")));
        assert!(help.is_some_and(|help| help.ends_with('.')), "{name}: {help:?}");
    }
    for line in series(&text) {
        let (_, value) = line.rsplit_once(' ').unwrap();
        assert!(value.parse::<f64>().is_ok(), "{line}");
        // The parser of Prometheus refuses `{}` nowhere, but a reader stumbles over it.
        assert!(!line.contains("{}"), "{line}");
    }
}

#[test]
fn the_state_is_in_the_metrics() {
    let text = text(&report(sample::full()), &measured()).unwrap();
    for (series, expected) in [
        ("nodefence_build_info{version=\"0.1.0\"}", 1.0),
        ("nodefence_state{state=\"blind\"}", 1.0),
        ("nodefence_state{state=\"ok\"}", 0.0),
        ("nodefence_mode{mode=\"observe\"}", 1.0),
        ("nodefence_mode{mode=\"enforce\"}", 0.0),
        ("nodefence_warning{code=\"NF32\"}", 1.0),
        ("nodefence_renewal_age_seconds", 3.1),
        ("nodefence_log_lines_dropped_total", 8.0),
        ("nodefence_verdict{node=\"node-b\",cause=\"external\",standing=\"withheld\"}", 1.0),
        ("nodefence_limit_engaged{scope_kind=\"zone\"}", 1.0),
        ("nodefence_limit_engaged{scope_kind=\"pool\"}", 0.0),
        ("nodefence_view_age_seconds", 61.0),
        ("nodefence_source_away", 1.0),
        ("nodefence_nodes", 2.0),
        ("nodefence_backends", 1.0),
        ("nodefence_interface_attached", 1.0),
        ("nodefence_interface_blind", 0.0),
        ("nodefence_uncovered_backends", 3.0),
        ("nodefence_cut_packets_total{reason=\"refused\"}", 101.0),
        ("nodefence_would_cut_total", 110.0),
        ("nodefence_passed_packets_total{reason=\"exempt\"}", 114.0),
        ("nodefence_rescued_total{fate=\"rescued\"}", 200.0),
        ("nodefence_unanswered_packets_total{reason=\"not_injected\"}", 2.0),
        ("nodefence_ipvs_owned", 5.0),
        ("nodefence_audit_faults{kind=\"stale-udp\"}", 3.0),
    ] {
        assert_eq!(value(&text, series), Some(expected), "{series}\n{text}");
    }
    // What was counted since the agent began does not hold now.
    assert!(!text.contains("NF31"), "{text}");
    let blind = self::text(&report(sample::blind()), &measured()).unwrap();
    assert_eq!(value(&blind, "nodefence_interface_blind"), Some(1.0));
}

/// An alert that compares a metric of devices or of the source finds none while the agent is off.
#[test]
fn an_agent_that_is_off_says_so_and_has_no_metrics_of_what_it_does_not_do() {
    let text = text_of_off(&sample::off(), 8).unwrap();
    for (series, expected) in [
        ("nodefence_build_info{version=\"0.1.0\"}", 1.0),
        ("nodefence_state{state=\"off\"}", 1.0),
        ("nodefence_state{state=\"ok\"}", 0.0),
        ("nodefence_mode{mode=\"off\"}", 1.0),
        ("nodefence_mode{mode=\"enforce\"}", 0.0),
        ("nodefence_log_lines_dropped_total", 8.0),
    ] {
        assert_eq!(value(&text, series), Some(expected), "{series}\n{text}");
    }
    let whole = exported(&self::text(&worst(), &measured()).unwrap());
    let own = exported(&text);
    assert!(own.iter().all(|(name, labels)| whole.get(name) == Some(labels)), "{own:?}");
    let names: Vec<&str> = own.keys().map(String::as_str).collect();
    assert_eq!(
        names,
        ["nodefence_build_info", "nodefence_log_lines_dropped_total", "nodefence_mode", "nodefence_state"]
    );
}

/// A dashboard that sums over modes finds each agent once.
#[test]
fn an_agent_that_runs_is_not_off() {
    let text = text(&report(sample::full()), &measured()).unwrap();
    assert_eq!(value(&text, "nodefence_mode{mode=\"off\"}"), Some(0.0));
    assert_eq!(value(&text, "nodefence_state{state=\"off\"}"), Some(0.0));
}

#[test]
fn each_counter_of_the_kernel_is_in_one_metric() {
    let text = text(&report(sample::full()), &measured()).unwrap();
    for reason in Reason::ALL {
        let label = format!("{{reason=\"{}\"}} {}", reason.name(), 100 + *reason as u64);
        let count = text.matches(&label).count();
        assert_eq!(count, usize::from(*reason != Reason::Observed), "{reason:?}");
    }
}

/// A node is first in the list where it is cut, so that the nodes beyond the list are those that matter least.
#[test]
fn nodes_that_are_cut_are_named_first() {
    let mut worst = worst();
    let rows = &mut worst.status.flagged;
    rows.iter_mut().take(990).for_each(|row| row.action = crate::report::NodeAction::Pass);
    let text = text(&worst, &measured()).unwrap();
    assert!((990..1_000).all(|at| text.contains(&format!("node=\"node-{at:04}\""))), "{text}");
}

#[test]
fn a_value_of_a_label_cannot_begin_another_series() {
    let status = sample::changed(|status| status["version"] = json!("1\"} 0\nnodefence_mode{mode=\"x\\"));
    let text = text(&report(status), &measured()).unwrap();
    let line = text.lines().find(|line| line.starts_with("nodefence_build_info{")).unwrap();
    assert_eq!(line, r#"nodefence_build_info{version="1\"} 0\nnodefence_mode{mode=\"x\\"} 1.0"#);
}

/// The rows of the page's table: name, labels, unit, meaning, alert.
fn rows() -> BTreeMap<String, BTreeSet<String>> {
    let rows = PAGE.lines().filter(|line| line.starts_with("| `nodefence_")).map(|line| {
        let cells: Vec<&str> = line.split('|').map(str::trim).collect();
        let [_, name, labels, unit, meaning, alert, _] = cells[..] else {
            panic!("expected five cells: {line}")
        };
        assert!(!unit.is_empty() && !meaning.is_empty() && !alert.is_empty(), "{line}");
        let labels = labels.split(',').map(|label| label.trim().trim_matches('`').to_owned());
        (name.trim_matches('`').to_owned(), labels.filter(|label| !label.is_empty()).collect())
    });
    rows.collect()
}

#[test]
fn the_page_has_the_metrics_that_are_exported_with_their_labels() {
    assert_eq!(rows(), exported(&text(&worst(), &measured()).unwrap()));
}

/// An alert on a metric that nobody exports never fires.
#[test]
fn alerts_are_on_metrics_that_are_exported() {
    let rules: Value = serde_saphyr::from_str(RULES).unwrap();
    let exported = exported(&text(&worst(), &measured()).unwrap());
    let mut names = BTreeSet::new();
    for rule in
        rules["groups"].as_array().unwrap().iter().flat_map(|group| group["rules"].as_array().unwrap())
    {
        let name = rule["alert"].as_str().unwrap();
        assert!(names.insert(name.to_owned()), "{name} twice");
        let expression = rule["expr"].as_str().unwrap();
        let words = expression.split(|sign: char| !(sign.is_alphanumeric() || sign == '_'));
        // `up` is of Prometheus itself.
        let metrics: Vec<&str> =
            words.filter(|word| *word == "up" || word.starts_with("nodefence_")).collect();
        assert!(!metrics.is_empty(), "{name}: {expression}");
        let is_known = |metric: &str| metric == "up" || exported.contains_key(metric);
        assert!(metrics.iter().all(|metric| is_known(metric)), "{name}: {expression}");
        assert!(
            rule["labels"]["severity"].is_string() && rule["annotations"]["summary"].is_string(),
            "{name}"
        );
    }
    let pages = names.iter().filter(|name| !PAGE.contains(&format!("`{name}`")));
    assert_eq!(pages.collect::<Vec<_>>(), Vec::<&String>::new(), "alerts that the page does not name");
    assert_eq!(Health::of(&sample::full()).state, State::Blind);
}
