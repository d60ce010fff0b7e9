use std::{
    collections::BTreeMap,
    fs::{self, File},
    io::{self, Write as _},
    os::unix::fs::{FileExt as _, MetadataExt as _, OpenOptionsExt as _},
    path::{Path, PathBuf},
};

use serde::{Deserialize, Serialize};

use super::{Entry, Error, Pair, Record, stored::Stored};

/// The version of the lines' meaning. A reader of another version puts the file aside and adopts nothing.
const VERSION: u32 = 1;
/// How many files are kept aside at most; the last one is replaced.
const KEPT: usize = 9;
/// A file with so many more lines than entries is written anew.
const SLACK: usize = 4_096;

/// First line of the file.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
struct Header {
    version: u32,
    boot_id: String,
    /// Inode of the network namespace.
    netns: u64,
}

impl Header {
    fn here() -> Self {
        let boot_id = fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
        let netns = fs::metadata("/proc/thread-self/ns/net").map_or(0, |meta| meta.ino());
        Self { version: VERSION, boot_id: boot_id.trim().to_owned(), netns }
    }

    /// Why a file with this header means nothing to who is at `here`.
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

/// What stands in the file.
#[derive(Debug, Default)]
pub struct Loaded {
    /// What is ours.
    pub entries: BTreeMap<Pair, Entry>,
    /// Lines that could not be read and count as not written: one whose write was cut short, or that was damaged since.
    pub damaged: usize,
    /// Why none of it counts.
    pub problem: Option<&'static str>,
    /// It is from before the machine booted: nothing of what it says is left to be restored.
    pub ended_with_its_tables: bool,
    /// Where the file was put aside, by [`Ledger::open`]: it may name tables that are still there.
    pub aside: Option<PathBuf>,
    /// Nothing stands behind its first line.
    blank: bool,
    /// Its first line cannot be read, others can.
    headless: bool,
}

impl Loaded {
    /// Why the file must not be lost although none of it counts: what was drained may still be so, also in another network namespace.
    pub fn unread(&self) -> Option<&'static str> {
        self.problem.filter(|_| !self.ended_with_its_tables && !self.blank)
    }
}

/// The file, open for writing.
#[derive(Debug)]
pub struct Ledger {
    path: PathBuf,
    file: File,
    lines: usize,
    /// The last write may have ended within a line.
    torn: bool,
}

impl Ledger {
    /// Where the ledger of a run folder is.
    pub fn path(run_dir: &Path) -> PathBuf {
        run_dir.join(format!("{}log", super::FILES))
    }

    /// Opens the ledger in a run folder, which must exist, and reads what an earlier agent left. A file from before the machine booted is begun
    /// anew; one that cannot be read, or speaks of another network namespace, is put aside ([`Loaded::aside`]).
    ///
    /// # Errors
    /// Where it cannot be read or written.
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
            .map_err(failed("open it"))?;
        let bytes = read_all(&file).map_err(failed("read it"))?;
        let (mut loaded, lines) = parse(&bytes, &Header::here());
        if loaded.unread().is_some() {
            let aside = aside(&path);
            fs::rename(&path, &aside).map_err(failed("put it aside"))?;
            loaded.aside = Some(aside);
        }
        let torn = bytes.last().is_some_and(|&byte| byte != b'\n');
        let mut this = Self { path: path.clone(), file, lines, torn };
        if bytes.is_empty() || loaded.problem.is_some() || loaded.headless {
            this.rewrite(&loaded.entries)?;
        }
        Ok((this, loaded))
    }

    /// Reads the ledger of a run folder; nothing where there is none.
    ///
    /// # Errors
    /// Where it cannot be read.
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
            Err(source) => Err(Error { path, what: "read it", source }),
        }
    }

    /// Whether nothing stands in the ledger of a run folder that is to be restored, or may be. Cheap.
    ///
    /// # Errors
    /// Where it cannot be read.
    pub fn is_empty(run_dir: &Path) -> Result<bool, Error> {
        match fs::metadata(Self::path(run_dir)) {
            // More than a first line and a few entries that were dropped: there is something, or will be written away.
            Ok(meta) if meta.len() > 4_096 => Ok(false),
            Ok(_) => {
                let loaded = Self::read(run_dir)?;
                Ok(loaded.entries.is_empty() && loaded.unread().is_none())
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(true),
            Err(source) => Err(Error { path: Self::path(run_dir), what: "look at it", source }),
        }
    }

    /// Removes all files of the ledger but those that were put aside. Returns whether there was one.
    ///
    /// # Errors
    /// Where one cannot be removed.
    pub fn remove(run_dir: &Path) -> Result<bool, Error> {
        let mut was = false;
        for name in ["log", "new", "turn", "owner", "guard", "apart"] {
            let path = run_dir.join(format!("{}{name}", super::FILES));
            match fs::remove_file(&path) {
                Ok(()) => was |= name == "log",
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(source) => return Err(Error { path, what: "remove it", source }),
            }
        }
        Ok(was)
    }

    /// Whether it is still the file that others find in the run folder.
    pub fn is_there(&self) -> bool {
        super::is_at(&self.file, &self.path)
    }

    /// Adds lines. Only after this may the kernel be told what they say.
    ///
    /// # Errors
    /// Where they are not all written: then nothing of them may be done.
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
        self.file.write_all(&text).map_err(|source| self.failed("write to it", source))?;
        self.torn = false;
        self.lines += records.len();
        Ok(())
    }

    /// To be called when there is nothing to do: writes the file anew where most of its lines are history. `entries` is what is ours, `count` of
    /// them.
    ///
    /// # Errors
    /// Where that fails; the old file stays.
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

    /// Writes the file anew, aside, and puts it in the old one's place.
    ///
    /// # Errors
    /// Where that fails; the old file stays.
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
        .map_err(|source| self.failed("write it anew", source))?;
        (self.file, self.lines, self.torn) = (file, entries.len(), false);
        Ok(())
    }

    fn failed(&self, what: &'static str, source: io::Error) -> Error {
        Error { path: self.path.clone(), what, source }
    }
}

/// Where to put a file that cannot be read: what already lies aside says what was drained first, so it stays.
fn aside(path: &Path) -> PathBuf {
    (1..KEPT)
        .map(|n| bad(path, n))
        .find(|path| fs::symlink_metadata(path).is_err())
        .unwrap_or_else(|| bad(path, KEPT))
}

/// Files of a run folder that were put aside. The destinations that they name may still be drained.
pub fn put_aside(folder: &Path) -> Vec<PathBuf> {
    let path = Ledger::path(folder);
    (1..=KEPT).map(|n| bad(&path, n)).filter(|path| fs::symlink_metadata(path).is_ok()).collect()
}

fn bad(path: &Path, n: usize) -> PathBuf {
    path.with_extension(format!("bad{n}"))
}

/// From its beginning, whatever was written or read before.
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

/// `checksum json`, so that a line that was cut short or overwritten is told from a whole one.
fn line(out: &mut Vec<u8>, value: &impl Serialize) {
    // Nothing in these types can fail to be JSON.
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

/// What counts of the file, and how many of its lines are records. Each line has a checksum of its own: where the first one is damaged, the others still
/// say what is to be restored.
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
        (loaded.headless, loaded.damaged) = (true, 1);
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
