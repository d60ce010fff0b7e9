//! The decision that follows from the claims on a node.

use std::time::Duration;

use super::{
    now::Now,
    standing::{ShownClaim, Standing},
};
use crate::plan::Mode;

/// How the claims on a node are carried out, and until when.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Decision {
    pub(super) mode: Mode,
    /// When the last of the claims that led to this ends (CLOCK_MONOTONIC, ns); `None` where one of them has no end.
    pub(super) ends: Option<u64>,
}

impl Decision {
    /// The decision for these claims and how they stand; `None` where none is carried out.
    pub(super) fn of(shown: &[ShownClaim], now: Now) -> Option<Self> {
        [Mode::Enforce, Mode::Observe].into_iter().find_map(|mode| follow(shown, mode, now))
    }
}

/// The decision for those claims that are carried out in this mode; `None` where there are none.
fn follow(shown: &[ShownClaim], mode: Mode, now: Now) -> Option<Decision> {
    let standing = match mode {
        Mode::Enforce => Standing::Enforced,
        Mode::Observe => Standing::Observed,
    };
    let carried_out = || shown.iter().filter(|shown| shown.standing == standing).map(|shown| &shown.claim);
    carried_out().next()?;
    let left: Option<Vec<Duration>> = carried_out().map(|claim| claim.remaining(now)).collect();
    Some(Decision { mode, ends: left.and_then(|left| left.into_iter().max()).map(|left| now.later(left)) })
}
