//! What of the IPVS tables is ours to restore: the lines of the ledger.

mod record;

pub use record::{Entry, Pair, Phase, Record};
