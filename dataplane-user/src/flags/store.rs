use std::{
    collections::BTreeMap,
    fs::{self, File},
    io::{self, Read as _, Write as _},
    os::unix::fs::OpenOptionsExt as _,
    path::{Path, PathBuf},
    time::Duration,
};

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::{
    clock::Clocks,
    set::{Flag, Origin},
};
use crate::cluster::NodeName;

const VERSION: u32 = 1;
/// Longest flags file that is believed, in bytes.
const MAX_BYTES: u64 = 16 << 20;

/// Why the flags file could not be written.
#[derive(Debug, thiserror::Error)]
#[error("flags file {}: {source}", path.display())]
pub struct StoreError {
    path: PathBuf,
    source: io::Error,
}

/// What lay in the flags file.
#[derive(Debug, Default)]
pub struct Adopted {
    /// Flags that still hold.
    pub flags: BTreeMap<NodeName, Flag>,
    /// Why there are none although there was a file.
    pub problem: Option<String>,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Stored {
    version: u32,
    /// CLOCK_BOOTTIME means nothing after another boot.
    boot_id: String,
    flags: Vec<StoredFlag>,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct StoredFlag {
    node: NodeName,
    reason: String,
    since: Timestamp,
    ends_boot_ms: Option<u64>,
}

/// The file that keeps the CLI's flags while no agent runs.
///
/// A file that cannot be believed (damaged, or from before the machine booted) gives no flags: the cut then lapses, traffic
/// flows, and `status` says so. It is kept aside as `flags.json.bad`.
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

    /// Makes sure that the file, where there is one, can be read and written anew: else the agent's flags would not outlive
    /// it. What the file says is [`FlagStore::adopt`]'s matter.
    ///
    /// # Errors
    /// Where something else lies in its place, or it cannot be opened.
    pub fn check(&self) -> Result<(), StoreError> {
        match self.open() {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(self.failed(error)),
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
    pub fn adopt(&self, now: Clocks) -> Result<Adopted, StoreError> {
        let text = match self.read() {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Adopted::default()),
            Err(error) if error.kind() == io::ErrorKind::InvalidData => {
                return Ok(self.reject(format!("is damaged: {error}")));
            }
            Err(error) => return Err(self.failed(error)),
        };
        let stored: Stored = match serde_json::from_str(&text) {
            Ok(stored) => stored,
            Err(error) => return Ok(self.reject(format!("is damaged: {error}"))),
        };
        if stored.version != VERSION {
            return Ok(self.reject(format!("is of version {}, expected {VERSION}", stored.version)));
        }
        if stored.boot_id != self.boot_id {
            return Ok(self.reject("is from before the machine booted".into()));
        }
        let flags = stored.flags.into_iter().map(|flag| {
            let ends = flag.ends_boot_ms.map(Duration::from_millis);
            let StoredFlag { node, reason, since, .. } = flag;
            (node, Flag { origin: Origin::Cli, reason, since, ends, until: None })
        });
        Ok(Adopted { flags: flags.filter(|(_, flag)| !flag.ended(now)).collect(), problem: None })
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
            return Err(io::Error::other(format!("{} bytes; the limit is {MAX_BYTES}", meta.len())));
        }
        Ok(file)
    }

    fn reject(&self, why: String) -> Adopted {
        let aside = self.path.with_extension("json.bad");
        let kept = match fs::rename(&self.path, &aside) {
            Ok(()) => format!("; kept as {}", aside.display()),
            Err(_) => String::new(),
        };
        let problem =
            format!("flags file {} {why}; its flags are gone, flag again{kept}", self.path.display());
        Adopted { flags: BTreeMap::new(), problem: Some(problem) }
    }

    /// Writes the CLI's flags: aside, to the disk, then over the old file.
    ///
    /// # Errors
    /// Where any of it fails; the old file stays as it was.
    pub fn save(&self, flags: &BTreeMap<NodeName, Flag>) -> Result<(), StoreError> {
        let stored = Stored {
            version: VERSION,
            boot_id: self.boot_id.clone(),
            flags: flags
                .iter()
                .map(|(node, flag)| StoredFlag {
                    node: node.clone(),
                    reason: flag.reason.clone(),
                    since: flag.since,
                    ends_boot_ms: flag.ends.map(|ends| u64::try_from(ends.as_millis()).unwrap_or(u64::MAX)),
                })
                .collect(),
        };
        self.write(&stored).map_err(|source| self.failed(source))
    }

    fn write(&self, stored: &Stored) -> io::Result<()> {
        let aside = self.aside();
        // Made anew: what lies there may be anything, and only a file of our own is sure to take the text.
        if let Err(error) = fs::remove_file(&aside)
            && error.kind() != io::ErrorKind::NotFound
        {
            return Err(error);
        }
        let mut file = File::options().write(true).create_new(true).mode(0o600).open(&aside)?;
        serde_json::to_writer_pretty(&mut file, stored)?;
        file.write_all(b"\n")?;
        file.sync_all()?;
        fs::rename(&aside, &self.path)?;
        if let Some(folder) = self.path.parent() {
            File::open(folder)?.sync_all()?;
        }
        Ok(())
    }
}
