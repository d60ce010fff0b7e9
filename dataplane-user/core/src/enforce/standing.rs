//! How a claim stands.

use super::{claim::Claim, scope::LimitScope};

/// What is done about a claim.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Standing {
    /// Its node is cut.
    Enforced,
    /// Packets that it would cut are counted.
    Observed,
    /// It exceeds the limits of these scopes.
    Withheld(Box<[LimitScope]>),
    /// Automatic claims are only shown (`--auto off`).
    Off,
    /// The node is never cut, as the settings for all agents say.
    OptedOut,
    /// There is no such node in the view.
    Unknown,
    /// It is over, and still stands in the file.
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
