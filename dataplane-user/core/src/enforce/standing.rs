//! How a claim stands, for whoever asks.

use super::{claim::Claim, scope::LimitScope};

/// What is done about a claim.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Standing {
    /// Its node is cut for it.
    Enforced,
    /// What it would cut is counted.
    Observed,
    /// It exceeds the limits of these scopes.
    Withheld(Box<[LimitScope]>),
    /// Automatic claims are only shown (`--auto off`).
    Off,
    /// There is no such node in the view.
    Unknown,
    /// It is over, and stands in the file still.
    Over,
}

/// A claim and how it stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ShownClaim {
    /// The claim.
    pub claim: Claim,
    /// What is done about it.
    pub standing: Standing,
}
