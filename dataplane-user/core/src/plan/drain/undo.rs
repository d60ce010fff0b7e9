use crate::{
    ipvs::{Change, Destination},
    ledger::{Entry, Pair, Phase},
};

/// The change that restores a drained destination; `None` where there is nothing to do: it is as it was, or others have changed it.
/// `found`: the destination as it is now. Its service is there.
///
/// Only a weight of 0 and a deletion are undone: a weight that is not 0 any more was set by others, and a destination that is
/// missing although we left one was removed by others.
pub fn undo(pair: &Pair, entry: &Entry, found: Option<&Destination>) -> Option<Change> {
    let original = &entry.original;
    match found {
        Some(found) if found.weight == 0 && original.weight != 0 => {
            let restored = Destination { weight: original.weight, ..found.clone() };
            Some(Change::SetDestination(pair.service, restored))
        }
        None if entry.phase == Phase::Deleted => Some(Change::NewDestination(pair.service, original.clone())),
        _ => None,
    }
}
