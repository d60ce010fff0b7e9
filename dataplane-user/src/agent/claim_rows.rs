//! Claims and limits as the rows that the CLI prints.

use jiff::Timestamp;

use crate::{
    cluster::SourceName,
    enforce::{Claim, ClaimSource, Now, Share, ShownClaim, Standing, WITHHELD_FOR, Withheld},
    report::{ClaimRow, ClaimState, FlagRow, Origin, WithheldRow},
};

/// A time without its fraction of a second: no reader wants a flag's nanoseconds.
pub(super) fn whole_seconds(at: Timestamp) -> Timestamp {
    Timestamp::from_second(at.as_second()).unwrap_or(at)
}

/// When a claim ends, by the wall clock of this moment.
fn until(claim: &Claim, now: Now) -> Option<Timestamp> {
    claim.remaining(now).and_then(|left| now.wall.checked_add(left).ok()).map(whole_seconds)
}

/// A flag as a row: a person's claim, or that of an object. `None` for automatic claims. `of`: the source of nodes.
pub(super) fn flag_row(claim: &Claim, of: SourceName, now: Now) -> Option<FlagRow> {
    let (origin, set_by) = match claim.source {
        ClaimSource::Cli => (Origin::Cli, "nodefence flag".to_owned()),
        ClaimSource::File => (Origin::Source(of.key().to_owned()), of.to_string()),
        ClaimSource::Object { ref name, .. } => (Origin::Source(object(name)), format!("NodeFlag {name}")),
        ClaimSource::External(_) | ClaimSource::Hung | ClaimSource::Unreachable => return None,
    };
    Some(FlagRow {
        origin,
        set_by,
        by: claim.by.to_string(),
        reason: claim.reason.to_string(),
        since: whole_seconds(claim.since),
        remaining_seconds: claim.remaining(now).map(|left| left.as_secs()),
        until: until(claim, now),
    })
}

/// The flag that a node bears: the CLI's before that of the cluster's source, and that before those of objects.
pub(super) fn flag_of(claims: &[ShownClaim], of: SourceName, now: Now) -> Option<FlagRow> {
    // Claims are in the order of their sources.
    claims.iter().filter(|shown| !shown.claim.ended(now)).find_map(|shown| flag_row(&shown.claim, of, now))
}

/// Whether any of the claims holds. Claims of the cluster's source that are over are still among them.
pub(super) fn any_holds(claims: &[ShownClaim], now: Now) -> bool {
    claims.iter().any(|shown| !shown.claim.ended(now))
}

/// All claims on a node.
pub(super) fn claim_rows(claims: &[ShownClaim], of: SourceName, now: Now) -> Vec<ClaimRow> {
    claims.iter().map(|shown| claim_row(shown, of, now)).collect()
}

/// The claims on a node that no person made.
pub(super) fn automatic_rows(claims: &[ShownClaim], of: SourceName, now: Now) -> Vec<ClaimRow> {
    let automatic = claims.iter().filter(|shown| shown.claim.source.automatic());
    automatic.map(|shown| claim_row(shown, of, now)).collect()
}

fn claim_row(shown: &ShownClaim, of: SourceName, now: Now) -> ClaimRow {
    let ShownClaim { claim, standing } = shown;
    // The claim may have ended since the claims were last looked through.
    let standing = if claim.ended(now) { &Standing::Over } else { standing };
    let withheld_by = match standing {
        Standing::Withheld(scopes) => scopes.iter().map(Into::into).collect(),
        _ => Vec::new(),
    };
    ClaimRow {
        source: source_name(&claim.source, of),
        cause: claim.source.cause(),
        by: claim.by.to_string(),
        reason: claim.reason.to_string(),
        evidence: claim.evidence.as_ref().map(ToString::to_string),
        since: whole_seconds(claim.since),
        until: until(claim, now),
        standing: state(standing),
        withheld_by,
    }
}

/// The name of a claim's source, in rows and in the log.
pub(super) fn source_name(source: &ClaimSource, of: SourceName) -> String {
    match source {
        ClaimSource::Cli => Origin::Cli.source().to_owned(),
        ClaimSource::File => of.key().to_owned(),
        ClaimSource::Object { name, .. } => object(name),
        ClaimSource::External(name) => format!("external:{name}"),
        ClaimSource::Hung => "hung".to_owned(),
        ClaimSource::Unreachable => "unreachable".to_owned(),
    }
}

