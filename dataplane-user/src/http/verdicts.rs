//! The flagged nodes that metrics name, and how many they do not name. Pure.

use serde::Serialize;

use crate::report::{ClaimRow, ClaimState, NodeAction, NodeRow};

/// How many flagged nodes have a series of their own.
pub(super) const LISTED: usize = 50;

/// A flagged node.
pub(super) struct Verdict {
    pub(super) node: String,
    /// The cause and the effect of the claim that counts most.
    pub(super) cause: String,
    pub(super) standing: String,
}

/// The flagged nodes that are named, those that are cut first, and the number of the others.
pub(super) fn verdicts(flagged: &[NodeRow]) -> (Vec<Verdict>, usize) {
    let mut rows: Vec<&NodeRow> = flagged.iter().collect();
    rows.sort_by_key(|row| (rank_of_action(row.action), &row.name));
    let listed = rows.iter().take(LISTED).map(|row| {
        let claim = row.claims.iter().min_by_key(|claim| (rank_of_standing(claim.standing), claim.cause));
        let word = |of: fn(&ClaimRow) -> String| claim.map(of).unwrap_or_default();
        Verdict {
            node: row.name.clone(),
            cause: word(|claim| json_word(&claim.cause)),
            standing: word(|claim| json_word(&claim.standing)),
        }
    });
    (listed.collect(), rows.len().saturating_sub(LISTED))
}

/// A value's word in the JSON of `status`.
pub(super) fn json_word(value: &impl Serialize) -> String {
    let value = serde_json::to_value(value).ok();
    value.as_ref().and_then(|value| value.as_str()).unwrap_or_default().to_owned()
}

const fn rank_of_action(action: NodeAction) -> u8 {
    match action {
        NodeAction::Refuse | NodeAction::Drop => 0,
        NodeAction::Observe => 1,
        NodeAction::Pass | NodeAction::Gone => 2,
    }
}

const fn rank_of_standing(standing: ClaimState) -> u8 {
    match standing {
        ClaimState::Enforced => 0,
        ClaimState::Observed => 1,
        ClaimState::Withheld => 2,
        ClaimState::Off | ClaimState::OptedOut => 3,
        ClaimState::Unknown => 4,
        ClaimState::Over => 5,
    }
}
