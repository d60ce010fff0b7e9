use std::{
    fs::{self, File},
    io::{self, Read as _, Write as _},
    os::unix::fs::OpenOptionsExt as _,
    path::{Path, PathBuf},
};

use super::format;
use crate::enforce::{Now, Saved};

/// Longest flags file that is believed, in bytes.
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
    /// Why there is nothing although there was a file.
    pub problem: Option<String>,
}

/// The file that keeps all claims while no agent runs: those of the source and of other causes too, whose verdicts the next
/// agent renews before it has heard of them.
///
/// A file that cannot be believed (damaged, of a later version, or from before the machine booted) gives no claims: the cut then
/// lapses, traffic flows, and `status` says so. It is kept aside as `flags.json.bad`.
#[derive(Debug)]
pub struct FlagStore {
    path: PathBuf,
    boot_id: String,
}

impl FlagStore {
    /// The store in a run folder, which must exist.
    pub fn new(run_dir: &Path) -> Self {
        let boot_id = fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
        Self { path: run_dir.join("flags.json"), boot_id: boot_id.trim().to_owned() }
    }

    /// Makes sure that the file, where there is one, can be read and written anew: else the agent's flags would not outlive the agent.
    /// [`FlagStore::adopt`] reads what the file says.
    ///
    /// # Errors
    /// Where something else lies in its place, or it cannot be opened.
    pub fn check(&self) -> Result<(), StoreError> {
        match self.open() {
            Err(error) if !matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::InvalidData) => {
                Err(self.failed(error))
            }
            _ => Ok(()),
        }
    }

    /// Removes the file and what lies beside it of the kind. Returns whether there was one; its flags end with it.
    ///
    /// # Errors
    /// Where one of them cannot be removed.
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

    /// The file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    fn aside(&self) -> PathBuf {
        self.path.with_extension("json.new")
    }

    fn failed(&self, source: io::Error) -> StoreError {
        StoreError { path: self.path.clone(), source }
    }

    /// Reads what an earlier agent left.
    ///
    /// # Errors
    /// Where it cannot be read at this moment (no descriptor, no memory, an error of the disk): it may be good, and stays.
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

    fn read(&self) -> io::Result<String> {
        let mut text = String::new();
        self.open()?.take(MAX_BYTES).read_to_string(&mut text)?;
        Ok(text)
    }

    fn open(&self) -> io::Result<File> {
        // O_NONBLOCK: to open a pipe that nobody writes to must not hang.
        let file = File::options().read(true).custom_flags(nix::libc::O_NONBLOCK).open(&self.path)?;
        let meta = file.metadata()?;
        if !meta.is_file() {
            return Err(io::Error::other("is not a regular file; move it away"));
        }
        if meta.len() > MAX_BYTES {
            let text = format!("{} bytes; the limit is {MAX_BYTES}", meta.len());
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

    /// Writes all claims: aside, to the disk, then over the old file.
    ///
    /// # Errors
    /// Where any of it fails; the old file stays as it was.
    pub fn save(&self, saved: &Saved) -> Result<(), StoreError> {
        let written = format::write(saved, &self.boot_id).map_err(io::Error::from);
        written.and_then(|text| self.write(&text)).map_err(|source| self.failed(source))
    }

    fn write(&self, text: &[u8]) -> io::Result<()> {
        // The next agent would not read it, and not start for it: the reasons may be of any length.
        if text.len() as u64 > MAX_BYTES {
            return Err(io::Error::other(format!("would be {} bytes; the limit is {MAX_BYTES}", text.len())));
        }
        let aside = self.aside();
        // Made anew: what lies there may be anything, and only a file of our own is sure to take the text.
        if let Err(error) = fs::remove_file(&aside)
            && error.kind() != io::ErrorKind::NotFound
        {
            return Err(error);
        }
        let mut file = File::options().write(true).create_new(true).mode(0o600).open(&aside)?;
        file.write_all(text)?;
        file.sync_all()?;
        fs::rename(&aside, &self.path)?;
        if let Some(folder) = self.path.parent() {
            File::open(folder)?.sync_all()?;
        }
        Ok(())
    }
}
