//! Rounds of asking idle clients that wait for their turn.

use std::sync::{Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;

use super::follow_up::Round;

/// How many ask at once for requests, and as many for all others: each lists the whole of conntrack a few times, on the node that
/// carries the others' load meanwhile. An operator's flag does not queue behind a file that flags hundreds.
pub(super) const AT_ONCE: usize = 2;

/// Whose turn it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Of {
    /// Somebody waits for what comes of it.
    Requests,
    /// Nobody does.
    Others,
}

/// Of each node one at most: what a newer one is to ask is found out when it begins, and so it takes the place of the older.
#[derive(Default)]
pub(super) struct Rounds {
    waiting: Mutex<Vec<Round>>,
    requests: Notify,
    others: Notify,
}

impl Rounds {
    fn waiting(&self) -> MutexGuard<'_, Vec<Round>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn rung(&self, of: Of) -> &Notify {
        match of {
            Of::Requests => &self.requests,
            Of::Others => &self.others,
        }
    }

    /// Another one waits.
    pub(super) fn put(&self, round: Round) {
        let mut waiting = self.waiting();
        let of = match waiting.iter_mut().find(|older| older.node == round.node) {
            Some(older) => {
                older.requests.extend(round.requests);
                kind(older)
            }
            None => {
                let of = kind(&round);
                waiting.push(round);
                of
            }
        };
        drop(waiting);
        self.rung(of).notify_one();
    }

    /// All of these that wait, as soon as there are any: they are asked together, and conntrack is listed as often for all as for one.
    pub(super) async fn next(&self, of: Of) -> Vec<Round> {
        loop {
            let rounds = self.take(of);
            if !rounds.is_empty() {
                return rounds;
            }
            self.rung(of).notified().await;
        }
    }

    fn take(&self, of: Of) -> Vec<Round> {
        self.waiting().extract_if(.., |round| kind(round) == of).collect()
    }
}

fn kind(round: &Round) -> Of {
    if round.requests.is_empty() { Of::Others } else { Of::Requests }
}

#[cfg(test)]
mod tests {
    use std::{sync::Arc, time::Duration};

    use tokio::{sync::oneshot, time::timeout};

    use super::*;

    fn round(node: &str, requests: usize) -> Round {
        Round { node: node.into(), requests: (0..requests).map(|_| oneshot::channel().0).collect() }
    }

    fn taken(rounds: &Rounds, of: Of) -> Vec<(String, usize)> {
        rounds.take(of).into_iter().map(|round| (round.node.to_string(), round.requests.len())).collect()
    }

    fn named(names: &[(&str, usize)]) -> Vec<(String, usize)> {
        names.iter().map(|(node, requests)| ((*node).to_owned(), *requests)).collect()
    }

    #[test]
    fn a_node_waits_once_and_with_all_who_want_it() {
        let rounds = Rounds::default();
        for (node, requests) in [("b", 0), ("c", 0), ("b", 0), ("d", 1), ("b", 2)] {
            rounds.put(round(node, requests));
        }
        // One that somebody waits for by now has its turn with those.
        assert_eq!(taken(&rounds, Of::Requests), named(&[("b", 2), ("d", 1)]));
        assert_eq!(taken(&rounds, Of::Requests), named(&[]));
        assert_eq!(taken(&rounds, Of::Others), named(&[("c", 0)]));
        assert_eq!(taken(&rounds, Of::Others), named(&[]));
        // One that has begun is none that waits.
        rounds.put(round("b", 0));
        assert_eq!(taken(&rounds, Of::Others), named(&[("b", 0)]));
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
