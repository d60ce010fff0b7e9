use std::{
    collections::BTreeMap,
    fs::{self, File},
    io::{self, Write as _},
    os::unix::fs::{FileExt as _, MetadataExt as _, OpenOptionsExt as _},
    path::{Path, PathBuf},
};

use serde::{Deserialize, Serialize};

use super::{Entry, Error, Pair, Record, stored::Stored};
use crate::flags::boot_id;

/// The version of the lines' meaning. A reader of another version sets the file aside and adopts nothing.
const VERSION: u32 = 1;
/// The largest number of files that are set aside. Another one replaces the last.
const KEPT: usize = 9;
/// The number of lines beyond the entries from which on the file is written anew.
const SLACK: usize = 4_096;

/// The first line of the file.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
struct Header {
    version: u32,
    boot_id: String,
    /// Inode of the network namespace.
    netns: u64,
}

impl Header {
    fn here() -> Self {
        let netns = fs::metadata("/proc/thread-self/ns/net").map_or(0, |meta| meta.ino());
        Self { version: VERSION, boot_id: boot_id(), netns }
    }

    /// Why a file with this header does not count for a process whose own header is `here`.
    fn foreign(&self, here: &Self) -> Option<&'static str> {
        if self.version != here.version {
            Some("is of another version")
        } else if self.boot_id != here.boot_id {
            Some("is from before the machine booted")
        } else if self.netns != here.netns {
            Some("is of another network namespace")
        } else {
            None
        }
    }
}

/// The content of the file.
#[derive(Debug, Default)]
pub struct Loaded {
    /// The destinations that are ours to restore.
    pub entries: BTreeMap<Pair, Entry>,
    /// The number of lines that could not be read, because their write was cut short or they were damaged later. They count as not written.
    pub damaged: usize,
    /// Why nothing in the file counts.
    pub problem: Option<&'static str>,
    /// The file is from before the machine booted. Its IPVS tables ended with that boot, so nothing is left to restore.
    pub ended_with_its_tables: bool,
    /// The path at which [`Ledger::open`] set the file aside. The file may name destinations in tables that still exist.
    pub aside: Option<PathBuf>,
    /// The file has nothing behind its first line.
    blank: bool,
    /// The first line cannot be read, but others can.
    headless: bool,
}

impl Loaded {
    /// Why nothing in the file counts, where the file must not be lost all the same: its destinations may still be drained, also in
    /// another network namespace.
    pub fn unread(&self) -> Option<&'static str> {
        self.problem.filter(|_| !self.ended_with_its_tables && !self.blank)
    }
}

/// The ledger's file, open for writing.
#[derive(Debug)]
pub struct Ledger {
    path: PathBuf,
    file: File,
    lines: usize,
    /// Whether the last write may have ended within a line.
    torn: bool,
}

impl Ledger {
    /// The path of the ledger in a run folder.
    pub fn path(run_dir: &Path) -> PathBuf {
        run_dir.join(format!("{}log", super::FILES))
    }

    /// Opens the ledger in a run folder, which must exist, and reads the entries that an earlier agent left. A file from before the machine
    /// booted is begun anew. A file that cannot be read, or that is of another network namespace, is set aside ([`Loaded::aside`]).
    ///
    /// # Errors
    /// Where the file cannot be read or written.
    pub fn open(run_dir: &Path) -> Result<(Self, Loaded), Error> {
        let path = Self::path(run_dir);
        let failed = |what| {
            let path = path.clone();
            move |source| Error { path, what, source }
        };
        let file = File::options()
            .read(true)
            .append(true)
            .create(true)
            .mode(0o600)
            .custom_flags(nix::libc::O_NOFOLLOW | nix::libc::O_NONBLOCK)
            .open(&path)
            .map_err(failed("open"))?;
        let bytes = read_all(&file).map_err(failed("read"))?;
        let (mut loaded, lines) = parse(&bytes, &Header::here());
        if loaded.unread().is_some() {
            let aside = aside(&path);
            fs::rename(&path, &aside).map_err(failed("set aside"))?;
            loaded.aside = Some(aside);
        }
        let torn = bytes.last().is_some_and(|&byte| byte != b'\n');
        let mut this = Self { path: path.clone(), file, lines, torn };
        if bytes.is_empty() || loaded.problem.is_some() || loaded.headless {
            this.rewrite(&loaded.entries)?;
        }
        Ok((this, loaded))
    }

