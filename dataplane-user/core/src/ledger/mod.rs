//! What of the IPVS tables is ours to put back: the lines of the ledger.

mod record;

pub use record::{Entry, Pair, Phase, Record};
