//! Carries out on the IPVS tables what [`crate::plan::drain`] plans, and keeps the ledger. The guard restores what has lapsed. Knows
//! nothing of the agent.

mod book;
mod drive;
mod ending;
mod ends;
mod guard;
mod hands;
mod kernel;
mod lapsed;
mod lease;
mod restore;
#[cfg(test)]
mod tests;
#[cfg(test)]
mod world;

pub use book::{GuardKind, Ledgers};
pub use drive::{Drive, Failure, Round};
pub use ending::{Reopened, RestoredAtEnd, Surroundings, restore_within};
pub use ends::Ends;
pub use guard::{GuardError, guard, guard_child, spawn_guard};
pub use hands::{Book, Tables};
pub use kernel::{Kernel, Known, drain_settings, pair_of};
pub use lapsed::{restore_all, restore_entries, restore_named};
pub use lease::holds;
pub use restore::{Restored, restore};
