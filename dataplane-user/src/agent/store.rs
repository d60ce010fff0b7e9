//! The thread that owns the flags file: a disk may hang, and nothing else waits for it.

use std::{
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
        mpsc::{Receiver, channel},
    },
    time::Duration,
};

use tokio::sync::watch;

use super::{
    inbox::Inbox,
    refusals::unsaved,
    slot::Slot,
    threads::{Crew, Priority},
};
use crate::{
    enforce::{ClaimSource, Input, ToSave},
    flags::{FlagStore, monotonic_ns},
};

/// How often the thread wakes up with nothing to do.
const IDLE: Duration = Duration::from_secs(3600);

/// A save that takes longer is reported.
const LONG: Duration = Duration::from_secs(2);

/// Work for the thread.
#[derive(Default)]
pub(super) struct StoreWork {
    /// State that must be saved; the number is for the answer.
    pub(super) save: Option<(u64, ToSave)>,
    end: bool,
}

impl StoreWork {
    fn is_something(&self) -> bool {
        self.save.is_some() || self.end
    }
}

/// The thread `store`.
pub(super) struct Store {
    work: Arc<Slot<StoreWork>>,
    /// The problem with the flags file.
    pub(super) problem: watch::Receiver<Option<String>>,
    pub(super) writing: Arc<Writing>,
    ended: Receiver<()>,
}

/// Since when (CLOCK_MONOTONIC, ns) the flags file is being written; 0 where it is not. The disk may hang.
#[derive(Default)]
pub(super) struct Writing(AtomicU64);

impl Writing {
    /// The problem that `status` shows where a save takes long.
    pub(super) fn problem(&self, now: u64) -> Option<String> {
        let since = Some(self.0.load(Ordering::Relaxed)).filter(|since| *since > 0)?;
        let writing = Duration::from_nanos(now.saturating_sub(since));
        (writing > LONG).then(|| {
            let seconds = writing.as_secs();
            format!(
                "flags file: it has been written for {seconds} s, and the disk has not answered; until then a restart of the agent does not know the latest flags"
            )
        })
    }
}

impl Store {
    /// Starts the thread. `problem`: what was wrong with the file that an earlier agent left; it is shown until a node is flagged again.
    pub(super) fn start(
        run_dir: &Path,
        work: &Arc<Slot<StoreWork>>,
        inbox: Arc<Inbox>,
        problem: Option<String>,
        crew: &Crew,
    ) -> std::io::Result<Self> {
        let (told, problem_now) = watch::channel(problem.clone());
        let (ending, ended) = channel();
        let writing = Arc::new(Writing::default());
        let keeper = Keeper {
            store: FlagStore::new(run_dir),
            work: Arc::clone(work),
            inbox,
            lost: problem,
            told,
            writing: Arc::clone(&writing),
        };
        crew.thread("store", Priority::Batch, move || {
            keeper.run();
            // Nobody may wait any more.
            let _gone = ending.send(());
            Ok(())
        })?;
        Ok(Self { work: Arc::clone(work), problem: problem_now, writing, ended })
    }

    /// Ends the thread once its saves lie on the disk. Waits for `patience` at most.
    pub(super) fn end(self, patience: Duration) {
        self.work.post(|work| work.end = true);
        let _late = self.ended.recv_timeout(patience);
    }
}

struct Keeper {
    store: FlagStore,
    work: Arc<Slot<StoreWork>>,
    inbox: Arc<Inbox>,
    /// Flags that an earlier agent left were lost, and nobody has flagged a node since.
    lost: Option<String>,
    told: watch::Sender<Option<String>>,
    writing: Arc<Writing>,
}

impl Keeper {
    fn run(mut self) {
        loop {
            let StoreWork { save, end } = self.work.take(IDLE, StoreWork::is_something);
            if let Some((serial, to_save)) = save {
                self.save(serial, &to_save);
            }
            if end {
                return;
            }
        }
    }

    fn save(&mut self, serial: u64, to_save: &ToSave) {
        let saved = to_save.saved();
        self.writing.0.store(monotonic_ns(), Ordering::Relaxed);
        let result = self.store.save(&saved).map_err(|error| error.to_string());
        self.writing.0.store(0, Ordering::Relaxed);
        // Flags of the cluster's source come by themselves, and bring no lost flag back.
        if result.is_ok() && saved.claims.iter().any(|(_, claim)| claim.source != ClaimSource::File) {
            self.lost = None;
        }
        let problem = result.as_ref().err().map(|error| unsaved(error)).or_else(|| self.lost.clone());
        self.told.send_if_modified(|told| {
            let news = *told != problem;
            *told = problem;
            news
        });
        self.inbox.tell(Input::Saved { serial, result: result.map_err(Into::into) });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        agent::inbox::Message,
        enforce::{Claim, Gone, NewClaim, ShownClaim, ShownClaims, Standing},
        flags::now,
    };

    fn claim(source: ClaimSource) -> Claim {
        let new =
            NewClaim { source, by: "".into(), reason: "".into(), evidence: None, lasts: None, until: None };
        Claim::raise(new, None, now())
    }

    fn saved(source: ClaimSource) -> Option<(u64, ToSave)> {
        let claim = ShownClaim { standing: Standing::Enforced, claim: claim(source) };
        let claims: ShownClaims = [("b".into(), [claim].into())].into_iter().collect();
        Some((1, ToSave { claims, withheld: Vec::new(), gone: Gone::default(), shared: None }))
    }

    #[test]
    fn that_flags_were_lost_is_told_until_somebody_flags_again() {
        let folder = tempfile::tempdir().unwrap();
        let work = Arc::new(Slot::default());
        let inbox = Arc::new(Inbox::default());
        let lost = Some("lost".to_owned());
        let store = Store::start(folder.path(), &work, Arc::clone(&inbox), lost, &Crew::default()).unwrap();
        let answer = |wanted: Option<(u64, ToSave)>| {
            work.post(|work| work.save = wanted);
            inbox.wait(Duration::from_secs(60));
            match inbox.take() {
                Some(Message::Tell(Input::Saved { serial: 1, result })) => result,
                _ => panic!("no answer"),
            }
        };
        answer(saved(ClaimSource::File)).unwrap();
        assert_eq!(store.problem.borrow().as_deref(), Some("lost"));
        answer(saved(ClaimSource::Cli)).unwrap();
        assert_eq!(store.problem.borrow().as_deref(), None);
        std::fs::remove_dir_all(folder.path()).unwrap();
        let error = answer(saved(ClaimSource::Cli)).unwrap_err();
        assert_eq!(store.problem.borrow().as_deref(), Some(unsaved(&error).as_str()));
        store.end(Duration::from_secs(60));
    }

    #[test]
    fn a_disk_that_does_not_answer_is_told_of_after_two_seconds() {
        let writing = Writing::default();
        assert_eq!(writing.problem(u64::MAX), None);
        writing.0.store(1_000_000_000, Ordering::Relaxed);
        assert_eq!(writing.problem(3_000_000_000), None);
        let told = writing.problem(8_500_000_000).unwrap();
        assert!(told.contains("written for 7 s"), "{told}");
    }
}
