//! The thread that stores the last good view, and reads it at a start while the source of nodes does not answer. A disk may hang: nothing else
//! waits for this thread, not even the end of the agent.

use std::{
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use super::{
    slot::Slot,
    threads::{Crew, Priority},
};
use crate::{
    cluster::SourceName,
    enforce::Now,
    flags::now,
    last_view::{Loaded, ViewFile},
    source::{Kept, Recaller, Stored},
};

/// How long the lists of the source are waited for before the view that an earlier agent stored is taken.
pub(super) const PATIENCE: Duration = Duration::from_secs(5);
/// How often the thread wakes up with nothing to do.
const IDLE: Duration = Duration::from_secs(3600);

/// Work for the thread.
#[derive(Default)]
struct ViewWork {
    /// The source whose view is to be read, and where it goes.
    load: Option<(SourceName, Recaller)>,
    /// All objects, where they are others than the stored ones, and when the source last confirmed them.
    save: Option<(Option<Kept>, Now)>,
    /// Nobody gives the thread any more to do.
    end: bool,
}

impl ViewWork {
    fn is_something(&self) -> bool {
        self.load.is_some() || self.save.is_some() || self.end
    }
}

/// The end by which work reaches the thread. It decides when something is stored.
pub(super) struct ViewStore {
    work: Arc<Slot<ViewWork>>,
    progress: Arc<Progress>,
    /// What is stored is at least this far apart.
    every: Duration,
    /// When something was last handed to the thread.
    last: Option<Instant>,
    /// The revision of the objects that were handed to the thread.
    revision: Option<u64>,
    /// When the source last confirmed these (CLOCK_BOOTTIME).
    confirmed: Duration,
}

/// How far the thread is.
#[derive(Default)]
struct Progress {
    /// The thread has something to store, or is at it.
    is_busy: AtomicBool,
    /// What it had to store could not be stored.
    has_failed: AtomicBool,
}

impl ViewStore {
    /// Starts the thread. `every`: something is stored that often at most.
    ///
    /// # Errors
    /// Where the kernel has no room for the thread.
    pub(super) fn start(run_dir: &Path, every: Duration, crew: &Crew) -> std::io::Result<Self> {
        let work: Arc<Slot<ViewWork>> = Arc::default();
        let progress: Arc<Progress> = Arc::default();
        let keeper = Keeper {
            file: ViewFile::new(run_dir),
            work: Arc::clone(&work),
            progress: Arc::clone(&progress),
            sum: None,
        };
        crew.hand("view-store", Priority::Batch, move || keeper.run())?;
        Ok(Self { work, progress, every, last: None, revision: None, confirmed: Duration::ZERO })
    }

    /// Has the view read that an earlier agent stored. It goes to the source's own end.
    pub(super) fn load(&self, source: SourceName, to: Recaller) {
        self.work.post(|work| work.load = Some((source, to)));
    }

    /// How long it takes until objects of this revision are to be stored. `None` where they are, so that nothing has to wake up for that.
    pub(super) fn due(&self, revision: u64) -> Option<Duration> {
        let is_busy = self.progress.is_busy.load(Ordering::Acquire);
        (self.revision != Some(revision)).then(|| if is_busy { self.every } else { self.left() })
    }

    fn left(&self) -> Duration {
        self.last.map_or(Duration::ZERO, |last| self.every.saturating_sub(last.elapsed()))
    }

    /// Hands the thread what is to be stored, if it is time. `kept` gives all objects, and is asked only where objects of this revision are not stored.
    pub(super) fn store(&mut self, revision: u64, confirmed: Now, kept: impl FnOnce() -> Kept) {
        // A disk that hangs gets no more to do.
        if !self.left().is_zero() || self.progress.is_busy.load(Ordering::Acquire) {
            return;
        }
        if self.progress.has_failed.swap(false, Ordering::AcqRel) {
            self.revision = None;
        }
        if self.revision == Some(revision) && confirmed.boot <= self.confirmed {
            return;
        }
        self.last = Some(Instant::now());
        self.progress.is_busy.store(true, Ordering::Release);
        let objects = (self.revision != Some(revision)).then(kept);
        self.revision = Some(revision);
        self.confirmed = confirmed.boot;
        self.work.post(|work| work.save = Some((objects, confirmed)));
    }
}

/// An agent that is turned off goes on as a process: the thread ends with its work.
impl Drop for ViewStore {
    fn drop(&mut self) {
        self.work.post(|work| work.end = true);
    }
}

struct Keeper {
    file: ViewFile,
    work: Arc<Slot<ViewWork>>,
    progress: Arc<Progress>,
    /// The checksum of the view in the file. `None` where it is not the last one that was to be stored.
    sum: Option<u32>,
}

impl Keeper {
    fn run(mut self) {
        loop {
            let ViewWork { load, save, end } = self.work.take(IDLE, ViewWork::is_something);
            if let Some((source, to)) = load {
                to.recall(self.load(source));
            }
            if let Some((objects, confirmed)) = save {
                self.save(objects, confirmed);
                self.progress.is_busy.store(false, Ordering::Release);
            }
            if end {
                return;
            }
        }
    }

    fn load(&self, source: SourceName) -> Result<Stored, String> {
        match self.file.load(source, now()) {
            Ok(Loaded::View(stored)) => Ok(stored),
            Ok(Loaded::Nothing) => Err(format!("there is no {}", self.file.path().display())),
            Ok(Loaded::Unusable(why)) => Err(why),
            Err(error) => Err(error.to_string()),
        }
    }

    fn save(&mut self, objects: Option<Kept>, confirmed: Now) {
        let saved = match (objects, self.sum.take()) {
            (Some(kept), _) => self.file.save(&kept, confirmed).map(Some),
            (None, Some(sum)) => self.file.confirm(sum, confirmed).map(|()| Some(sum)),
            // The view itself could not be stored. It comes again.
            (None, None) => Ok(None),
        };
        match saved {
            Ok(sum) => self.sum = sum,
            Err(error) => {
                self.progress.has_failed.store(true, Ordering::Release);
                tracing::warn!(
                    event = "view-not-stored",
                    %error,
                    "the last good view was not stored; it is tried again"
                );
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        cluster::{Builder, Change, NodeObject, Rules},
        source::changes,
    };

    const SOURCE: SourceName = SourceName::new("the test", "test");
    const LONG: Duration = Duration::from_secs(3600);
    const LIMIT: Duration = Duration::from_secs(60);

    fn kept() -> Kept {
        let mut builder = Builder::new(Rules::Tolerant);
        builder.apply(Change::Nodes(vec![NodeObject::new("a", vec![[10, 0, 0, 1].into()])]));
        Kept { source: SOURCE, objects: builder.objects(), left_out: Vec::new() }
    }

    fn idle(store: &ViewStore) {
        let begun = Instant::now();
        while store.progress.is_busy.load(Ordering::Acquire) {
            assert!(begun.elapsed() < LIMIT, "it is busy for ever");
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    #[test]
    fn what_is_stored_is_read_and_comes_to_the_sources_end() {
        let dir = tempfile::tempdir().unwrap();
        let (_teller, told) = changes();
        let mut store = ViewStore::start(dir.path(), Duration::ZERO, &Crew::default()).unwrap();
        store.load(SOURCE, told.recaller());
        let recalled = || {
            let begun = Instant::now();
            loop {
                if let Some(recalled) = told.recalled() {
                    return recalled;
                }
                assert!(begun.elapsed() < LIMIT, "nothing came");
                std::thread::sleep(Duration::from_millis(1));
            }
        };
        let nothing = recalled().unwrap_err();
        assert!(nothing.starts_with("there is no ") && nothing.ends_with("view.json"), "{nothing}");
        store.store(1, now(), kept);
        idle(&store);
        store.load(SOURCE, told.recaller());
        assert_eq!(recalled().unwrap().nodes.len(), 1);
    }

    #[test]
    fn nothing_is_stored_too_soon_or_without_news() {
        let dir = tempfile::tempdir().unwrap();
        let mut store = ViewStore::start(dir.path(), LONG, &Crew::default()).unwrap();
        let none = || -> Kept { unreachable!("nobody may ask") };
        assert_eq!(store.due(1), Some(Duration::ZERO));
        store.store(1, now(), kept);
        idle(&store);
        assert_eq!(store.due(1), None);
        assert!(store.due(2).is_some_and(|due| due > LONG / 2));
        // Another revision, too soon.
        store.store(2, now(), none);
        // The same revision, which was not confirmed again.
        store.every = Duration::ZERO;
        let confirmed = Now { boot: store.confirmed, ..now() };
        store.store(1, confirmed, none);
        assert!(!dir.path().join("view-confirmed.json").exists());
        // It was: only that is written.
        store.store(1, now(), none);
        idle(&store);
        assert!(dir.path().join("view-confirmed.json").exists());
        assert!(store.due(2).is_some_and(|due| due.is_zero()));
    }

    #[test]
    fn the_thread_ends_with_whoever_gives_it_work_and_stores_the_last_of_it() {
        let dir = tempfile::tempdir().unwrap();
        let mut store = ViewStore::start(dir.path(), Duration::ZERO, &Crew::default()).unwrap();
        let work = Arc::downgrade(&store.work);
        store.store(1, now(), kept);
        drop(store);
        let begun = Instant::now();
        while work.strong_count() > 0 {
            assert!(begun.elapsed() < LIMIT, "the thread goes on");
            std::thread::sleep(Duration::from_millis(1));
        }
        assert!(dir.path().join("view.json").exists());
    }

    /// The thread hangs in a write.
    #[test]
    fn a_disk_that_hangs_gets_no_more_to_do() {
        let dir = tempfile::tempdir().unwrap();
        let mut store = ViewStore::start(dir.path(), Duration::ZERO, &Crew::default()).unwrap();
        store.progress.is_busy.store(true, Ordering::Release);
        store.every = LONG;
        store.store(1, now(), || unreachable!("nobody may ask"));
        assert_eq!(store.due(1), Some(LONG), "it is looked at again later");
    }

    #[test]
    fn what_could_not_be_stored_is_stored_again() {
        let dir = tempfile::tempdir().unwrap();
        let folder = dir.path().join("run");
        let mut store = ViewStore::start(&folder, Duration::ZERO, &Crew::default()).unwrap();
        store.store(1, now(), kept);
        idle(&store);
        std::fs::create_dir(&folder).unwrap();
        let confirmed = Now { boot: store.confirmed, ..now() };
        store.store(1, confirmed, kept);
        idle(&store);
        assert!(folder.join("view.json").exists());
    }
}
