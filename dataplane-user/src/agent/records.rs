//! The log's lines on claims and on the outcome of writes. The thread `verdicts` never writes them: flags wait for that thread.

use std::{collections::BTreeMap, time::Duration};

use super::{claim_rows::source_name, refusals::unsaved};
use crate::{
    cluster::{NodeName, SourceName},
    enforce::{Claim, ClaimSource, Danger, Event, Withheld},
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
                "a claim on the node is over: its source did not renew it"
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
mod tests {
    use std::{
        io,
        sync::{Arc, Mutex},
    };

    use jiff::Timestamp;

    use super::*;
    use crate::{
        cluster::{Backend, Protocol, Scope},
        enforce::{ChangedBy, LimitScope, Saved},
    };

    #[derive(Clone, Default)]
    struct Log(Arc<Mutex<Vec<u8>>>);

    impl io::Write for Log {
        fn write(&mut self, text: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap().extend_from_slice(text);
            Ok(text.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    /// The lines that `work` logs.
    fn said(work: impl FnOnce()) -> Vec<String> {
        let log = Log::default();
        let to = log.clone();
        let subscriber = tracing_subscriber::fmt()
            .with_writer(move || to.clone())
            .without_time()
            .with_target(false)
            .with_ansi(false)
            .finish();
        tracing::subscriber::with_default(subscriber, work);
        let text = String::from_utf8(log.0.lock().unwrap().clone()).unwrap();
        text.lines().map(|line| line.trim().to_owned()).collect()
    }

    fn of(event: Event) -> Vec<String> {
        said(|| record(&event))
    }

    fn claim(source: ClaimSource) -> Claim {
        Claim {
            source,
            by: "root".into(),
            reason: "disk".into(),
            evidence: None,
            since: Timestamp::UNIX_EPOCH,
            raised: Duration::ZERO,
            ends: None,
            until: None,
        }
    }

    fn nodes(count: usize) -> Vec<NodeName> {
        (1..=count).map(|number| format!("n{number:02}").into()).collect()
    }

    #[test]
    fn what_was_left_is_told() {
        let claims = vec![
            ("a".into(), claim(ClaimSource::Cli)),
            ("b".into(), claim(ClaimSource::File)),
            ("c".into(), claim(ClaimSource::File)),
            ("c".into(), claim(ClaimSource::Hung)),
        ];
        let left = Adopted { saved: Saved { claims, ..Saved::default() }, problem: None };
        assert_eq!(
            said(|| adopted(&left)),
            [
                r#"INFO an earlier agent left a flag, which holds event="flag-adopted" node="a" by="root" reason="disk""#,
                r#"INFO an earlier agent left claims, which hold event="claims-adopted" source="source" count=2 nodes="b, c""#,
                r#"INFO an earlier agent left claims, which hold event="claims-adopted" source="hung" count=1 nodes="c""#,
            ]
        );
        let lost = Adopted { saved: Saved::default(), problem: Some("is damaged".to_owned()) };
        assert_eq!(
            said(|| adopted(&lost)),
            [r#"ERROR flags were lost event="flags-lost" problem="is damaged""#]
        );
    }

    #[test]
    fn a_request_is_told_once_by_whoever_answers_it() {
        assert_eq!(
            said(|| flagged("b", "root", "disk", Some(Duration::from_secs(600)))),
            [
                r#"INFO a command flagged the node event="flagged" node="b" by="root" reason="disk" seconds=600"#
            ]
        );
        assert_eq!(
            said(|| flagged("b", "root", "", None)),
            [r#"INFO a command flagged the node event="flagged" node="b" by="root" reason="""#]
        );
        assert_eq!(
            said(|| unflagged("b")),
            [r#"INFO a command took back the flag of the node event="unflagged" node="b""#]
        );
        assert!(of(Event::Raised("b".into(), claim(ClaimSource::Cli))).is_empty());
        assert!(of(Event::Withdrawn("b".into(), ClaimSource::Cli)).is_empty());
    }

    #[test]
    fn what_becomes_of_claims_is_told() {
        let hung = Claim { evidence: Some("12 answers owed".into()), ..claim(ClaimSource::Hung) };
        let file_flags = |came, went| Event::FileFlags { came: nodes(came), went: nodes(went) };
        for (event, lines) in [
            (
                Event::Raised("b".into(), hung),
                &[
                    r#"WARN a source claims the node event="claimed" node="b" source="hung" reason="disk" evidence="12 answers owed""#,
                ][..],
            ),
            (
                Event::Withdrawn("b".into(), ClaimSource::External("cloud".into())),
                &[
                    r#"INFO a source has taken back its claim on the node event="claim-withdrawn" node="b" source="external:cloud""#,
                ],
            ),
            (
                file_flags(2, 0),
                &[
                    r#"INFO the source of nodes flags these nodes event="source-flagged" count=2 nodes="n01, n02""#,
                ],
            ),
            (
                file_flags(1, 2),
                &[
                    r#"INFO the source of nodes flags these nodes event="source-flagged" count=1 nodes="n01""#,
                    r#"INFO the source of nodes no longer flags these nodes event="source-unflagged" count=2 nodes="n01, n02""#,
                ],
            ),
            (
                Event::Over("b".into(), ClaimSource::Cli),
                &[r#"INFO the time of the flag is over event="flag-over" node="b""#],
            ),
            (
                Event::Over("b".into(), ClaimSource::Hung),
                &[
                    r#"INFO a claim on the node is over: its source did not renew it event="claim-over" node="b" source="hung""#,
                ],
            ),
            (
                Event::ViewTooOld(Duration::from_secs(60)),
                &["ERROR the source of nodes has not confirmed its view for so long: nothing is cut, and \
                      packets that would be cut are counted event=\"view-too-old\" max_seconds=60"],
            ),
            (
                Event::ViewConfirmed,
                &[r#"INFO the view is confirmed again: claimed nodes are cut event="view-confirmed""#],
            ),
            (
                Event::ModeChanged(
                    Mode::Observe,
                    ChangedBy { by: "root (sudo by ann)".to_owned(), at: Timestamp::UNIX_EPOCH },
                ),
                &[r#"INFO a command set the mode event="mode-set" mode=observe by="root (sudo by ann)""#],
            ),
            (
                Event::NoMoreWithheld(LimitScope::Whole),
                &[
                    r#"INFO claims of this scope are no longer withheld event="claims-not-withheld" scope="all nodes""#,
                ],
            ),
        ] {
            assert_eq!(of(event), lines);
        }
    }

    /// A line stays short enough for whatever stores the log.
    #[test]
    fn every_node_is_named_whose_claims_are_withheld() {
        let withheld = |count: usize| {
            let scope = LimitScope::Zone("x".into());
            let withheld = Withheld { scope, since: Duration::ZERO, counted: count as u32, allowed: 4 };
            of(Event::Withheld(withheld, nodes(count)))
        };
        let named = |nodes: &[NodeName]| format!(r#"scope="zone x" nodes="{}""#, joined(nodes));
        let first = |count: usize, nodes: &[NodeName]| {
            format!(
                "ERROR more nodes are claimed than the limit of this scope allows; automatic claims are not enforced there \
                 event=\"claims-withheld\" scope=\"zone x\" claimed={count} allowed=4 nodes=\"{}\"",
                joined(nodes)
            )
        };
        assert_eq!(withheld(12), [first(12, &nodes(12))]);
        assert_eq!(withheld(100), [first(100, &nodes(100))]);
        let all = nodes(230);
        let more =
            r#"ERROR automatic claims on these nodes are not enforced either event="claims-withheld-more""#;
        assert_eq!(
            withheld(230),
            [
                first(230, &all[..100]),
                format!("{more} {}", named(&all[100..200])),
                format!("{more} {}", named(&all[200..]))
            ]
        );
    }

    #[test]
    fn what_fails_is_told() {
        let port = Backend { address: [10, 1, 1, 2].into(), scope: Scope::Port(80, Protocol::Tcp) };
        let lapses = r#"ERROR the verdict cannot be renewed; it lapses event="verdict-lapses""#;
        for (event, line) in [
            (Event::Failed("b".into(), "full".into()), format!(r#"{lapses} node="b" error="full""#)),
            (
                Event::NotExempt(Some("b".into()), port, "full".into()),
                format!(r#"{lapses} node="b" error="10.1.1.2:80/tcp must be exempt, which failed: full""#),
            ),
            (
                Event::NotExempt(None, port, "full".into()),
                format!(r#"{lapses} error="10.1.1.2:80/tcp must be exempt, which failed: full""#),
            ),
            (Event::TablesFailed("full".into()), r#"ERROR backends could not be written into the maps; the agent tries again event="tables-not-written" error=full"#.to_owned()),
            (
                Event::SaveFailed("full".into()),
                format!(r#"ERROR the flags file could not be written; the agent tries again event="flags-not-saved" problem="{}""#, unsaved("full")),
            ),
            (
                Event::Mended(1, 2),
                r#"WARN entries of nodes and exempt ports were not as they should be; the agent writes them again event="maps-mended" nodes=1 ports=2"#
                    .to_owned(),
            ),
        ] {
            assert_eq!(of(event), [line]);
        }
    }

    #[test]
    fn a_slip_in_the_source_s_flags_is_said() {
        for (what, text) in [
            (
                Danger::TooMany(2, 5),
                "the source of nodes flags 2 of 5 nodes, more than a third: the rest may not carry the load",
            ),
            (
                Danger::OwnNode("a".into()),
                "the source of nodes flags `a`, the node this agent runs on: whoever enters here is cut off from its pods",
            ),
            (
                Danger::Over(nodes(13)),
                "13 flags in the source of nodes ended in the past and mean nothing: n01, n02, n03, n04, n05, n06, n07, n08, n09, n10 \
                 and 3 more",
            ),
        ] {
            assert_eq!(danger(&what, SourceName::default()), text);
            let node = if matches!(what, Danger::OwnNode(_)) { r#" node="a""# } else { "" };
            let line = format!(r#"ERROR {text} event="flags-dangerous"{node}"#);
            assert_eq!(of(Event::Danger(what)), [line]);
        }
    }
}
