//! Reads the agent's state for clients, once a second at most: clients that ask more often get the same answer, and cost the agent nothing.

use std::{future::Future, sync::Arc, time::Duration};

use tokio::{
    sync::{mpsc, oneshot},
    time::{Instant, timeout},
};

use super::snapshot::Snapshot;

/// For how long a snapshot is given to all who ask.
const HOLDS: Duration = Duration::from_secs(1);
/// How long a client waits for a snapshot.
const PATIENCE: Duration = Duration::from_secs(4);

/// The agent, as this module needs it.
pub trait Facts: Send + Sync + 'static {
    /// Why the agent hangs. `None` if it works. Never blocks.
    fn hangs(&self) -> Option<String>;

    /// Reads the agent's state.
    fn read(&self) -> impl Future<Output = Result<Snapshot, String>> + Send;
}

type Answer = Result<Arc<Snapshot>, String>;

/// The end by which clients ask for snapshots. Cheap to clone.
#[derive(Clone)]
pub(super) struct Cache(mpsc::Sender<oneshot::Sender<Answer>>);

/// The end at which the owner of the last snapshot waits.
pub(super) struct Asked(mpsc::Receiver<oneshot::Sender<Answer>>);

impl Cache {
    /// A cache for so many clients at once, and its owner's end.
    pub(super) fn new(clients: usize) -> (Self, Asked) {
        let (asks, asked) = mpsc::channel(clients);
        (Self(asks), Asked(asked))
    }

    /// The agent's state, at most a second old.
    pub(super) async fn get(&self) -> Answer {
        let (waits, answer) = oneshot::channel();
        self.0.try_send(waits).map_err(|_full| "too many clients wait".to_owned())?;
        match timeout(PATIENCE, answer).await {
            Ok(Ok(answer)) => answer,
            Ok(Err(_gone)) => Err("the agent ends".to_owned()),
            Err(_late) => Err(format!("the state was not read within {} s", PATIENCE.as_secs())),
        }
    }
}

impl Asked {
    /// Owns the last snapshot, and reads a new one for whoever asks later than a second after it.
    pub(super) async fn answer(mut self, facts: &impl Facts) {
        let mut last: Option<(Instant, Answer)> = None;
        while let Some(waits) = self.0.recv().await {
            let answer = match last.take().filter(|(read, _)| read.elapsed() < HOLDS) {
                Some(held) => last.insert(held),
                // The time counts from the end, so that a reading that takes long is no steady load.
                None => {
                    let answer = facts.read().await.map(Arc::new);
                    last.insert((Instant::now(), answer))
                }
            };
            // The client may have gone.
            let _gone = waits.send(answer.1.clone());
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    #[derive(Default)]
    struct Counted(AtomicUsize);

    impl Facts for Counted {
        fn hangs(&self) -> Option<String> {
            None
        }

        async fn read(&self) -> Result<Snapshot, String> {
            let times = self.0.fetch_add(1, Ordering::Relaxed) + 1;
            Err(format!("reading {times}"))
        }
    }

    /// Asks, while the owner answers.
    async fn ask(cache: Cache, asked: Asked, facts: &Counted, clients: impl AsyncFnOnce(Cache)) {
        tokio::select! {
            () = asked.answer(facts) => panic!("the owner ended"),
            () = clients(cache) => {}
        }
    }

    #[tokio::test(start_paused = true)]
    async fn the_state_is_read_once_a_second_however_many_ask() {
        let facts = Counted::default();
        let (cache, asked) = Cache::new(8);
        ask(cache, asked, &facts, async |cache| {
            for _ in 0..100 {
                assert_eq!(cache.get().await.err().as_deref(), Some("reading 1"));
            }
            tokio::time::advance(HOLDS).await;
            let all = futures::future::join_all((0..8).map(|_| cache.get())).await;
            assert!(all.iter().all(|answer| answer.as_ref().err().is_some_and(|text| text == "reading 2")));
        })
        .await;
        assert_eq!(facts.0.load(Ordering::Relaxed), 2);
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_waits_for_a_while_and_not_for_ever() {
        let (cache, asked) = Cache::new(1);
        let waits = cache.get();
        tokio::pin!(waits);
        assert!(futures::poll!(&mut waits).is_pending());
        assert_eq!(cache.get().await.err().as_deref(), Some("too many clients wait"));
        assert_eq!(waits.await.err().as_deref(), Some("the state was not read within 4 s"));
        drop(asked);
    }
}
