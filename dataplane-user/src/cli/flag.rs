//! The text of `flag`: what happens to the flows and new connections of the node's clients, with their numbers.

use std::fmt::Write as _;

use super::{
    claims::flag_text,
    exit::Exit,
    output::{count, printable},
};
use crate::report::{ChallengeRow, FlagReport, NodeAction, seconds};

pub(super) fn flag(report: &FlagReport) -> String {
    let ends = match report.for_seconds {
        Some(time) => format!("ends in {}", seconds(time)),
        None => "until `nodefence unflag`".to_owned(),
    };
    let by = if report.by.is_empty() { String::new() } else { format!(" by {}", printable(&report.by)) };
    // An agent of an earlier version does not name its own node.
    let on = if report.on.is_empty() { String::new() } else { format!(" ({})", report.on) };
    let mut text = match report.action {
        NodeAction::Pass => {
            format!("on this node only{on}: the flag on {} was withdrawn meanwhile\n", report.node)
        }
        _ => format!("on this node only{on}: {} is flagged{by}, {ends}\n", report.node),
    };
    let mut line = |name: &str, value: &str| {
        let _ = writeln!(text, "{name:<13}{value}");
    };
    let written = match report.written {
        true => format!("written in {} us", report.flip_micros),
        false => "not written yet: see `nodefence status`".to_owned(),
    };
    line("verdict", &format!("{} (index {}), {written}", report.action, report.index));
    if let Some(before) = &report.replaced {
        line("replaces", &flag_text(before));
    }
    let [established, idle] = of_flows(report);
    line("established", &established);
    line("idle", &idle);
    line("new", &of_new(report));
    line("exempt", &format!("{}{}", count(report.exempt_count, "port"), pass(report.exempt_count)));
    let exempt = report.exempt.iter().map(|row| format!("{} ({})", row.backend(), row.why));
    examples(&mut line, exempt, report.exempt_count);
    line(
        "uncovered",
        &format!(
            "{} of {}{}",
            report.uncovered_count,
            count(report.backends, "backend"),
            pass(report.uncovered_count)
        ),
    );
    let uncovered = report.uncovered.iter().map(|row| match &row.uncovered {
        Some(why) => format!("{} ({why})", row.backend()),
        None => row.backend().to_string(),
    });
    examples(&mut line, uncovered, report.uncovered_count);
    if report.beyond_maps != 0 {
        line(
            "no room",
            &format!(
                "{} of all nodes do not fit in the maps, and pass",
                count(report.beyond_maps, "backend")
            ),
        );
    }
    if report.left_out != 0 {
        line(
            "left out",
            &format!("{} endpoints, which pass: each may be the node's own address", report.left_out),
        );
    }
    text
}

const fn pass(count: usize) -> &'static str {
    if count == 0 { "" } else { ", which pass" }
}

fn examples(line: &mut impl FnMut(&str, &str), some: impl ExactSizeIterator<Item = String>, all: usize) {
    let more = all.saturating_sub(some.len());
    for one in some {
        line("", &printable(&one));
    }
    if more != 0 {
        line("", &format!("and {more} more"));
    }
}

fn is_observed(report: &FlagReport) -> bool {
    report.action == NodeAction::Observe
}

/// The texts about established flows, and about those of them whose clients are idle.
fn of_flows(report: &FlagReport) -> [String; 2] {
    let problem = report.challenged.as_ref().and_then(|row| row.problem.as_ref());
    let established = match (report.established, problem) {
        (Some(count), _) => format!("{count} TCP flows, each reset when its client next sends"),
        (None, Some(problem)) => format!("not counted: {}", printable(problem)),
        (None, None) if is_observed(report) => "pass, and are counted".to_owned(),
        (None, None) if report.action == NodeAction::Pass => "pass".to_owned(),
        (None, None) if report.challenging => {
            "not counted yet: see `nodefence status`, or use --wait".to_owned()
        }
        (None, None) => "cut when their clients next send".to_owned(),
    };
    let idle = match (&report.not_challenged, &report.challenged) {
        (Some(why), _) => format!("not challenged: {}", printable(why)),
        (None, Some(row)) if report.challenging && row.challenged != 0 => {
            format!("{} challenged so far: see `nodefence status`", row.challenged)
        }
        (None, _) if report.challenging => "their clients are being challenged".to_owned(),
        (None, Some(row)) => idle_text(row),
        (None, None) => "not challenged".to_owned(),
    };
    [established, idle]
}

