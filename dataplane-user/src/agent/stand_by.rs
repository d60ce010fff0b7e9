//! An agent that stands by: another one took over from its pod, and the kubelet would start its container again if it ended. It has nothing open, attaches
//! nothing and answers nobody.
//!
//! It never takes over from an agent again, since two pods would take over from each other in turn. But where nobody has the node for a while, it takes it
//! again: the new pod was deleted by a rollback, or its agent cannot run, and nobody else would cut on this node. An agent that lives, or that waits to take
//! over, is never disturbed. The new pod is not listed as taken from: once its container is started again, it takes over as before.
//!
//! While a new agent fails again and again after it took over, the two alternate. The kubelet sets the pace: after each failure it waits longer before it
//! starts the container again, for 5 min in the end. The node is without an agent only for [`VACANT`] after each failure.

use std::{
    io,
    path::{Path, PathBuf},
    time::{Duration, SystemTime},
};

use tokio::time::{Instant, sleep};

use super::{
    ending::Ended, lock::Lock, newcomer::Newcomers, pods::PodsFile, settings::Settings, signals::Signals,
    threads::Crew, visible,
};
use crate::read;

/// For how long nobody must have had the node before an agent that stands by takes it again. A container that ended for the first time is started again
/// at once, within a few seconds, and is not to find another agent in its place. The upper bound is Kubernetes': a pod of which three probes in turn
/// failed, after 20 s to 30 s, is not ready, and the `DaemonSet` controller deletes the old pod then, whatever the new one is
/// (pkg/controller/daemon/daemon_controller.go, `podsShouldBeOnNode`, v1.36). This agent must run before.
pub const VACANT: Duration = Duration::from_secs(10);
/// How often to look whether somebody has the node.
const LOOK: Duration = Duration::from_millis(250);

/// What shows whether somebody has the node.
#[derive(Clone, Copy, Debug)]
struct Look {
    /// An agent has the lock, or waits to take over.
    taken: bool,
    /// When the lock's file was last written. An agent that fails at once has the lock for so short a time that no look falls into it.
    written: Option<SystemTime>,
}

impl Look {
    fn at(run_dir: &Path) -> io::Result<Self> {
        let lock = match read::open(&run_dir.join("agent.lock")) {
            // Nobody has a lock that is not there.
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                return Ok(Self { taken: false, written: None });
            }
            lock => lock?,
        };
        let taken = visible::is_locked(&lock)? || Newcomers::of(run_dir)?.waits()?;
        Ok(Self { taken, written: Some(lock.metadata()?.modified()?) })
    }
}

/// Since when nobody has had the node, and when the lock was last written before that.
#[derive(Default)]
struct Vacancy(Option<(Instant, Option<SystemTime>)>);

impl Vacancy {
    /// Adds a look. Returns for how long nobody has had the node.
    fn add(&mut self, now: Instant, look: Look) -> Duration {
        let since = match self.0 {
            Some((since, written)) if written == look.written => since,
            _ => now,
        };
        self.0 = (!look.taken).then_some((since, look.written));
        self.0.map_or(Duration::ZERO, |(since, _)| now - since)
    }
}

/// An agent that another one may take over from.
pub(super) struct StandBy {
    pod: String,
    run_dir: PathBuf,
    vacant: Duration,
}

impl StandBy {
    /// `None` for an agent in no pod, which ends instead.
    pub(super) fn of(settings: &Settings) -> Option<Self> {
        let Settings { pod_uid, run_dir, vacant, .. } = settings;
        Some(Self { pod: pod_uid.clone()?, run_dir: run_dir.clone(), vacant: *vacant })
    }

    /// Waits for a signal, or until nobody has the node.
    pub(super) async fn wait(&self, crew: &Crew, signals: &mut Signals) -> Ended {
        let pod = self.pod.as_str();
        tracing::info!(
            event = "stands-by",
            pod,
            "another agent took over from this pod; its agent does nothing until it is told to end, or until nobody has the node for {:?}",
            self.vacant
        );
        let why = tokio::select! {
            biased;
            why = signals.come() => why,
            () = self.takes_again(crew) => {
                tracing::warn!(
                    event = "takes-again",
                    pod,
                    "no agent has had this node for {:?}; that of this pod, from which another one took over, starts anew",
                    self.vacant
                );
                return Ended::Anew;
            }
        };
        tracing::info!(event = "stand-by-ended", why, "the agent ends; it stood by");
        Ended::Over
    }

