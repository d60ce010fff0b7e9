//! Which pod's agent had this node last, and from which pods others took over: the file `agent.pods.json` in the run folder.
//!
//! The kubelet starts a container again that ended, with the same arguments. While a new pod is beside an old one, the old pod's agent would take over
//! from the new one, and the new one from the old one, for ever. So an agent of a pod that was taken over from never takes over again. It stands by until
//! its pod is deleted, or until nobody has the node any more (`stand_by`).
//!
//! Whoever gets the lock of the run folder writes the file, so that a pod is named there also if its agent was killed before it could hand over.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::{settings::Settings, threads::Crew};
use crate::{read::read, replace::replace, report::PodRow};

/// The longest file that is read, in bytes.
const MAX_BYTES: u64 = 64 << 10;
/// How many pods are remembered. A pod that was taken over from is deleted soon.
const REMEMBERED: usize = 64;
const VERSION: u32 = 1;

/// The file's content.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
struct Pods {
    version: u32,
    /// The pod whose agent got the lock last. `None` for an agent that is in no pod.
    #[serde(default)]
    holder: Option<String>,
    /// The pods that were taken over from, the latest one last.
    #[serde(default)]
    handed_over: Vec<String>,
    /// When the holder took the node again, after another agent had taken over from it and was gone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    again: Option<Timestamp>,
}

impl Pods {
    /// The content after an agent of this pod got the lock.
    fn after(&self, pod: Option<&str>) -> Self {
        let mut handed_over = self.handed_over.clone();
        if let Some(before) = self.holder.as_deref().filter(|before| Some(*before) != pod) {
            handed_over.retain(|known| known != before);
            handed_over.push(before.to_owned());
        }
        // Only an agent that is not in the list takes over. Where the list could not be read, it was in none.
        handed_over.retain(|known| Some(known.as_str()) != pod);
        let surplus = handed_over.len().saturating_sub(REMEMBERED);
        handed_over.drain(..surplus);
        let again = self.again.filter(|_| self.holder.as_deref() == pod);
        Self { version: VERSION, holder: pod.map(str::to_owned), handed_over, again }
    }

    /// The content after the agent of this pod found that nobody has the node any more. The agent that is gone was not taken over from: where its pod
    /// is started again, it takes over as before.
    fn again(&self, pod: &str, now: Timestamp) -> Self {
        let mut handed_over = self.handed_over.clone();
        handed_over.retain(|known| known != pod);
        Self { version: VERSION, holder: Some(pod.to_owned()), handed_over, again: Some(now) }
    }
}

/// Why a file about the pods of the node could not be removed.
#[derive(Debug, thiserror::Error)]
#[error("cannot remove {}: {source}", path.display())]
pub struct PodsError {
    path: PathBuf,
    source: io::Error,
}

/// Removes a file, if it is there.
pub(super) fn remove(path: PathBuf) -> Result<(), PodsError> {
    match fs::remove_file(&path) {
        Err(source) if source.kind() != io::ErrorKind::NotFound => Err(PodsError { path, source }),
        _ => Ok(()),
    }
}

/// The file.
#[derive(Clone, Debug)]
pub struct PodsFile {
    path: PathBuf,
}

impl PodsFile {
    /// The file in a run folder.
    pub fn new(run_dir: &Path) -> Self {
        Self { path: run_dir.join("agent.pods.json") }
    }

    /// Removes the file, and a new one that was not finished.
    ///
    /// # Errors
    /// Where it cannot be removed.
    pub fn remove(&self) -> Result<(), PodsError> {
        [self.aside(), self.path.clone()].into_iter().try_for_each(remove)
    }

    fn aside(&self) -> PathBuf {
        self.path.with_extension("new")
    }

    /// The content. `None` where there is no file.
    fn read(&self) -> io::Result<Option<Pods>> {
        match read(&self.path, MAX_BYTES) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            text => Ok(Some(serde_json::from_slice(&text?)?)),
        }
    }

    /// Whether this pod was taken over from. Where the file cannot be read, it was not: a node without an agent is worse than two agents that take
    /// turns.
    pub(super) fn was_taken_from(&self, pod: &str) -> bool {
        match self.read() {
            Ok(pods) => pods.is_some_and(|pods| pods.handed_over.iter().any(|known| known == pod)),
            Err(error) => {
                self.damaged(&error);
                false
            }
        }
    }

    fn damaged(&self, error: &io::Error) {
        tracing::warn!(event = "pods-unread", file = %self.path.display(), %error, "nobody knows from which pods others took over");
    }

    /// The content before a change. A file that cannot be read is written anew.
    fn before(&self) -> Option<Pods> {
        match self.read() {
            Ok(before) => before,
            Err(error) => {
                self.damaged(&error);
                Some(Pods::default())
            }
        }
    }

    /// Notes that an agent of this pod has the lock.
    fn note(&self, pod: Option<&str>) -> io::Result<()> {
        let before = self.before();
        // Agents in no pod leave no file.
        if before.is_none() && pod.is_none() {
            return Ok(());
        }
        let before = before.unwrap_or_default();
        let after = before.after(pod);
        if after == before { Ok(()) } else { self.write(&after) }
    }

    /// Notes that the agent of this pod, which was taken over from, takes the node again. The caller has the lock.
    pub(super) fn take_again(&self, pod: &str) -> io::Result<()> {
        self.write(&self.before().unwrap_or_default().again(pod, Timestamp::now()))
    }

    fn write(&self, pods: &Pods) -> io::Result<()> {
        replace(&self.path, &self.aside(), &serde_json::to_vec(pods)?)
    }
}

