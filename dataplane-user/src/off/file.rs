use std::{
    fs, io,
    path::{Path, PathBuf},
    time::Duration,
};

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::Off;
use crate::{
    read::read,
    replace::{replace, sync_folder},
};

/// The longest file that is read, in bytes.
const MAX_BYTES: u64 = 64 << 10;
/// How often a start looks whether there is a file.
const LOOK: Duration = Duration::from_millis(200);

/// Why the file could not be written or removed.
#[derive(Debug, thiserror::Error)]
#[error("cannot {what} {}: {source}", path.display())]
pub struct OffError {
    path: PathBuf,
    what: &'static str,
    source: io::Error,
}

/// The file's content. Fields that a later version adds are ignored: the file turns the agent off whatever it says.
#[derive(Serialize, Deserialize)]
struct Stored {
    version: u32,
    by: String,
    since: Timestamp,
    #[serde(default)]
    reason: String,
}

/// The file `off.json` in the run folder. The agent is off as long as there is such a file, whatever the file contains. Or the file `off.settings.json`
/// beside it: what the settings in the API server said last.
#[derive(Clone, Debug)]
pub struct OffFile {
    path: PathBuf,
}

impl OffFile {
    /// The file in a run folder.
    pub fn new(run_dir: &Path) -> Self {
        Self { path: run_dir.join("off.json") }
    }

    /// The file that is there while the settings in the API server turn the agent off. It counts until the settings are read.
    pub fn of_settings(run_dir: &Path) -> Self {
        Self { path: run_dir.join("off.settings.json") }
    }

    /// The file's path.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Whether there is a file. Where that cannot be found out, the answer is yes: traffic flows.
    pub fn is_there(&self) -> bool {
        !matches!(fs::symlink_metadata(&self.path), Err(error) if error.kind() == io::ErrorKind::NotFound)
    }

    /// Returns once there is a file.
    pub async fn appears(&self) {
        while !self.is_there() {
            tokio::time::sleep(LOOK).await;
        }
    }

    /// The file's content. `None` where there is no file.
    pub fn read(&self) -> Option<Off> {
        let why = match read(&self.path, MAX_BYTES) {
            Ok(text) => match serde_json::from_slice::<Stored>(&text) {
                Ok(Stored { by, since, reason, .. }) => {
                    return Some(Off { by, since: Some(since), reason, problem: None });
                }
                Err(error) => format!("is damaged: {error}"),
            },
            Err(error) if error.kind() == io::ErrorKind::NotFound => return None,
            Err(error) => format!("cannot be read: {error}"),
        };
        let problem = format!("{} {why}; it turns the agent off all the same", self.path.display());
        Some(Off { by: "somebody".to_owned(), since: None, reason: String::new(), problem: Some(problem) })
    }

    /// Writes the file, and syncs it to the disk. Returns once a restart of the agent finds it.
    ///
    /// # Errors
    /// Where any step fails.
    pub fn write(&self, off: &Off) -> Result<(), OffError> {
        let Off { by, since, reason, problem: _ } = off.clone();
        let stored = Stored { version: 1, by, since: since.unwrap_or_else(Timestamp::now), reason };
        let text = serde_json::to_vec(&stored).map_err(io::Error::from);
        let aside = self.path.with_extension("new");
        let written = text.and_then(|text| replace(&self.path, &aside, &text));
        written.map_err(|source| OffError { path: self.path.clone(), what: "write", source })
    }

    /// Removes the file, and a new one that was not finished. Returns whether there was a file.
    ///
    /// # Errors
    /// Where it cannot be removed.
    pub fn remove(&self) -> Result<bool, OffError> {
        let mut was = false;
        for path in [self.path.with_extension("new"), self.path.clone()] {
            match fs::remove_file(&path) {
                Ok(()) => was = path == self.path,
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(source) => return Err(OffError { path, what: "remove", source }),
            }
        }
        if was {
            sync_folder(&self.path).map_err(|source| OffError {
                path: self.path.clone(),
                what: "sync to the disk the folder of",
                source,
            })?;
        }
        Ok(was)
    }
}