    /// Returns once this pod has the node again.
    async fn takes_again(&self, crew: &Crew) {
        let mut vacancy = Vacancy::default();
        loop {
            let run_dir = self.run_dir.clone();
            let looked = crew.blocking("pods", move || Look::at(&run_dir)).await;
            // Where nobody can look, nobody can take.
            let vacant = match looked {
                Ok(Ok(look)) => vacancy.add(Instant::now(), look),
                Ok(Err(_)) | Err(_) => {
                    vacancy = Vacancy::default();
                    Duration::ZERO
                }
            };
            if vacant >= self.vacant {
                let (run_dir, pod) = (self.run_dir.clone(), self.pod.clone());
                if let Ok(true) = crew.blocking("pods", move || take(&run_dir, &pod)).await {
                    return;
                }
                vacancy = Vacancy::default();
            }
            sleep(LOOK).await;
        }
    }
}

/// What to say of a pod while no agent answers: that its own agent stands by, if it does.
pub fn stands_by(run_dir: &Path, pod: &str) -> Option<String> {
    let taken_from = PodsFile::new(run_dir).was_taken_from(pod);
    taken_from.then(|| {
        format!(
            "not ready: another agent took over from pod {pod} and does not answer; the agent of this pod stands by, and takes the node again once nobody has had it for {}",
            humantime::format_duration(VACANT)
        )
    })
}

/// Notes that the pod has the node again, unless somebody has the lock after all. Returns whether that was done. The lock is free afterwards, and the agent
/// takes it as any other does when it starts anew. Where another one is faster, it takes over from this pod.
fn take(run_dir: &Path, pod: &str) -> bool {
    let Ok(_lock) = Lock::take(run_dir, "") else { return false };
    let pods = PodsFile::new(run_dir);
    let Err(error) = pods.take_again(pod) else { return true };
    // A full disk must not leave the node without an agent: where there is no list, nobody is in it.
    let problem = pods.remove().err().map(|error| error.to_string());
    if let Some(problem) = &problem {
        tracing::warn!(event = "not-taken-again", %error, problem, "no agent has this node, and that of this pod cannot take it again");
    }
    problem.is_none()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::agent::newcomer::Announcement;

    #[tokio::test(start_paused = true)]
    async fn the_time_begins_anew_with_each_agent_that_had_the_lock() {
        let mut vacancy = Vacancy::default();
        let begun = Instant::now();
        let at = |seconds| begun + Duration::from_secs(seconds);
        let written = |seconds| Some(SystemTime::UNIX_EPOCH + Duration::from_secs(seconds));
        let free = |seconds| Look { taken: false, written: written(seconds) };
        let mut vacant = |seconds, look| vacancy.add(at(seconds), look).as_secs();
        assert_eq!(vacant(0, free(1)), 0);
        assert_eq!(vacant(9, free(1)), 9);
        // Somebody had the lock between two looks.
        assert_eq!(vacant(10, free(2)), 0);
        assert_eq!(vacant(15, free(2)), 5);
        assert_eq!(vacant(16, Look { taken: true, ..free(2) }), 0);
        assert_eq!(vacant(100, free(2)), 0);
        assert_eq!(vacant(101, free(2)), 1);
        // The folder was removed.
        assert_eq!(vacant(102, Look { taken: false, written: None }), 0);
        assert_eq!(vacant(109, Look { taken: false, written: None }), 7);
    }

    #[test]
    fn who_has_the_node_or_waits_for_it_is_seen_and_not_disturbed() {
        let folder = tempfile::tempdir().unwrap();
        let run_dir = folder.path();
        let look = || Look::at(run_dir).unwrap();
        assert!(!look().taken && look().written.is_none());
        let lock = Lock::take(run_dir, "").unwrap();
        let written = look().written.unwrap();
        assert!(look().taken);
        drop(lock);
        assert!(!look().taken);
        assert_eq!(look().written, Some(written));
        let newcomer = Announcement::make(run_dir).unwrap();
        assert!(look().taken);
        drop(newcomer);
        assert!(!look().taken);
        // No look keeps an agent from the lock.
        let looked = read::open(&run_dir.join("agent.lock")).unwrap();
        assert_eq!(visible::is_locked(&looked), Ok(false));
        let lock = Lock::take(run_dir, "").unwrap();
        assert_eq!(visible::is_locked(&looked), Ok(true));
        drop(lock);
    }

    #[test]
    fn it_takes_nothing_that_somebody_has_and_leaves_the_lock_free() {
        let folder = tempfile::tempdir().unwrap();
        let run_dir = folder.path();
        let lock = Lock::take(run_dir, "").unwrap();
        assert!(!take(run_dir, "old"));
        drop(lock);
        assert!(take(run_dir, "old"));
        drop(Lock::take(run_dir, "").unwrap());
        // Nobody can write the list, or remove it.
        let aside = run_dir.join("agent.pods.new");
        std::fs::create_dir(&aside).unwrap();
        assert!(!take(run_dir, "old"));
        std::fs::remove_dir(&aside).unwrap();
        assert!(take(run_dir, "old"));
    }
}
