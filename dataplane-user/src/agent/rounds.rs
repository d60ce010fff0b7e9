//! Rounds of challenges that wait for their turn.

use std::{
    collections::BTreeMap,
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use tokio::{
    sync::Notify,
    time::{Instant, sleep_until},
};

use super::follow_up::Round;

/// How many rounds run at once for requests, and as many for all others. Each round lists the whole of conntrack, on a node that carries
/// the others' load meanwhile. An operator's flag does not queue behind a file that flags hundreds.
pub(super) const AT_ONCE: usize = 2;

/// Rounds of one kind begin at least this far apart. Nodes that are flagged one by one meanwhile are challenged together: a round has the
/// kernel walk its whole table, 36 ms of a processor where that has 262,144 buckets and no entry.
const APART: Duration = Duration::from_millis(200);

/// The two kinds of rounds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Of {
    /// Somebody waits for the outcome.
    Requests,
    /// Nobody does.
    Others,
}

/// The rounds that wait: at most one for each node. What a round challenges is found out when it begins, so a newer round joins the
/// older one.
#[derive(Default)]
pub(super) struct Rounds {
    waiting: Mutex<WaitingRounds>,
    requests: Notify,
    others: Notify,
}

#[derive(Default)]
struct WaitingRounds {
    rounds: Vec<Round>,
    /// When the next rounds may begin at the earliest.
    next: BTreeMap<Of, Instant>,
}

/// The next step of a worker.
enum Next {
    Begin(Vec<Round>),
    WaitUntil(Instant),
    WaitForRounds,
}

impl Rounds {
    fn waiting(&self) -> MutexGuard<'_, WaitingRounds> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn rung(&self, of: Of) -> &Notify {
        match of {
            Of::Requests => &self.requests,
            Of::Others => &self.others,
        }
    }

    /// Lets a round wait.
    pub(super) fn put(&self, round: Round) {
        let mut waiting = self.waiting();
        let of = match waiting.rounds.iter_mut().find(|older| older.node == round.node) {
            Some(older) => {
                older.requests.extend(round.requests);
                kind(older)
            }
            None => {
                let of = kind(&round);
                waiting.rounds.push(round);
                of
            }
        };
        drop(waiting);
        self.rung(of).notify_one();
    }

    /// All rounds of this kind that wait, as soon as there are any and the last ones began [`APART`] ago. They are challenged together, and
    /// conntrack is listed as often for all as for one.
    pub(super) async fn next(&self, of: Of) -> Vec<Round> {
        loop {
            match self.turn(of, Instant::now()) {
                Next::Begin(rounds) => return rounds,
                Next::WaitUntil(next) => sleep_until(next).await,
                Next::WaitForRounds => self.rung(of).notified().await,
            }
        }
    }

    fn turn(&self, of: Of, now: Instant) -> Next {
        let mut waiting = self.waiting();
        if !waiting.rounds.iter().any(|round| kind(round) == of) {
            return Next::WaitForRounds;
        }
        match waiting.next.get(&of) {
            Some(next) if now < *next => Next::WaitUntil(*next),
            _ => {
                waiting.next.insert(of, now + APART);
                Next::Begin(waiting.rounds.extract_if(.., |round| kind(round) == of).collect())
            }
        }
    }
}

fn kind(round: &Round) -> Of {
    if round.requests.is_empty() { Of::Others } else { Of::Requests }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use tokio::{sync::watch, time::timeout};

    use super::*;
    use crate::agent::follow_up::Progress;

    fn round(node: &str, requests: usize) -> Round {
        Round {
            node: node.into(),
            requests: (0..requests).map(|_| watch::channel(Progress::default()).0).collect(),
        }
    }

    /// The rounds that begin at `at`; `None` where some wait and may not begin yet.
    fn begins(rounds: &Rounds, of: Of, at: Instant) -> Option<Vec<(String, usize)>> {
        let begun = match rounds.turn(of, at) {
            Next::Begin(rounds) => rounds,
            Next::WaitForRounds => Vec::new(),
            Next::WaitUntil(_) => return None,
        };
        Some(begun.into_iter().map(|round| (round.node.to_string(), round.requests.len())).collect())
    }

    fn named(names: &[(&str, usize)]) -> Vec<(String, usize)> {
        names.iter().map(|(node, requests)| ((*node).to_owned(), *requests)).collect()
    }

    #[test]
    fn a_node_waits_once_and_with_all_who_want_it() {
        let rounds = Rounds::default();
        let now = Instant::now();
        for (node, requests) in [("b", 0), ("c", 0), ("b", 0), ("d", 1), ("b", 2)] {
            rounds.put(round(node, requests));
        }
        // A round that somebody waits for by now has its turn with the requests.
        assert_eq!(begins(&rounds, Of::Requests, now), Some(named(&[("b", 2), ("d", 1)])));
        assert_eq!(begins(&rounds, Of::Requests, now), Some(named(&[])));
        assert_eq!(begins(&rounds, Of::Others, now), Some(named(&[("c", 0)])));
        assert_eq!(begins(&rounds, Of::Others, now), Some(named(&[])));
        // A round that has begun does not wait any more.
        rounds.put(round("b", 0));
        assert_eq!(begins(&rounds, Of::Others, now + APART), Some(named(&[("b", 0)])));
    }

    #[test]
    fn those_that_come_soon_after_others_wait_for_more() {
        let rounds = Rounds::default();
        let first = Instant::now();
        rounds.put(round("b", 1));
        assert_eq!(begins(&rounds, Of::Requests, first), Some(named(&[("b", 1)])));
        rounds.put(round("c", 1));
        rounds.put(round("d", 0));
        let soon = first + APART - Duration::from_millis(1);
        assert_eq!(begins(&rounds, Of::Requests, soon), None);
        assert_eq!(
            begins(&rounds, Of::Others, soon),
            Some(named(&[("d", 0)])),
            "the other kind does not wait"
        );
        rounds.put(round("e", 1));
        assert_eq!(begins(&rounds, Of::Requests, first + APART), Some(named(&[("c", 1), ("e", 1)])));
        // After a pause the next one begins at once.
        rounds.put(round("f", 1));
        assert_eq!(begins(&rounds, Of::Requests, first + 2 * APART), Some(named(&[("f", 1)])));
    }

    #[tokio::test]
    async fn nobody_sleeps_while_one_waits() {
        let rounds = Arc::new(Rounds::default());
        let (tell, mut told) = tokio::sync::mpsc::unbounded_channel();
        for _ in 0..2 {
            let rounds = Arc::clone(&rounds);
            let tell = tell.clone();
            tokio::spawn(async move {
                // Each begins what waits and never ends it.
                tell.send(rounds.next(Of::Others).await.len()).unwrap();
                std::future::pending::<()>().await;
            });
        }
        for waiting in [3, 2] {
            for n in 0..waiting {
                rounds.put(round(&format!("n{n}"), 0));
            }
            let begun = timeout(Duration::from_secs(60), told.recv()).await.expect("a worker sleeps");
            assert_eq!(begun, Some(waiting));
        }
        rounds.put(round("last", 1));
        let last = timeout(Duration::from_secs(60), rounds.next(Of::Requests)).await.unwrap();
        assert_eq!(last.first().unwrap().node, "last");
    }
}
