//! Flags, claims and limits as text, for people.

use std::{collections::BTreeMap, fmt::Write as _};

use super::output::printable;
use crate::{
    cluster::NodeName,
    enforce::Auto,
    report::{ClaimCause, ClaimRow, ClaimState, FlagRow, NodeRow, Origin, ScopeRow, seconds},
};

pub(super) fn flag_text(flag: &FlagRow) -> String {
    let mut text = match &flag.origin {
        Origin::Cli if flag.by.is_empty() => "flagged".to_owned(),
        Origin::Cli => format!("flagged by {}", printable(&flag.by)),
        Origin::Source(_) => format!("flagged by {}", flag.set_by),
    };
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

fn scopes(scopes: &[ScopeRow]) -> String {
    scopes.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
}

/// A short text of a claim beside the flag.
fn claim_text(claim: &ClaimRow) -> String {
    let standing = match claim.standing {
        ClaimState::Enforced => "enforced".to_owned(),
        ClaimState::Observed => "observed".to_owned(),
        ClaimState::Withheld => format!("withheld: {}", scopes(&claim.withheld_by)),
        ClaimState::Off => "not carried out: --auto off".to_owned(),
        ClaimState::OptedOut => "not carried out: the settings leave this node out".to_owned(),
        ClaimState::Unknown => "no such node".to_owned(),
        ClaimState::Over => "over".to_owned(),
    };
    let mut text = format!("{} ({standing})", claim.source);
    if let Some(until) = claim.until.filter(|_| claim.standing != ClaimState::Over) {
        let _ = write!(text, " until {until}");
    }
    if !claim.by.is_empty() {
        let _ = write!(text, ", by {}", claim.by);
    }
    let why = [Some(&claim.reason), claim.evidence.as_ref()];
    let why: Vec<&str> =
        why.into_iter().flatten().map(String::as_str).filter(|why| !why.is_empty()).collect();
    if !why.is_empty() {
        let _ = write!(text, ": {}", why.join(", "));
    }
    text
}

/// The claims on a node besides its flag.
fn others(node: &NodeRow) -> impl Iterator<Item = &ClaimRow> {
    let flag = node.flag.as_ref().map(|flag| flag.origin.source());
    node.claims.iter().filter(move |claim| Some(claim.source.as_str()) != flag)
}

/// The text of a node's flag and of the other claims on the node. `None` where there are none.
pub(super) fn all_text(node: &NodeRow) -> Option<String> {
    let texts: Vec<String> =
        node.flag.as_ref().map(flag_text).into_iter().chain(others(node).map(claim_text)).collect();
    (!texts.is_empty()).then(|| texts.join("; "))
}

/// The lines for all flagged and claimed nodes: the name and the text of each line. `source`: the name of the source of nodes.
pub(super) fn held_lines(
    nodes: &[NodeRow],
    flags_unknown: &BTreeMap<NodeName, FlagRow>,
    claims_unknown: &BTreeMap<NodeName, Vec<ClaimRow>>,
    source: &str,
) -> Vec<(&'static str, String)> {
    let mut lines: Vec<_> = of_unknown_flags(flags_unknown, source).collect();
    if flags_unknown.is_empty() && nodes.iter().all(|node| node.flag.is_none()) {
        lines.push(("Flagged", "none".to_owned()));
    }
    for node in nodes {
        let flag = node.flag.as_ref().map(|flag| ("Flagged", flag_text(flag)));
        let mut claims = others(node).map(|claim| ("Claimed", claim_text(claim)));
        let Some((name, first)) = flag.or_else(|| claims.next()) else { continue };
        lines.push((name, format!("{} ({}): {first}", node.name, node.action)));
        lines.extend(claims.map(|(_, more)| ("", more)));
    }
    lines.extend(of_unknown_claims(claims_unknown, source));
    lines
}

fn of_unknown_flags(
    flags: &BTreeMap<NodeName, FlagRow>,
    source: &str,
) -> impl Iterator<Item = (&'static str, String)> {
    flags
        .iter()
        .map(move |(node, flag)| ("Flagged", format!("{node} (not in {source}): {}", flag_text(flag))))
}

fn of_unknown_claims(
    claims: &BTreeMap<NodeName, Vec<ClaimRow>>,
    source: &str,
) -> impl Iterator<Item = (&'static str, String)> {
    let of_each = claims.iter().flat_map(|(node, claims)| claims.iter().map(move |claim| (node, claim)));
    of_each.map(move |(node, claim)| ("Claimed", format!("{node} (not in {source}): {}", claim_text(claim))))
}

/// The lines for flagged and claimed nodes that the view does not have.
pub(super) fn unknown_lines(
    flags: &BTreeMap<NodeName, FlagRow>,
    claims: &BTreeMap<NodeName, Vec<ClaimRow>>,
    source: &str,
) -> Vec<(&'static str, String)> {
    of_unknown_flags(flags, source).chain(of_unknown_claims(claims, source)).collect()
}

/// Whether there is a claim that no person made.
pub(super) fn has_automatic(nodes: &[NodeRow], claims_unknown: &BTreeMap<NodeName, Vec<ClaimRow>>) -> bool {
    let mut claims = nodes.iter().flat_map(|node| &node.claims).chain(claims_unknown.values().flatten());
    claims.any(|claim| claim.cause != ClaimCause::Operator)
}

/// The text of what is done about claims that no person made.
pub(super) fn automatic_text(auto: Auto, limit: &str) -> String {
    format!(
        "{auto}, at most {limit} of all nodes, of each zone and of each pool (claims that no person made)"
    )
}

#[cfg(test)]
mod tests {
    use jiff::Timestamp;

    use super::*;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    /// The source of nodes, by any name.
    fn source() -> Origin {
        Origin::Source("lists".to_owned())
    }

    fn flag(origin: Origin, remaining_seconds: Option<u64>, reason: &str) -> FlagRow {
        let until = remaining_seconds.map(|left| at(left as i64));
        FlagRow {
            origin,
            set_by: "the lists".to_owned(),
            by: String::new(),
            reason: reason.to_owned(),
            since: at(0),
            remaining_seconds,
            until,
        }
    }

    fn claim(source: &str, cause: ClaimCause, standing: ClaimState) -> ClaimRow {
        ClaimRow {
            source: source.to_owned(),
            cause,
            by: String::new(),
            reason: String::new(),
            evidence: None,
            since: at(0),
            until: None,
            standing,
            withheld_by: Vec::new(),
        }
    }

    fn node(flag: Option<FlagRow>, claims: &[ClaimRow]) -> NodeRow {
        NodeRow {
            name: "b".to_owned(),
            address: Some([10, 0, 0, 2].into()),
            addresses: vec![[10, 0, 0, 2].into()],
            zone: None,
            pool: None,
            index: 1,
            generation: 1,
            backends: 0,
            own: false,
            action: crate::report::NodeAction::Refuse,
            exempt: 0,
            flag,
            claims: claims.to_vec(),
        }
    }

    #[test]
    fn a_flag_says_who_set_it_for_how_long_and_why() {
        for (flag, text) in [
            (flag(Origin::Cli, None, ""), "flagged until unflagged"),
            (flag(Origin::Cli, Some(90), "disk\n"), "flagged, 1m 30s left: disk\\n"),
            (flag(source(), None, "disk"), "flagged by the lists: disk"),
            (flag(source(), Some(5), ""), "flagged by the lists, 5s left"),
        ] {
            assert_eq!(flag_text(&flag), text);
        }
        let by = |by: &str, left| FlagRow { by: by.to_owned(), ..flag(Origin::Cli, left, "disk") };
        for (flag, text) in [
            (by("root", None), "flagged by root until unflagged: disk"),
            (by("root (sudo by al\nice)", Some(5)), "flagged by root (sudo by al\\nice), 5s left: disk"),
        ] {
            assert_eq!(flag_text(&flag), text);
        }
    }

    #[test]
    fn a_claim_says_how_it_stands() {
        let hung = |standing| claim("hung", ClaimCause::Hung, standing);
        let external = ClaimRow {
            by: "npd".to_owned(),
            reason: "KernelDeadlock".to_owned(),
            until: Some(at(60)),
            ..claim("external:cloud", ClaimCause::External, ClaimState::Observed)
        };
        let whole = ClaimRow {
            withheld_by: vec![ScopeRow::AllNodes, ScopeRow::Zone("x".to_owned())],
            reason: "stalled".to_owned(),
            evidence: Some("12 answers owed".to_owned()),
            ..hung(ClaimState::Withheld)
        };
        let over = ClaimRow { until: Some(at(0)), ..claim("lists", ClaimCause::Operator, ClaimState::Over) };
        for (claim, text) in [
            (hung(ClaimState::Enforced), "hung (enforced)"),
            (external, "external:cloud (observed) until 1970-01-01T00:01:00Z, by npd: KernelDeadlock"),
            (whole, "hung (withheld: all nodes, zone x): stalled, 12 answers owed"),
            (hung(ClaimState::Off), "hung (not carried out: --auto off)"),
            (hung(ClaimState::Unknown), "hung (no such node)"),
            (over, "lists (over)"),
        ] {
            assert_eq!(claim_text(&claim), text);
        }
    }

    #[test]
    fn what_else_is_claimed_stands_behind_the_flag() {
        let cli = claim("cli", ClaimCause::Operator, ClaimState::Enforced);
        let file = claim("lists", ClaimCause::Operator, ClaimState::Enforced);
        let hung = claim("hung", ClaimCause::Hung, ClaimState::Observed);
        let flagged = |origin| Some(flag(origin, None, ""));
        assert_eq!(all_text(&node(None, &[])), None);
        let text = |flag, claims: &[ClaimRow]| all_text(&node(flag, claims)).unwrap();
        // The claim that is the flag is not told a second time.
        assert_eq!(text(flagged(Origin::Cli), std::slice::from_ref(&cli)), "flagged until unflagged");
        assert_eq!(
            text(flagged(Origin::Cli), &[cli, file.clone(), hung.clone()]),
            "flagged until unflagged; lists (enforced); hung (observed)"
        );
        assert_eq!(text(flagged(source()), &[file, hung.clone()]), "flagged by the lists; hung (observed)");
        assert_eq!(text(None, &[hung]), "hung (observed)");
    }

    #[test]
    fn each_node_has_its_lines() {
        let none = BTreeMap::new();
        let flags_unknown = BTreeMap::from([("y".into(), flag(Origin::Cli, None, "disk"))]);
        let hung = claim("hung", ClaimCause::Hung, ClaimState::Observed);
        let unreachable = claim("unreachable", ClaimCause::Unreachable, ClaimState::Observed);
        let claims_unknown =
            BTreeMap::from([("z".into(), vec![claim("hung", ClaimCause::Hung, ClaimState::Unknown)])]);
        let lines = |nodes: &[NodeRow],
                     flags: &BTreeMap<NodeName, FlagRow>,
                     claims: &BTreeMap<NodeName, Vec<ClaimRow>>| {
            let lines = held_lines(nodes, flags, claims, "the source of nodes");
            lines.iter().map(|(name, text)| format!("{name}|{text}")).collect::<Vec<_>>()
        };
        assert_eq!(lines(&[], &none, &BTreeMap::new()), ["Flagged|none"]);
        let cli = claim("cli", ClaimCause::Operator, ClaimState::Enforced);
        let both = node(Some(flag(Origin::Cli, None, "")), &[cli.clone(), hung.clone(), unreachable.clone()]);
        let found = node(None, &[hung, unreachable]);
        assert_eq!(
            lines(&[both.clone(), found.clone()], &flags_unknown, &claims_unknown),
            [
                "Flagged|y (not in the source of nodes): flagged until unflagged: disk",
                "Flagged|b (refuse): flagged until unflagged",
                "|hung (observed)",
                "|unreachable (observed)",
                "Claimed|b (refuse): hung (observed)",
                "|unreachable (observed)",
                "Claimed|z (not in the source of nodes): hung (no such node)",
            ]
        );
        // A claim alone is no flag.
        assert_eq!(lines(std::slice::from_ref(&found), &none, &BTreeMap::new())[0], "Flagged|none");
        let flagged = node(Some(flag(Origin::Cli, None, "")), &[cli]);
        assert!(!has_automatic(&[flagged], &BTreeMap::new()));
        assert!(has_automatic(&[both], &BTreeMap::new()) && has_automatic(&[], &claims_unknown));
        assert_eq!(
            automatic_text(Auto::Observe, "1/3"),
            "observe, at most 1/3 of all nodes, of each zone and of each pool (claims that no person made)"
        );
    }
}
