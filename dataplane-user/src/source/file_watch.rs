use std::{
    path::{Path, PathBuf},
    time::Duration,
};

use notify::{EventKind, RecommendedWatcher, RecursiveMode, Watcher as _};
use tokio::{
    sync::mpsc,
    time::{Instant, sleep, timeout_at},
};

use super::file::Stamp;

/// The quiet time after an event before the file is read, so that an editor's or the kubelet's several steps cause one reload.
const SETTLE: Duration = Duration::from_millis(50);
/// The longest wait for that quiet time: constant writes of others to the folder must not delay a reload further.
const SETTLE_AT_MOST: Duration = Duration::from_millis(500);
/// How often the file's metadata is checked without any event, since some file systems send no events, and queues overflow.
const LOOK_EVERY: Duration = Duration::from_secs(5);

/// Tells when a cluster file may have changed.
///
/// The folder is watched, not the file. A watch on the file itself would stay with the old file after a rename over it, or after the swap
/// of the `..data` link by which the kubelet updates a ConfigMap.
#[derive(Debug)]
pub struct FileWatch {
    path: PathBuf,
    stamp: Option<Stamp>,
    /// The time from which on the file counts as changed even if it did not change.
    again: Option<Instant>,
    events: mpsc::Receiver<()>,
    // The watch ends when the watcher is dropped.
    _watcher: Option<RecommendedWatcher>,
    /// Why there is no watch. Without a watch the file is only checked every [`LOOK_EVERY`].
    pub degraded: Option<String>,
}

impl FileWatch {
    /// Watches the folder of `path`, and the folder of the file it links to.
    pub fn new(path: &Path) -> Self {
        // One slot is enough, since an event says only that the file must be checked.
        let (sender, events) = mpsc::channel(1);
        let watcher = notify::recommended_watcher(move |event: notify::Result<notify::Event>| {
            // The agent's own reading is an access, which is no change. An error (such as an overflow) may hide a change.
            let look = event.map_or(true, |event| match event.kind {
                EventKind::Access(kind) => {
                    matches!(kind, notify::event::AccessKind::Close(notify::event::AccessMode::Write))
                }
                _ => true,
            });
            if look {
                let _full = sender.try_send(());
            }
        });
        let watched = watcher.and_then(|mut watcher| {
            for folder in folders(path) {
                watcher.watch(&folder, RecursiveMode::NonRecursive)?;
            }
            Ok(watcher)
        });
        let (watcher, degraded) = match watched {
            Ok(watcher) => (Some(watcher), None),
            Err(error) => (None, Some(format!("watch the folder of {}: {error}", path.display()))),
        };
        Self {
            path: path.to_owned(),
            stamp: Stamp::of(path),
            again: None,
            events,
            _watcher: watcher,
            degraded,
        }
    }

    /// Returns once the file has been replaced or written to since the last return, and has been quiet since.
    pub async fn changed(&mut self) {
        loop {
            tokio::select! {
                Some(()) = self.events.recv() => self.settle().await,
                () = sleep(LOOK_EVERY) => {}
            }
            let stamp = Stamp::of(&self.path);
            if self.again.is_some_and(|again| again <= Instant::now()) || stamp != self.stamp {
                self.stamp = stamp;
                self.again = None;
                return;
            }
        }
    }

    /// Plans another attempt for a file that was not accepted, since the reason may lie outside the file. The file counts as changed once
    /// 199 times `took`, the time that reading it took, has passed. So reading takes 0.5 % of a processor at most.
    pub fn again(&mut self, took: Duration) {
        self.again = Some(Instant::now() + took * 199);
    }

    async fn settle(&mut self) {
        let end = Instant::now() + SETTLE_AT_MOST;
        while Instant::now() < end {
            let quiet = (Instant::now() + SETTLE).min(end);
            match timeout_at(quiet, self.events.recv()).await {
                Ok(Some(())) => {}
                Ok(None) | Err(_) => return,
            }
        }
    }
}

fn folders(path: &Path) -> Vec<PathBuf> {
    let folder_of = |path: &Path| match path.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder.to_owned(),
        _ => PathBuf::from("."),
    };
    let mut folders = vec![folder_of(path)];
    if let Ok(target) = path.canonicalize() {
        let folder = folder_of(&target);
        if folders[0].canonicalize().ok().as_deref() != Some(&folder) {
            folders.push(folder);
        }
    }
    folders
}
