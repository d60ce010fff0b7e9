//! Works what [`crate::plan::takeout`] plans on the IPVS tables and keeps the ledger; the guard, which puts back what has lapsed. Knows nothing of
//! the agent.

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
pub use ending::{PutBack, Reopened, Surroundings, put_back_within};
pub use ends::Ends;
pub use guard::{GuardError, guard, guard_child, spawn_guard};
pub use hands::{Book, Tables};
pub use kernel::{Kernel, Known, ground, pair_of};
pub use lapsed::{put_all_back, put_back, put_back_named};
pub use lease::holds;
pub use restore::{Restored, restore};
