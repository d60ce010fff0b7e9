use std::{
    collections::BTreeMap,
    fs::{self, File},
    io::{self, Write as _},
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
    pub flags: BTreeMap<String, Flag>,
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
    node: String,
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

    /// Reads what an earlier agent left.
    pub fn adopt(&self, now: Clocks) -> Adopted {
        let text = match self.read() {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Adopted::default(),
            Err(error) => return self.reject(format!("cannot be read: {error}")),
        };
        let stored: Stored = match serde_json::from_str(&text) {
            Ok(stored) => stored,
            Err(error) => return self.reject(format!("is damaged: {error}")),
        };
        if stored.version != VERSION {
            return self.reject(format!("is of version {}, expected {VERSION}", stored.version));
        }
        if stored.boot_id != self.boot_id {
            return self.reject("is from before the machine booted".into());
        }
        let flags = stored.flags.into_iter().map(|flag| {
            let ends = flag.ends_boot_ms.map(Duration::from_millis);
            let StoredFlag { node, reason, since, .. } = flag;
            (node, Flag { origin: Origin::Cli, reason, since, ends, until: None })
        });
        Adopted { flags: flags.filter(|(_, flag)| !flag.ended(now)).collect(), problem: None }
    }

    fn read(&self) -> io::Result<String> {
        let length = fs::metadata(&self.path)?.len();
        if length > MAX_BYTES {
            return Err(io::Error::other(format!("{length} bytes; the limit is {MAX_BYTES}")));
        }
        fs::read_to_string(&self.path)
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
    pub fn save(&self, flags: &BTreeMap<String, Flag>) -> Result<(), StoreError> {
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
        self.write(&stored).map_err(|source| StoreError { path: self.path.clone(), source })
    }

    fn write(&self, stored: &Stored) -> io::Result<()> {
        let aside = self.path.with_extension("json.new");
        let mut file = File::options().write(true).create(true).truncate(true).mode(0o600).open(&aside)?;
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