fn of_new(report: &FlagReport) -> String {
    let to = format!("to {} of {}: ", report.cut_count, count(report.backends, "backend"));
    match &report.new_refused {
        _ if is_observed(report) => to + "pass, and are counted",
        _ if report.action == NodeAction::Pass => to + "pass",
        None => to + "balanced anew to other endpoints",
        Some(why) => format!("{to}not balanced anew: {}", printable(why)),
    }
}

/// Findings about traffic that is not cut although its node is flagged.
fn uncut(report: &FlagReport) -> Vec<String> {
    let counts = [
        (report.uncovered_count as u64, "backend", "uncovered"),
        (report.exempt_count as u64, "port", "exempt"),
        (report.left_out as u64, "endpoint", "left out"),
        (report.beyond_maps, "backend", "of all nodes without room in the maps"),
    ];
    let counted = counts
        .iter()
        .filter(|(number, ..)| *number != 0)
        .map(|(number, noun, state)| format!("{} {state}", count(*number, noun)));
    // An agent of an earlier version names neither its own node nor the exempt ports.
    let is_silent =
        report.on.is_empty().then_some("the agent, of a version before, does not say what is exempt");
    let observes = is_observed(report).then_some("nothing is cut, only counted");
    let withdrawn =
        (report.action == NodeAction::Pass).then_some("nothing is cut: the flag was withdrawn meanwhile");
    let waits = (!report.written).then_some("the verdict is not written yet");
    is_silent
        .into_iter()
        .chain(observes)
        .chain(withdrawn)
        .chain(waits)
        .map(str::to_owned)
        .chain(counted)
        .collect()
}

/// The text of `--strict`, and its exit code.
pub(super) fn strict(report: &FlagReport) -> (Option<String>, Exit) {
    match uncut(report) {
        findings if findings.is_empty() => (None, Exit::Ok),
        findings => {
            let findings = findings.join(", ");
            let text = match report.action {
                NodeAction::Pass => format!("--strict: {findings}"),
                _ => format!("--strict: {findings}; {} is flagged all the same", report.node),
            };
            (Some(text), Exit::Findings)
        }
    }
}

/// The result of a round of challenges, as `status` shows it.
pub(super) fn challenged_text(row: &ChallengeRow) -> String {
    format!("{} flows listed, {}", row.listed, idle_text(row))
}

