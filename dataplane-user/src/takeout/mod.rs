//! Works what [`crate::plan::takeout`] plans on the IPVS tables, and keeps the ledger. Knows nothing of the agent, and works on traits: tests stop it
//! at every step.

mod drive;
mod restore;
#[cfg(test)]
mod tests;
#[cfg(test)]
mod world;

pub use drive::{Book, Drive, Failure, Round, Tables};
pub use restore::{Restored, restore};
