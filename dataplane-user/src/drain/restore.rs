use std::collections::BTreeMap;

use super::Tables;
use crate::{
    ipvs::{self, Change, ChangeOutcome},
    ledger::{Entry, Pair},
    plan::drain::undo,
};

/// Changes made at once.
const BATCH: usize = 256;

/// The outcome of a restore.
#[derive(Debug, Default)]
pub struct Restored {
    /// Changes made.
    pub changes: usize,
    /// The pairs that could not be restored, with the kernel's error number where there is one.
    pub left: BTreeMap<Pair, Option<i32>>,
}

/// Restores everything that the ledger names, and looks again until all of it is as it was, or somebody else's.
///
/// # Errors
/// Where the tables cannot be read or changed at all.
pub fn restore(tables: &mut impl Tables, entries: &BTreeMap<Pair, Entry>) -> Result<Restored, ipvs::Error> {
    let mut restored = Restored::default();
    let mut left: BTreeMap<Pair, Option<i32>> = entries.keys().map(|pair| (*pair, None)).collect();
    // The later looks are for what others changed in between.
    for _ in 0..3 {
        let work = work(tables, entries, &left)?;
        left.retain(|pair, _| work.iter().any(|(wanted, _)| wanted == pair));
        if work.is_empty() {
            break;
        }
        for batch in work.chunks(BATCH) {
            let changes: Vec<Change> = batch.iter().filter_map(|(_, change)| change.clone()).collect();
            let applied = tables.apply(&changes);
            restored.changes += changes.len();
            let mut outcomes = applied.outcomes.into_iter();
            for (pair, change) in batch {
                if change.is_none() {
                    continue;
                }
                match outcomes.next().unwrap_or(ChangeOutcome::Unknown) {
                    ChangeOutcome::Done | ChangeOutcome::NoService | ChangeOutcome::NoDestination => {
                        left.remove(pair);
                    }
                    ChangeOutcome::Refused(errno) => drop(left.insert(*pair, Some(errno))),
                    ChangeOutcome::Exists | ChangeOutcome::Unknown => {}
                }
            }
            if let Some(failure) = applied.failure {
                return Err(failure);
            }
        }
    }
    restored.left = left;
    Ok(restored)
}

/// The changes that are to be made. Pairs that are settled are not in it; pairs whose service could not be read have no change.
fn work(
    tables: &mut impl Tables,
    entries: &BTreeMap<Pair, Entry>,
    left: &BTreeMap<Pair, Option<i32>>,
) -> Result<Vec<(Pair, Option<Change>)>, ipvs::Error> {
    let mut work = Vec::new();
    // Entries are in order of their services.
    let mut pairs = left.keys().copied().peekable();
    while let Some(first) = pairs.next() {
        let mut of_service = vec![first];
        while let Some(pair) = pairs.next_if(|pair| pair.service == first.service) {
            of_service.push(pair);
        }
        let found = tables.destinations(&first.service)?;
        if found.malformed > 0 || found.incomplete {
            work.extend(of_service.into_iter().map(|pair| (pair, None)));
            continue;
        }
        if found.items.is_empty() && tables.service(&first.service)?.is_none() {
            continue;
        }
        for pair in of_service {
            let there = found.items.iter().find(|destination| destination.address == pair.destination);
            if let Some(change) = entries.get(&pair).and_then(|entry| undo(&pair, entry, there)) {
                work.push((pair, Some(change)));
            }
        }
    }
    Ok(work)
}