    /// Reads the ledger of a run folder. Where there is no file there are no entries.
    ///
    /// # Errors
    /// Where the file cannot be read.
    pub fn read(run_dir: &Path) -> Result<Loaded, Error> {
        let path = Self::path(run_dir);
        let read = File::options()
            .read(true)
            .custom_flags(nix::libc::O_NOFOLLOW | nix::libc::O_NONBLOCK)
            .open(&path)
            .and_then(|file| read_all(&file));
        match read {
            Ok(bytes) => Ok(parse(&bytes, &Header::here()).0),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Loaded::default()),
            Err(source) => Err(Error { path, what: "read", source }),
        }
    }

    /// Whether the ledger of a run folder has nothing that must, or may have to, be restored. Cheap.
    ///
    /// # Errors
    /// Where the file cannot be read.
    pub fn is_empty(run_dir: &Path) -> Result<bool, Error> {
        match fs::metadata(Self::path(run_dir)) {
            // So long a file has entries, or history that the agent soon removes. It is not read, and counts as not empty.
            Ok(meta) if meta.len() > 4_096 => Ok(false),
            Ok(_) => {
                let loaded = Self::read(run_dir)?;
                Ok(loaded.entries.is_empty() && loaded.unread().is_none())
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(true),
            Err(source) => Err(Error { path: Self::path(run_dir), what: "look at", source }),
        }
    }

    /// Removes all files of the ledger except those that were set aside. Returns whether there was a ledger.
    ///
    /// # Errors
    /// Where a file cannot be removed.
    pub fn remove(run_dir: &Path) -> Result<bool, Error> {
        let mut was = false;
        for name in ["log", "new", "turn", "owner", "guard", "apart", "waits"] {
            let path = run_dir.join(format!("{}{name}", super::FILES));
            match fs::remove_file(&path) {
                Ok(()) => was |= name == "log",
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(source) => return Err(Error { path, what: "remove", source }),
            }
        }
        Ok(was)
    }

    /// Whether the open file is still the one that other processes find in the run folder.
    pub fn is_there(&self) -> bool {
        super::is_at(&self.file, &self.path)
    }

    /// Adds the lines of these records. Only after this may the caller change the kernel's tables accordingly.
    ///
    /// # Errors
    /// Where not all lines are written. Then the caller may carry out none of these records.
    pub fn append(&mut self, records: &[Record]) -> Result<(), Error> {
        if records.is_empty() {
            return Ok(());
        }
        let mut text = Vec::with_capacity(records.len() * 192);
        if self.torn {
            text.push(b'\n');
        }
        for record in records {
            line(&mut text, &Stored::of(record));
        }
        self.torn = true;
        self.file.write_all(&text).map_err(|source| self.failed("write to", source))?;
        self.torn = false;
        self.lines += records.len();
        Ok(())
    }

    /// Writes the file anew where most of its lines are history. To be called when there is nothing else to do. `entries` gives the
    /// destinations that are ours to restore, `count` is their number.
    ///
    /// # Errors
    /// Where writing fails. The old file stays.
    pub fn rest(
        &mut self,
        count: usize,
        entries: impl FnOnce() -> BTreeMap<Pair, Entry>,
    ) -> Result<(), Error> {
        let history = self.lines.saturating_sub(count);
        if history == 0 || (count > 0 && history < SLACK.max(count * 4)) {
            return Ok(());
        }
        self.rewrite(&entries())
    }

    /// Writes a new file and renames it over the old one.
    ///
    /// # Errors
    /// Where writing fails. The old file stays.
    pub fn rewrite(&mut self, entries: &BTreeMap<Pair, Entry>) -> Result<(), Error> {
        let aside = self.path.with_extension("new");
        let mut text = Vec::new();
        line(&mut text, &Header::here());
        for (pair, entry) in entries {
            line(&mut text, &Stored::of(&Record::Own(*pair, entry.clone())));
        }
        let file = (|| {
            if let Err(error) = fs::remove_file(&aside)
                && error.kind() != io::ErrorKind::NotFound
            {
                return Err(error);
            }
            let mut file =
                File::options().read(true).append(true).create_new(true).mode(0o600).open(&aside)?;
            file.write_all(&text)?;
            fs::rename(&aside, &self.path)?;
            Ok(file)
        })()
        .map_err(|source| self.failed("rewrite", source))?;
        self.file = file;
        self.lines = entries.len();
        self.torn = false;
        Ok(())
    }

    fn failed(&self, what: &'static str, source: io::Error) -> Error {
        Error { path: self.path.clone(), what, source }
    }
}