/// This agent's pod, if another agent took over from it.
pub(super) fn taken_from(settings: &Settings) -> Option<&str> {
    let pod = settings.pod_uid.as_deref()?;
    PodsFile::new(&settings.run_dir).was_taken_from(pod).then_some(pod)
}

/// This agent's pod, and when it took the node again.
pub(super) fn row(settings: &Settings) -> Option<PodRow> {
    let uid = settings.pod_uid.clone()?;
    // That a file cannot be read was told before.
    let pods = PodsFile::new(&settings.run_dir).read().ok().flatten();
    let took_again = pods.filter(|pods| pods.holder.as_ref() == Some(&uid)).and_then(|pods| pods.again);
    Some(PodRow { uid, took_again })
}

/// Notes that this agent has the lock, beside all else: no disk holds the start up.
pub(super) fn note(settings: &Settings, crew: &Crew) {
    let file = PodsFile::new(&settings.run_dir);
    let pod = settings.pod_uid.clone();
    let beside = crew.clone();
    crew.errand("pods", async move {
        let path = file.path.clone();
        let noted = beside.blocking("pods", move || file.note(pod.as_deref())).await;
        // What fell is told by the crew.
        if let Ok(Err(error)) = noted {
            tracing::warn!(event = "pods-not-written", file = %path.display(), %error, "a pod that this one took over from may take over again");
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pods(file: &PodsFile) -> Pods {
        file.read().unwrap().unwrap()
    }

    #[test]
    fn a_pod_that_was_taken_over_from_stays_so() {
        let folder = tempfile::tempdir().unwrap();
        let file = PodsFile::new(folder.path());
        assert!(!file.was_taken_from("a"));
        file.note(Some("a")).unwrap();
        // Its container is started again.
        file.note(Some("a")).unwrap();
        assert!(!file.was_taken_from("a"));
        file.note(Some("b")).unwrap();
        assert!(file.was_taken_from("a") && !file.was_taken_from("b"));
        // An agent that somebody starts by hand.
        file.note(None).unwrap();
        assert!(file.was_taken_from("a") && file.was_taken_from("b"));
        file.note(Some("c")).unwrap();
        assert_eq!(pods(&file).handed_over, ["a", "b"]);
        file.remove().unwrap();
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
        fs::create_dir(&file.path).unwrap();
        let error = file.remove().unwrap_err().to_string();
        assert!(error.starts_with("cannot remove ") && error.contains("agent.pods.json: "), "{error}");
    }

    #[test]
    fn a_pod_takes_the_node_again_and_the_one_that_is_gone_may_take_over_from_it_again() {
        let folder = tempfile::tempdir().unwrap();
        let file = PodsFile::new(folder.path());
        for pod in ["older", "old", "new"] {
            file.note(Some(pod)).unwrap();
        }
        file.take_again("old").unwrap();
        assert!(!file.was_taken_from("old") && !file.was_taken_from("new") && file.was_taken_from("older"));
        let at = pods(&file).again.unwrap();
        // It starts anew, and its container may be started again.
        file.note(Some("old")).unwrap();
        assert_eq!(pods(&file).again, Some(at));
        file.note(Some("new")).unwrap();
        assert!(file.was_taken_from("old") && !file.was_taken_from("new"));
        assert_eq!(pods(&file).again, None);
    }

    #[test]
    fn agents_in_no_pod_leave_no_file() {
        let folder = tempfile::tempdir().unwrap();
        PodsFile::new(folder.path()).note(None).unwrap();
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
    }

    #[test]
    fn the_list_has_an_end_and_the_latest_pods() {
        let mut pods = Pods::default();
        for at in 0..1_000 {
            pods = pods.after(Some(&format!("pod-{at}")));
        }
        assert_eq!(pods.handed_over.len(), REMEMBERED);
        assert_eq!(pods.handed_over.last().map(String::as_str), Some("pod-998"));
    }

    #[test]
    fn a_file_that_cannot_be_understood_keeps_nobody_from_running_and_is_written_anew() {
        let folder = tempfile::tempdir().unwrap();
        let file = PodsFile::new(folder.path());
        for text in ["", "[]", "{\"version\":1,\"holder\":", &"x".repeat(100_000)] {
            fs::write(&file.path, text).unwrap();
            assert!(file.read().is_err() && !file.was_taken_from("a"), "{text}");
            file.note(Some("a")).unwrap();
            assert_eq!(pods(&file).holder.as_deref(), Some("a"));
        }
        // A later version may say more.
        fs::write(&file.path, "{\"version\":2,\"handed_over\":[\"a\"],\"more\":1}").unwrap();
        assert!(file.was_taken_from("a"));
    }
}
