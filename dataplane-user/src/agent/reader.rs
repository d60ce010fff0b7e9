//! The one reader of conntrack. It lists a half of the table (IPv4 or IPv6) while somebody waits for that half, once for all that wait.
//! Only the audit reads by itself, at a pace of its own.

use std::{
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
        mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel},
    },
    time::Duration,
};

use tokio::sync::Notify;

use super::threads::Crew;
use crate::{
    conntrack::{Conntrack, Dump, Error, Family, Turns, WantedFlow},
    report::ConntrackRow,
};

/// How often a waiter gives a sign of life, as long as the kernel goes on listing.
const SIGN_OF_LIFE: Duration = Duration::from_millis(500);

/// The end by which requests reach the reader. All clones reach the same one.
#[derive(Clone)]
pub(super) struct Reader(Arc<Shared>);

struct Shared {
    /// Entries of other zones are not listed.
    zone: u16,
    /// This lock is held for no longer than it takes to put waiters in, or to take all out.
    turns: Mutex<Turns<Waits>>,
    rung: Notify,
    /// How often the kernel went through its table.
    v4: AtomicU64,
    v6: AtomicU64,
    /// How many entries the kernel has listed. Where this number stands still, the kernel does.
    told: AtomicU64,
}

type DumpResult = Result<Dump, Arc<Error>>;

/// A waiter.
struct Waits {
    wanted: WantedFlow,
    answer: SyncSender<DumpResult>,
}

impl Reader {
    /// A reader of this zone.
    pub(super) fn new(zone: u16) -> Self {
        Self(Arc::new(Shared {
            zone,
            turns: Mutex::default(),
            rung: Notify::new(),
            v4: AtomicU64::new(0),
            v6: AtomicU64::new(0),
            told: AtomicU64::new(0),
        }))
    }

    /// The zone that is listed.
    pub(super) fn zone(&self) -> u16 {
        self.0.zone
    }

    fn turns(&self) -> MutexGuard<'_, Turns<Waits>> {
        self.0.turns.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Lists for all of `wanted`. Returns the entries that each of them chose, in their order. `alive` is called now and then as long as the
    /// kernel lists entries, for any waiter. Blocking.
    ///
    /// # Errors
    /// As [`Conntrack::dump`], and [`Error::Ended`].
    pub(super) fn list_while(
        &self,
        wanted: Vec<(Family, WantedFlow)>,
        alive: impl Fn(),
    ) -> Result<Vec<Dump>, Arc<Error>> {
        let (waiting, answers): (Vec<_>, Vec<_>) = wanted
            .into_iter()
            .map(|(family, wanted)| {
                let (answer, answered) = sync_channel(1);
                ((family, Waits { wanted, answer }), answered)
            })
            .unzip();
        // All at once: one listing is for all of them.
        if !self.turns().put(waiting) {
            return Err(Arc::new(Error::Ended));
        }
        self.0.rung.notify_one();
        let told = || self.0.told.load(Ordering::Relaxed);
        answers.iter().map(|answered| wait(answered, told, &alive)).collect()
    }

    /// Lists one half for these waiters. Blocking.
    fn read(&self, family: Family, waiting: Vec<Waits>) {
        let (mut wanted, answers): (Vec<_>, Vec<_>) =
            waiting.into_iter().map(|Waits { wanted, answer }| (wanted, answer)).unzip();
        let shared = Arc::clone(&self.0);
        wanted.push(Box::new(move |_| {
            shared.told.fetch_add(1, Ordering::Relaxed);
            false
        }));
        let listed =
            Conntrack::open(self.0.zone).and_then(|mut conntrack| conntrack.dump_past(family, &mut wanted));
        let times = match &listed {
            Ok(dumps) => dumps.first().map_or(0, |dump| dump.attempts),
            Err(_) => 1,
        };
        let count = match family {
            Family::V4 => &self.0.v4,
            Family::V6 => &self.0.v6,
        };
        count.fetch_add(times as u64, Ordering::Relaxed);
        // A waiter may have gone.
        match listed {
            Ok(dumps) => answers.iter().zip(dumps).for_each(|(answer, dump)| drop(answer.send(Ok(dump)))),
            Err(error) => {
                let error = Arc::new(error);
                answers.iter().for_each(|answer| drop(answer.send(Err(Arc::clone(&error)))));
            }
        }
    }

    /// For `status`.
    pub(super) fn row(&self) -> ConntrackRow {
        let times = |count: &AtomicU64| count.load(Ordering::Relaxed);
        ConntrackRow { zone: self.0.zone, listed_v4: times(&self.0.v4), listed_v6: times(&self.0.v6) }
    }
}

fn wait(answered: &Receiver<DumpResult>, told: impl Fn() -> u64, alive: impl Fn()) -> DumpResult {
    let mut before = told();
    loop {
        match answered.recv_timeout(SIGN_OF_LIFE) {
            Ok(listed) => return listed,
            Err(RecvTimeoutError::Timeout) => {
                let now = told();
                if now != before {
                    before = now;
                    alive();
                }
            }
            Err(RecvTimeoutError::Disconnected) => return Err(Arc::new(Error::Ended)),
        }
    }
}

/// When this is dropped the reader has ended: its waiters are told.
struct Open(Reader);

impl Drop for Open {
    fn drop(&mut self) {
        drop(self.0.turns().close());
    }
}

/// Lists while somebody waits for it, until the agent ends.
pub(super) async fn follow(reader: Reader, crew: Crew) -> anyhow::Result<()> {
    let stop = crew.stop();
    let _open = Open(reader.clone());
    loop {
        tokio::select! {
            () = stop.cancelled() => return Ok(()),
            () = reader.0.rung.notified() => {}
        }
        while !stop.is_cancelled() {
            let Some((family, waiting)) = reader.turns().begin() else { break };
            let reader = reader.clone();
            crew.blocking("conntrack", move || reader.read(family, waiting)).await?;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all() -> Vec<(Family, WantedFlow)> {
        vec![(Family::V4, Box::new(|_| true)), (Family::V6, Box::new(|_| true))]
    }

    #[test]
    fn who_waits_for_one_that_ends_is_told() {
        let reader = Reader::new(0);
        let open = Open(reader.clone());
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| reader.list_while(all(), || {}));
            while reader.turns().is_empty() {
                std::thread::yield_now();
            }
            drop(open);
            let told = waiting.join().expect("no panic");
            assert!(matches!(told.as_ref().map_err(|error| &**error), Err(Error::Ended)), "{told:?}");
        });
        let later = reader.list_while(all(), || {});
        assert!(matches!(later.as_ref().map_err(|error| &**error), Err(Error::Ended)), "{later:?}");
        assert_eq!(reader.row(), ConntrackRow::default());
    }

    /// Where the kernel lists nothing for long, that must be seen from outside.
    #[test]
    fn a_sign_of_life_is_given_while_entries_are_told_of() {
        let reader = Reader::new(0);
        let open = Open(reader.clone());
        let alive = AtomicU64::new(0);
        let signs = || alive.load(Ordering::SeqCst);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                reader.list_while(all(), || {
                    alive.fetch_add(1, Ordering::SeqCst);
                })
            });
            std::thread::sleep(3 * SIGN_OF_LIFE);
            assert_eq!(signs(), 0);
            reader.0.told.fetch_add(1, Ordering::SeqCst);
            std::thread::sleep(3 * SIGN_OF_LIFE);
            assert_eq!(signs(), 1);
            drop(open);
        });
    }
}