/// The path at which to set a file aside. Files that were set aside earlier stay, since they name the destinations that were drained first.
fn aside(path: &Path) -> PathBuf {
    (1..KEPT)
        .map(|number| bad(path, number))
        .find(|path| fs::symlink_metadata(path).is_err())
        .unwrap_or_else(|| bad(path, KEPT))
}

/// The files of a run folder that were set aside. The destinations that they name may still be drained.
pub fn put_aside(folder: &Path) -> Vec<PathBuf> {
    let path = Ledger::path(folder);
    let all = (1..=KEPT).map(|number| bad(&path, number));
    all.filter(|path| fs::symlink_metadata(path).is_ok()).collect()
}

fn bad(path: &Path, n: usize) -> PathBuf {
    path.with_extension(format!("bad{n}"))
}

/// Reads the whole file from its beginning, wherever the file's position is.
fn read_all(file: &File) -> io::Result<Vec<u8>> {
    let meta = file.metadata()?;
    if !meta.is_file() {
        return Err(io::Error::other("is not a regular file; move it away"));
    }
    let mut bytes = Vec::new();
    let mut piece = vec![0; 1 << 16];
    loop {
        match file.read_at(&mut piece, bytes.len() as u64) {
            Ok(0) => return Ok(bytes),
            Ok(len) => bytes.extend_from_slice(&piece[..len]),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
}

/// Writes a line: `checksum json`. The checksum tells a whole line from one that was cut short or overwritten.
fn line(out: &mut Vec<u8>, value: &impl Serialize) {
    // Values of these types can always be written as JSON.
    let json = serde_json::to_vec(value).unwrap_or_default();
    out.extend_from_slice(format!("{:08x} ", crc32fast::hash(&json)).as_bytes());
    out.extend_from_slice(&json);
    out.push(b'\n');
}

fn whole(line: &[u8]) -> Option<&[u8]> {
    let (sum, rest) = line.split_at_checked(8)?;
    let json = rest.strip_prefix(b" ")?;
    let sum = u32::from_str_radix(std::str::from_utf8(sum).ok()?, 16).ok()?;
    (sum == crc32fast::hash(json)).then_some(json)
}

/// Reads the file. Returns its content and the number of lines behind the first one. Each line has a checksum of its own: where the first
/// line is damaged, the others still say what must be restored.
fn parse(bytes: &[u8], here: &Header) -> (Loaded, usize) {
    let mut loaded = Loaded::default();
    let mut lines = bytes.split(|&byte| byte == b'\n').filter(|line| !line.is_empty());
    let Some(first) = lines.next() else { return (loaded, 0) };
    let header: Option<Header> = whole(first).and_then(|json| serde_json::from_slice(json).ok());
    if let Some(header) = &header
        && let problem @ Some(_) = header.foreign(here)
    {
        let ended_with_its_tables = header.boot_id != here.boot_id;
        let blank = lines.next().is_none();
        return (Loaded { problem, ended_with_its_tables, blank, ..loaded }, 0);
    }
    let mut count = 0;
    if header.is_none() {
        loaded.headless = true;
        loaded.damaged = 1;
    }
    for line in lines {
        count += 1;
        let stored: Option<Stored> = whole(line).and_then(|json| serde_json::from_slice(json).ok());
        match stored.and_then(Stored::record) {
            None => loaded.damaged += 1,
            Some(Record::Own(pair, entry)) => drop(loaded.entries.insert(pair, entry)),
            Some(Record::Drop(pair)) => drop(loaded.entries.remove(&pair)),
            Some(Record::Phase(pair, phase)) => {
                if let Some(entry) = loaded.entries.get_mut(&pair) {
                    entry.phase = phase;
                }
            }
        }
    }
    if loaded.headless && loaded.entries.is_empty() {
        return (Loaded { problem: Some("has no readable first line"), ..Loaded::default() }, 0);
    }
    (loaded, count)
}