fn idle_text(row: &ChallengeRow) -> String {
    let mut text =
        format!("{} challenged, {} of them closed in {:.3} s", row.challenged, row.closed, row.seconds);
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
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        cluster::Protocol,
        report::{BackendRow, ExemptRow},
    };

    fn report() -> FlagReport {
        FlagReport {
            node: "node-b".to_owned(),
            on: "node-a".to_owned(),
            by: "root (sudo by alice)".to_owned(),
            index: 3,
            action: NodeAction::Refuse,
            for_seconds: Some(3_600),
            backends: 2,
            uncovered_count: 0,
            uncovered: Vec::new(),
            cut_count: 2,
            exempt_count: 0,
            exempt: Vec::new(),
            left_out: 0,
            beyond_maps: 0,
            new_refused: None,
            replaced: None,
            written: true,
            flip_micros: 40,
            received_ns: 0,
            established: None,
            challenging: true,
            challenged: None,
            not_challenged: None,
            warnings: Vec::new(),
        }
    }

    #[test]
    fn what_becomes_of_what_clients_send_is_named_in_order() {
        assert_eq!(
            flag(&report()),
            "on this node only (node-a): node-b is flagged by root (sudo by alice), ends in 1h\n\
             verdict      refuse (index 3), written in 40 us\n\
             established  not counted yet: see `nodefence status`, or use --wait\n\
             idle         their clients are being challenged\n\
             new          to 2 of 2 backends: balanced anew to other endpoints\n\
             exempt       0 ports\n\
             uncovered    0 of 2 backends\n"
        );
        let mut challenged = ChallengeRow {
            is_complete: true,
            listed: 14,
            challenged: 11,
            closed: 10,
            skipped_not_tcp: 2,
            unreachable: 1,
            seconds: 0.02,
            ..ChallengeRow::default()
        };
        assert_eq!(challenged.established(), Some(12));
        let soon = FlagReport { established: Some(12), challenged: Some(challenged.clone()), ..report() };
        let text = flag(&soon);
        assert!(
            text.contains("\nestablished  12 TCP flows, each reset when its client next sends\n"),
            "{text}"
        );
        assert!(text.contains("\nidle         11 challenged so far: see `nodefence status`\n"), "{text}");
        let exempt = ExemptRow {
            node: "node-b".to_owned(),
            address: "10.1.1.1".parse().unwrap(),
            port: 80,
            protocol: Protocol::Tcp,
            service: "default/web".to_owned(),
            why: "why".to_owned(),
        };
        let uncovered = BackendRow {
            address: "10.9.1.1".parse().unwrap(),
            port: None,
            protocol: None,
            node: "node-b".to_owned(),
            flagged: true,
            interface: None,
            uncovered: Some("leaves by w0".to_owned()),
        };
        let all = FlagReport {
            for_seconds: None,
            challenging: false,
            established: challenged.established(),
            challenged: Some(challenged.clone()),
            new_refused: Some("how kube-proxy forwards is not known".to_owned()),
            exempt_count: 3,
            exempt: vec![exempt],
            uncovered_count: 1,
            cut_count: 1,
            uncovered: vec![uncovered],
            left_out: 4,
            beyond_maps: 5,
            ..report()
        };
        assert_eq!(
            flag(&all),
            "on this node only (node-a): node-b is flagged by root (sudo by alice), until `nodefence unflag`\n\
             verdict      refuse (index 3), written in 40 us\n\
             established  12 TCP flows, each reset when its client next sends\n\
             idle         11 challenged, 10 of them closed in 0.020 s, 2 not TCP, 1 without an attached device\n\
             new          to 1 of 2 backends: not balanced anew: how kube-proxy forwards is not known\n\
             exempt       3 ports, which pass\n             10.1.1.1:80/tcp (why)\n             and 2 more\n\
             uncovered    1 of 2 backends, which pass\n             10.9.1.1 (leaves by w0)\n\
             no room      5 backends of all nodes do not fit in the maps, and pass\n\
             left out     4 endpoints, which pass: each may be the node's own address\n"
        );
        challenged.problem = Some("it was cut short".to_owned());
        challenged.is_complete = false;
        let cut_short =
            FlagReport { established: challenged.established(), challenged: Some(challenged), ..report() };
        let text = flag(&cut_short);
        assert!(text.contains("\nestablished  not counted: it was cut short\n"), "{text}");
    }

    #[test]
    fn what_is_only_counted_is_said_to_pass() {
        let why = Some("nothing is cut in observe mode".to_owned());
        let observed =
            FlagReport { action: NodeAction::Observe, challenging: false, not_challenged: why, ..report() };
        let text = flag(&observed);
        for line in [
            "\nestablished  pass, and are counted\n",
            "\nidle         not challenged: nothing is cut in observe mode\n",
            "\nnew          to 2 of 2 backends: pass, and are counted\n",
        ] {
            assert!(text.contains(line), "{text}");
        }
    }

    #[test]
    fn an_agent_of_before_says_less() {
        let mut json = serde_json::to_value(report()).unwrap();
        let fields = json.as_object_mut().unwrap();
        for new in ["on", "by", "exempt_count", "exempt", "left_out", "beyond_maps", "new_refused", "written"]
        {
            fields.remove(new).unwrap();
        }
        let report = serde_json::from_value(json).unwrap();
        let text = flag(&report);
        assert!(text.starts_with("on this node only: node-b is flagged, ends in 1h\n"), "{text}");
        assert_eq!(strict(&report).1, Exit::Findings);
    }

    #[test]
    fn what_is_not_cut_is_a_finding_of_strict() {
        assert_eq!(strict(&report()), (None, Exit::Ok));
        for (report, text) in [
            (FlagReport { uncovered_count: 1, ..report() }, "1 backend uncovered"),
            (FlagReport { exempt_count: 2, ..report() }, "2 ports exempt"),
            (FlagReport { left_out: 3, ..report() }, "3 endpoints left out"),
            (FlagReport { beyond_maps: 4, ..report() }, "4 backends of all nodes without room in the maps"),
            (FlagReport { action: NodeAction::Observe, ..report() }, "nothing is cut, only counted"),
            (
                FlagReport { action: NodeAction::Pass, ..report() },
                "nothing is cut: the flag was withdrawn meanwhile",
            ),
            (FlagReport { written: false, ..report() }, "the verdict is not written yet"),
            (
                FlagReport { uncovered_count: 1, exempt_count: 2, ..report() },
                "1 backend uncovered, 2 ports exempt",
            ),
        ] {
            let end = if report.action == NodeAction::Pass { "" } else { "; node-b is flagged all the same" };
            let said = format!("--strict: {text}{end}");
            assert_eq!(strict(&report), (Some(said), Exit::Findings));
        }
    }
}
