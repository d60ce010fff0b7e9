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
    assert_eq!(said(|| adopted(&lost)), [r#"ERROR flags were lost event="flags-lost" problem="is damaged""#]);
}

#[test]
fn a_request_is_told_once_by_whoever_answers_it() {
    assert_eq!(
        said(|| flagged("b", "root", "disk", Some(Duration::from_secs(600)))),
        [r#"INFO a command flagged the node event="flagged" node="b" by="root" reason="disk" seconds=600"#]
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
            &[r#"INFO a claim on the node is over event="claim-over" node="b" source="hung""#],
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
