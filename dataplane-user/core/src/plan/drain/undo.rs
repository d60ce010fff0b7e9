use crate::{
    ipvs::{Change, Destination},
    ledger::{Entry, Pair, Phase},
};

/// What is to be done so that a destination that was drained is as it was; `None`: nothing, it is as it was, or somebody else's by now.
/// `found`: as it is now; the service is there.
///
/// Of what is ours only a weight of 0 and a deletion are taken back: a weight that is not 0 any more was set by others, and a
/// destination that is missing where we left one was removed by them.
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
