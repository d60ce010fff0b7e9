use std::{
    fs::{self, File},
    io::{self, Read as _},
    path::{Path, PathBuf},
};

use super::{clock::boot_id, format};
use crate::{
    enforce::{ClaimSource, Now, Saved},
    read,
    replace::replace,
};

/// The longest flags file that is accepted, in bytes.
const MAX_BYTES: u64 = 16 << 20;

/// Why the flags file could not be written.
#[derive(Debug, thiserror::Error)]
#[error("flags file {}: {source}", path.display())]
pub struct StoreError {
    path: PathBuf,
    source: io::Error,
}

/// The content of the flags file at the start.
#[derive(Debug, Default)]
pub struct Adopted {
    /// The claims that still hold.
    pub saved: Saved,
    /// Why there are no claims although there was a file.
    pub problem: Option<String>,
}

/// The file that stores all claims while no agent runs, not only an operator's flags. The next agent renews the verdicts of the other
/// claims before their sources have told it of them.
///
/// A file that is not accepted (damaged, of a later version, or from before the machine booted) gives no claims. The cut then lapses,
/// traffic flows, and `status` says so. The file is set aside as `flags.json.bad`.
#[derive(Debug)]
pub struct FlagStore {
    path: PathBuf,
    boot_id: String,
}

impl FlagStore {
    /// The store in a run folder, which must exist.
    pub fn new(run_dir: &Path) -> Self {
        Self { path: run_dir.join("flags.json"), boot_id: boot_id() }
    }

    /// Makes sure that the file, where there is one, is a regular file that can be opened. Otherwise the agent's flags would not outlive
    /// the agent. [`FlagStore::adopt`] reads the content.
    ///
    /// # Errors
    /// Where something else lies in the file's place, or the file cannot be opened.
    pub fn check(&self) -> Result<(), StoreError> {
        match self.open() {
            Err(error) if !matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::InvalidData) => {
                Err(self.failed(error))
            }
            _ => Ok(()),
        }
    }

    /// Removes the flags file, and with it the flags; also one that was set aside, and a new one that was not finished. Returns whether
    /// there was a flags file.
    ///
    /// # Errors
    /// Where one of these files cannot be removed.
    pub fn remove(&self) -> Result<bool, StoreError> {
        let mut was = false;
        for path in [self.path.clone(), self.path.with_extension("json.bad"), self.aside()] {
            match fs::remove_file(&path) {
                Ok(()) => was |= path == self.path,
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(source) => return Err(StoreError { path, source }),
            }
        }
        Ok(was)
    }

    /// The file's path.
    pub fn path(&self) -> &Path {
        &self.path
    }

    fn aside(&self) -> PathBuf {
        self.path.with_extension("json.new")
    }

    fn failed(&self, source: io::Error) -> StoreError {
        StoreError { path: self.path.clone(), source }
    }

    /// Reads the claims that an earlier agent left.
    ///
    /// # Errors
    /// Where the file cannot be read at this moment (no descriptor, no memory, an error of the disk). The file may be good, so it stays.
    pub fn adopt(&self, now: Now) -> Result<Adopted, StoreError> {
        let text = match self.read() {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Adopted::default()),
            Err(error) if error.kind() == io::ErrorKind::InvalidData => {
                return Ok(self.reject(&format!("is damaged: {error}")));
            }
            Err(error) => return Err(self.failed(error)),
        };
        match format::read(&text, &self.boot_id, now) {
            Ok(saved) => Ok(Adopted { saved, problem: None }),
            Err(why) => Ok(self.reject(&why)),
        }
    }

    /// The number of flags of this machine's commands in the file that still hold. Changes nothing. `None` where the file cannot be read.
    pub fn count(&self, now: Now) -> Option<usize> {
        let text = match self.read() {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Some(0),
            Err(_) => return None,
        };
        let saved = format::read(&text, &self.boot_id, now).ok()?;
        Some(
            saved
                .claims
                .iter()
                .filter(|(_, claim)| claim.source == ClaimSource::Cli && !claim.ended(now))
                .count(),
        )
    }

    fn read(&self) -> io::Result<String> {
        let mut text = String::new();
        self.open()?.take(MAX_BYTES).read_to_string(&mut text)?;
        Ok(text)
    }

    fn open(&self) -> io::Result<File> {
        let file = read::open(&self.path)?;
        let length = file.metadata()?.len();
        if length > MAX_BYTES {
            let text = format!("{length} bytes; the limit is {MAX_BYTES}");
            return Err(io::Error::new(io::ErrorKind::InvalidData, text));
        }
        Ok(file)
    }

    fn reject(&self, why: &str) -> Adopted {
        let aside = self.path.with_extension("json.bad");
        let kept = match fs::rename(&self.path, &aside) {
            Ok(()) => format!("; kept as {}", aside.display()),
            Err(_) => String::new(),
        };
        let problem =
            format!("flags file {} {why}; its flags are gone, flag again{kept}", self.path.display());
        Adopted { saved: Saved::default(), problem: Some(problem) }
    }

    /// Writes all claims to a new file, syncs it to the disk, and renames it over the old one.
    ///
    /// # Errors
    /// Where any step fails. The old file is unchanged then, unless only the sync of its folder failed.
    pub fn save(&self, saved: &Saved) -> Result<(), StoreError> {
        let written = format::write(saved, &self.boot_id).map_err(io::Error::from);
        written.and_then(|text| self.write(&text)).map_err(|source| self.failed(source))
    }

    fn write(&self, text: &[u8]) -> io::Result<()> {
        // The next agent would reject a longer file as damaged. The texts of claims may be of any length.
        if text.len() as u64 > MAX_BYTES {
            return Err(io::Error::other(format!("would be {} bytes; the limit is {MAX_BYTES}", text.len())));
        }
        replace(&self.path, &self.aside(), text)
    }
}
