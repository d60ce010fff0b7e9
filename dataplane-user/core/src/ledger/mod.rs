//! The lines of the ledger: which IPVS destinations are ours to restore.

mod record;

pub use record::{Entry, Pair, Phase, Record};
