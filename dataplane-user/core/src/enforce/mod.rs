//! The one owner of verdicts: from views, claims and the results of earlier writes it decides on the next thing to do. Pure: no
//! clock, no effects.
//!
//! [`Enforcer`] is the machine. It takes [`Input`]s and gives [`Output`]s. Everybody else reads the [`World`].

mod age;
mod bearers;
mod bridge;
mod build;
mod changes;
mod claim;
mod claims;
mod decision;
mod differing;
mod exempt;
mod failures;
mod gone;
mod held;
mod in_maps;
mod index;
mod input;
mod judge;
mod keys;
mod limits;
mod machine;
mod named;
mod now;
mod output;
mod pending;
mod place;
mod ports;
mod replaced;
mod requests;
mod scope;
mod settings;
mod shared;
mod sharing;
mod shortage;
mod shown;
mod snapshot;
mod standing;
mod steps;
mod take;
mod untied;
mod view;
mod views;
mod world;

#[cfg(test)]
mod tests;

pub use bearers::{Bearer, Bearers};
pub use claim::{Claim, ClaimCause, ClaimSource, First, NewClaim, Saved};
pub use differing::Differing;
pub use gone::Gone;
pub use in_maps::InMaps;
pub use index::{ExemptIndex, Reindexed, Target};
pub use input::{Change, Input};
pub use judge::{Judge, JudgedNode};
pub use limits::{WITHHELD_FOR, Withheld};
pub use machine::Enforcer;
pub use now::{Epoch, Now, Ticket};
pub use output::{Changed, Done, Event, Output, Refusal, RequestResult, SaveState, TablesPlan};
pub use ports::ExemptPorts;
pub use scope::LimitScope;
pub use settings::{Auto, ChangedBy, EnforcerSettings, Share};
pub use shared::{SharedPause, SharedSettings};
pub use shown::{ShownClaims, ToSave};
pub use standing::{ShownClaim, Standing};
pub use view::{Delta, Member, NewView};
pub use world::{Danger, World};
