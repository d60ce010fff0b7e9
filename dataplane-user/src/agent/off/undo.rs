//! The task `off`, which takes back all that agents did to the kernel, and tries again until nothing of theirs is left.

use std::{sync::Arc, time::Duration};

use tokio::{sync::watch, time::sleep};

use crate::{
    agent::{chain::chain, settings::Settings, threads::Crew},
    dataplane::{self, DetachReport},
    off::{Owner, TakenBack, take_back},
};

/// How long to wait before the next try.
const AGAIN: Duration = Duration::from_secs(1);

/// What was taken back so far.
#[derive(Clone, Debug, Default)]
pub(in crate::agent) struct Undone {
    /// How often it was tried.
    pub(in crate::agent) tries: u64,
    /// All was taken back.
    pub(in crate::agent) taken_back: bool,
    /// What could not be taken back at the last try, in words.
    pub(in crate::agent) problems: Vec<String>,
    /// What was removed from the kernel.
    pub(in crate::agent) removed: DetachReport,
    /// How many destinations were restored in IPVS from the ledger.
    pub(in crate::agent) restored: usize,
}

impl Undone {
    /// Adds a try. Returns whether nothing is left to be done.
    fn add(&mut self, tried: Result<TakenBack, dataplane::Error>) -> bool {
        self.tries += 1;
        match tried {
            Ok(TakenBack { removed, restored, not_restored }) => {
                let DetachReport { links, filters, qdiscs, maps } = removed;
                self.removed.links += links;
                self.removed.filters += filters;
                self.removed.qdiscs += qdiscs;
                self.removed.maps += maps;
                self.restored += restored;
                self.taken_back = not_restored.is_none();
                self.problems = not_restored.map(chain).into_iter().collect();
                self.taken_back
            }
            // Threads of this process still end. All that they made is removed already.
            Err(dataplane::Error::Busy { .. }) if self.taken_back => false,
            Err(error) => {
                self.taken_back = false;
                self.problems = vec![chain(error)];
                false
            }
        }
    }
}

/// Takes back until nothing is left. `owner`: who takes back at the first try.
pub(super) async fn undo(
    settings: Arc<Settings>,
    owner: Owner,
    told: watch::Sender<Undone>,
    crew: Crew,
) -> anyhow::Result<()> {
    let stop = crew.stop();
    let mut owner = owner;
    let mut undone = Undone::default();
    loop {
        let given = Arc::clone(&settings);
        let tried =
            crew.blocking("off", move || take_back(&given.run_dir, &given.options.pin_dir, owner)).await?;
        let before = undone.problems.clone();
        // As the owner, the first try asked nobody whether parts of the dataplane are still open. The next one does.
        let is_over = undone.add(tried) && owner == Owner::Other;
        owner = Owner::Other;
        if undone.problems != before {
            for problem in &undone.problems {
                tracing::error!(
                    event = "off-not-undone",
                    problem,
                    "the agent is off, but not all that it did could be taken back; it tries again"
                );
            }
        }
        told.send_replace(undone.clone());
        if is_over {
            stop.cancelled().await;
            return Ok(());
        }
        tokio::select! {
            () = stop.cancelled() => return Ok(()),
            () = sleep(AGAIN) => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tries_add_up_until_nothing_is_left() {
        let mut undone = Undone::default();
        let removed = DetachReport { links: 1, filters: 2, qdiscs: 3, maps: 4 };
        let tried = |removed: &DetachReport, not_restored: Option<&'static str>| {
            let not_restored = not_restored.map(|why| anyhow::anyhow!(why));
            Ok(TakenBack { removed: removed.clone(), restored: 5, not_restored })
        };
        let busy = || Err(dataplane::Error::Busy { root: "/x".into(), pid: None });
        assert!(!undone.add(busy()));
        assert!(!undone.taken_back && undone.problems.len() == 1, "another agent has the pins");
        assert!(!undone.add(tried(&removed, Some("IPVS refuses"))));
        assert_eq!(undone.problems, ["IPVS refuses"]);
        assert!(!undone.taken_back);
        assert!(undone.add(tried(&removed, None)));
        assert!(undone.taken_back && undone.problems.is_empty());
        assert!(!undone.add(busy()));
        assert!(undone.taken_back && undone.problems.is_empty(), "only threads of this agent are left");
        assert_eq!(undone.removed, DetachReport { links: 2, filters: 4, qdiscs: 6, maps: 8 });
        assert_eq!((undone.restored, undone.tries), (10, 4));
    }
}