/// The name of a claim's source where that is an object of this name.
fn object(name: &str) -> String {
    format!("nodeflag:{name}")
}

const fn state(standing: &Standing) -> ClaimState {
    match standing {
        Standing::Enforced => ClaimState::Enforced,
        Standing::Observed => ClaimState::Observed,
        Standing::Withheld(_) => ClaimState::Withheld,
        Standing::Off => ClaimState::Off,
        Standing::OptedOut => ClaimState::OptedOut,
        Standing::Unknown => ClaimState::Unknown,
        Standing::Over => ClaimState::Over,
    }
}

/// Scopes whose limits are exceeded.
pub(super) fn withheld_rows(withheld: &[Withheld], now: Now) -> Vec<WithheldRow> {
    let row = |withheld: &Withheld| {
        let ago = now.boot.saturating_sub(withheld.since);
        let since = now.wall.checked_sub(ago).unwrap_or(now.wall);
        WithheldRow {
            scope: (&withheld.scope).into(),
            since: whole_seconds(since),
            until: whole_seconds(since.checked_add(WITHHELD_FOR).unwrap_or(since)),
            counted: withheld.counted,
            allowed: withheld.allowed,
        }
    };
    withheld.iter().map(row).collect()
}

/// A share as `--auto-limit` takes it.
pub(super) fn share_text(share: Share) -> String {
    format!("{}/{}", share.part, share.of)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::{
        cluster::FILE,
        enforce::{Auto, ClaimCause, LimitScope},
    };

    fn at(wall: i64, boot: u64) -> Now {
        Now { mono: 0, boot: Duration::from_secs(boot), wall: Timestamp::from_second(wall).unwrap() }
    }

    /// A claim that was raised at a wall clock of 1,000 s and a boot time of 10 s.
    fn shown(source: ClaimSource, lasts: Option<u64>, standing: Standing) -> ShownClaim {
        let claim = Claim {
            source,
            by: "root".into(),
            reason: "disk".into(),
            evidence: None,
            since: Timestamp::from_nanosecond(1_000_900_000_000).unwrap(),
            raised: Duration::from_secs(10),
            ends: lasts.map(|lasts| Duration::from_secs(10 + lasts)),
            until: None,
        };
        ShownClaim { claim, standing }
    }

    #[test]
    fn the_cli_s_flag_goes_before_the_file_s_while_it_holds() {
        let claims = [
            shown(ClaimSource::Cli, Some(60), Standing::Enforced),
            shown(ClaimSource::File, None, Standing::Enforced),
            shown(ClaimSource::Hung, Some(90), Standing::Observed),
        ];
        let second = |second| Timestamp::from_second(second).unwrap();
        let expected = FlagRow {
            origin: Origin::Cli,
            set_by: "nodefence flag".to_owned(),
            by: "root".to_owned(),
            reason: "disk".to_owned(),
            since: second(1_000),
            remaining_seconds: Some(40),
            // A wall clock that was set back by 500 s meanwhile.
            until: Some(second(560)),
        };
        assert_eq!(flag_of(&claims, FILE, at(520, 30)), Some(expected));
        let file = flag_of(&claims, FILE, at(1_060, 70)).unwrap();
        assert_eq!((file.origin.source(), file.remaining_seconds, file.until), (FILE.key(), None, None));
        assert_eq!(file.set_by, FILE.to_string());
        assert_eq!(flag_of(&claims[2..], FILE, at(1_000, 10)), None);
        assert_eq!(flag_row(&claims[2].claim, FILE, at(1_000, 10)), None);
        assert!(any_holds(&claims[2..], at(1_000, 99)) && !any_holds(&claims[2..], at(1_000, 100)));
    }

    fn object_claim(name: &str, forced: bool) -> ClaimSource {
        ClaimSource::Object { name: name.into(), cause: ClaimCause::External, forced, uid: None }
    }

    #[test]
    fn each_claim_has_its_row() {
        let scopes = [LimitScope::Whole, LimitScope::Zone("x".into()), LimitScope::Pool("front".into())];
        let mut hung = shown(ClaimSource::Hung, Some(30), Standing::Withheld(scopes.into()));
        hung.claim.evidence = Some("12 answers owed".into());
        let claims = [
            shown(ClaimSource::Cli, None, Standing::Enforced),
            shown(ClaimSource::File, Some(5), Standing::Enforced),
            shown(object_claim("one", true), Some(30), Standing::OptedOut),
            shown(ClaimSource::External("cloud".into()), Some(30), Standing::Off),
            hung,
            shown(ClaimSource::Unreachable, Some(30), Standing::Unknown),
        ];
        let rows = claim_rows(&claims, FILE, at(1_010, 20));
        assert_eq!(
            serde_json::to_value(&rows[4]).unwrap(),
            serde_json::json!({
                "source": "hung",
                "cause": "hung",
                "by": "root",
                "reason": "disk",
                "evidence": "12 answers owed",
                "since": "1970-01-01T00:16:40Z",
                "until": "1970-01-01T00:17:10Z",
                "standing": "withheld",
                "withheld_by": [{"kind": "all_nodes"}, {"kind": "zone", "name": "x"}, {"kind": "pool", "name": "front"}],
            })
        );
        let told: Vec<_> = rows.iter().map(|row| (row.source.as_str(), row.cause, row.standing)).collect();
        assert_eq!(
            told,
            [
                ("cli", ClaimCause::Operator, ClaimState::Enforced),
                ("cluster-file", ClaimCause::Operator, ClaimState::Over),
                ("nodeflag:one", ClaimCause::External, ClaimState::OptedOut),
                ("external:cloud", ClaimCause::External, ClaimState::Off),
                ("hung", ClaimCause::Hung, ClaimState::Withheld),
                ("unreachable", ClaimCause::Unreachable, ClaimState::Unknown),
            ]
        );
        assert_eq!(automatic_rows(&claims, FILE, at(1_010, 20)), rows[3..]);
        // A claim that is over is withheld by no limit.
        let over = claim_rows(&claims[4..5], FILE, at(1_040, 40)).remove(0);
        assert_eq!((over.standing, over.withheld_by.len()), (ClaimState::Over, 0));
        let observed = claim_row(&shown(ClaimSource::Hung, None, Standing::Observed), FILE, at(1_010, 20));
        assert_eq!(observed.standing, ClaimState::Observed);
    }

    /// Programs know flags of the cluster file by `cluster-file`.
    #[test]
    fn what_comes_with_the_view_is_called_after_its_source() {
        let claims = [shown(ClaimSource::File, None, Standing::Enforced)];
        let row = |of| serde_json::to_value(flag_of(&claims, of, at(1_000, 10))).unwrap();
        let (file, other) = (row(FILE), row(SourceName::default()));
        assert_eq!((&file["origin"], &file["set_by"]), (&"cluster-file".into(), &"the cluster file".into()));
        assert_eq!((&other["origin"], &other["set_by"]), (&"source".into(), &"the source of nodes".into()));
        assert_eq!(claim_rows(&claims, SourceName::default(), at(1_000, 10))[0].source, "source");
    }

    #[test]
    fn a_scope_that_is_withheld_says_since_when_and_for_how_long() {
        let withheld = Withheld {
            scope: LimitScope::Zone("x".into()),
            since: Duration::from_secs(10),
            counted: 3,
            allowed: 2,
        };
        let row = withheld_rows(&[withheld], at(1_020, 30)).remove(0);
        assert_eq!(
            serde_json::to_value(row).unwrap(),
            serde_json::json!({
                "scope": {"kind": "zone", "name": "x"},
                "since": "1970-01-01T00:16:40Z",
                "until": "1970-01-01T00:21:40Z",
                "counted": 3,
                "allowed": 2,
            })
        );
    }

    #[test]
    fn what_is_done_about_automatic_claims_reads_as_on_the_command_line() {
        assert_eq!(
            [Auto::Off, Auto::Observe, Auto::Enforce].map(|auto| auto.to_string()),
            ["off", "observe", "enforce"]
        );
        assert_eq!(share_text(Share::default()), "1/3");
    }
}
