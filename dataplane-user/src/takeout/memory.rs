//! What the guard remembers of the ledger.
use std::{
    collections::BTreeMap,
    fs,
    os::unix::fs::MetadataExt as _,
    path::Path,
    time::{Duration, Instant},
};

use crate::ledger::{Entry, Ledger, Pair};

/// How often a ledger that changes is read, to be remembered.
const REMEMBER_EVERY: Duration = Duration::from_secs(1);
/// A ledger of at most so many bytes is read whenever it has changed: what says that nothing is ours any more is short.
const SHORT: u64 = 4_096;

/// What stood in the ledger when it was last looked at: somebody may remove the run folder, which takes nothing back in the kernel.
#[derive(Debug, Default)]
pub(super) struct Memory {
    entries: BTreeMap<Pair, Entry>,
    /// Device, inode, length and time of the last change of the file that they were read from.
    of: Option<(u64, u64, u64, i64, i64)>,
    looked: Option<Instant>,
    gone: Option<Instant>,
}

impl Memory {
    /// Looks whether the ledger is there and has changed. Gives since when it is gone, where something stood in it.
    pub(super) fn look(&mut self, run_dir: &Path) -> Option<Instant> {
        let Ok(meta) = fs::symlink_metadata(Ledger::path(run_dir)) else {
            let since = *self.gone.get_or_insert_with(Instant::now);
            return (!self.entries.is_empty()).then_some(since);
        };
        self.gone = None;
        let stamp = (meta.dev(), meta.ino(), meta.len(), meta.mtime(), meta.mtime_nsec());
        let due = meta.len() <= SHORT || self.looked.is_none_or(|looked| looked.elapsed() >= REMEMBER_EVERY);
        if due
            && self.of != Some(stamp)
            && let Ok(loaded) = Ledger::read(run_dir)
        {
            self.looked = Some(Instant::now());
            self.of = Some(stamp);
            if loaded.unread().is_none() {
                self.entries = loaded.entries;
            }
        }
        None
    }

    pub(super) fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Puts back what stood there by `put_back`, which gives what could not be. All else is forgotten: what becomes of it from now on is others'.
    ///
    /// # Errors
    /// As `put_back`; nothing is forgotten then.
    pub(super) fn put_back<E>(
        &mut self,
        put_back: impl FnOnce(&BTreeMap<Pair, Entry>) -> Result<BTreeMap<Pair, Option<i32>>, E>,
    ) -> Result<BTreeMap<Pair, Option<i32>>, E> {
        let left = put_back(&self.entries)?;
        self.entries.retain(|pair, _| left.contains_key(pair));
        Ok(left)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        ipvs::{Destination, Family, ServiceKey},
        ledger::Phase,
    };

    fn entries(of: std::ops::Range<u8>) -> BTreeMap<Pair, Entry> {
        let service = ServiceKey::Mark { family: Family::V4, mark: 7 };
        let one = |last| {
            let original = Destination::new(([10, 244, 2, last], 8080).into(), 1);
            let pair = Pair { service, destination: original.address };
            (pair, Entry { node: "node-b".into(), phase: Phase::Lowered, original })
        };
        of.map(one).collect()
    }

    /// As it is within the second after `unflag`.
    #[test]
    fn that_nothing_is_ours_is_remembered_at_once() {
        let dir = tempfile::tempdir().unwrap();
        let (mut ledger, _) = Ledger::open(dir.path()).unwrap();
        let mut memory = Memory::default();
        // One line or many.
        for count in [1, 200] {
            ledger.rewrite(&entries(0..count)).unwrap();
            memory.looked = None;
            assert_eq!(memory.look(dir.path()), None);
            assert_eq!(memory.entries.len(), usize::from(count));
            ledger.rewrite(&BTreeMap::new()).unwrap();
            assert_eq!(memory.look(dir.path()), None);
            assert!(memory.is_empty());
        }
        fs::remove_file(Ledger::path(dir.path())).unwrap();
        assert_eq!(memory.look(dir.path()), None, "nothing stood in it");
    }

    #[test]
    fn what_was_put_back_is_forgotten() {
        let dir = tempfile::tempdir().unwrap();
        let (mut ledger, _) = Ledger::open(dir.path()).unwrap();
        ledger.rewrite(&entries(0..3)).unwrap();
        let mut memory = Memory::default();
        assert_eq!(memory.look(dir.path()), None);
        fs::remove_file(Ledger::path(dir.path())).unwrap();
        let since = memory.look(dir.path()).unwrap();
        assert_eq!(memory.look(dir.path()), Some(since));
        // Nothing could be done at first, then all but one.
        memory.put_back(|_| Err(())).unwrap_err();
        assert_eq!(memory.entries, entries(0..3));
        let (stays, _) = entries(2..3).pop_first().unwrap();
        let left = memory.put_back(|all| {
            assert_eq!(*all, entries(0..3));
            Ok::<_, ()>([(stays, Some(12))].into())
        });
        assert_eq!(left, Ok([(stays, Some(12))].into()));
        assert_eq!(memory.look(dir.path()), Some(since), "one is left");
        memory
            .put_back(|all| Ok::<_, ()>(if *all == entries(2..3) { BTreeMap::new() } else { panic!() }))
            .unwrap();
        assert_eq!(memory.look(dir.path()), None, "what others do from now on stays");
    }
}
