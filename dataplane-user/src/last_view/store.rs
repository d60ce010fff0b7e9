use std::{
    fs::{self, File},
    io::{self, BufReader, BufWriter, Write as _},
    path::{Path, PathBuf},
};

use super::format::{self, ReadView, Stamp, Unread};
use crate::{
    cluster::SourceName,
    enforce::Now,
    flags::boot_id,
    read::{open, read},
    replace::replace_with,
    source::{Kept, Stored, StoredAge},
};

/// How much is written and read at a time, in bytes.
const PIECE: usize = 1 << 16;
/// The longest file of a confirmation that is read, in bytes.
const LONGEST_CONFIRMATION: u64 = 4096;

/// Why a file could not be read or written.
#[derive(Debug, thiserror::Error)]
#[error("{}: {source}", path.display())]
pub struct ViewFileError {
    path: PathBuf,
    source: io::Error,
}

/// What lies in the file.
#[derive(Debug, PartialEq, Eq)]
pub enum Loaded {
    /// There is no file.
    Nothing,
    /// A view.
    View(Stored),
    /// A file that gives no view, and why.
    Unusable(String),
}

/// The file with the last good view, `view.json`, and beside it when the view was confirmed again, `view-confirmed.json`: in a quiet cluster only the small
/// file is written.
///
/// A file that is damaged is set aside as `view.json.bad`. One of another version or source stays until this agent stores its own view: the agent from which this one
/// takes over may be the one that wrote it.
#[derive(Debug)]
pub struct ViewFile {
    view: PathBuf,
    confirmed: PathBuf,
    boot_id: String,
}

impl ViewFile {
    /// The files in a run folder, which must exist.
    pub fn new(run_dir: &Path) -> Self {
        Self {
            view: run_dir.join("view.json"),
            confirmed: run_dir.join("view-confirmed.json"),
            boot_id: boot_id(),
        }
    }

    /// The path of the file with the view.
    pub fn path(&self) -> &Path {
        &self.view
    }

    /// Writes a view that the source last confirmed at that time. Returns its checksum.
    ///
    /// # Errors
    /// Where any step fails. The old file is unchanged then, unless only the sync of its folder failed.
    pub fn save(&self, kept: &Kept, confirmed: Now) -> Result<u32, ViewFileError> {
        let stamp = Stamp::new(confirmed, &self.boot_id);
        replace(&self.view, |file| format::write(BufWriter::with_capacity(PIECE, file), kept, stamp))
    }

    /// Writes that the source confirmed the view of this checksum again.
    ///
    /// # Errors
    /// As of [`ViewFile::save`].
    pub fn confirm(&self, view: u32, confirmed: Now) -> Result<(), ViewFileError> {
        let text = format::confirmed(view, Stamp::new(confirmed, &self.boot_id));
        replace(&self.confirmed, |mut file| file.write_all(&text?))
    }

    /// Reads the view that an earlier agent wrote.
    ///
    /// # Errors
    /// Where the file cannot be read at this moment. The file may be good, so it stays.
    pub fn load(&self, source: SourceName, now: Now) -> Result<Loaded, ViewFileError> {
        let file = match open(&self.view) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Loaded::Nothing),
            Err(source) => return Err(ViewFileError { path: self.view.clone(), source }),
        };
        let unknown = StoredAge { confirmed: now, before_boot: std::time::Duration::ZERO };
        let parsed = format::read(BufReader::with_capacity(PIECE, file), source.key(), unknown);
        match parsed {
            Ok(view) => Ok(self.aged(view, now)),
            Err(Unread::Others(why)) => Ok(Loaded::Unusable(format!("{} {why}", self.view.display()))),
            Err(Unread::Refused(why)) => Ok(self.reject(&why)),
            Err(Unread::Io(source)) => Err(ViewFileError { path: self.view.clone(), source }),
        }
    }

    /// The view with its age.
    fn aged(&self, view: ReadView, now: Now) -> Loaded {
        let again = self.confirmation().and_then(|text| format::read_confirmed(&text, view.sum));
        let stamps = again.iter().chain([&view.confirmed]);
        let ages = stamps.filter_map(|stamp| stamp.age(&self.boot_id, now));
        match ages.min_by_key(|age| (age.before_boot, std::cmp::Reverse(age.confirmed.boot))) {
            Some(age) => Loaded::View(Stored { age, ..view.stored }),
            None => Loaded::Unusable(format!(
                "{} is from the future, so that its age is not known: it is not used",
                self.view.display()
            )),
        }
    }

    /// What the small file says. Without it the view is as old as its own file says.
    fn confirmation(&self) -> Option<Vec<u8>> {
        read(&self.confirmed, LONGEST_CONFIRMATION).ok()
    }

    fn reject(&self, why: &str) -> Loaded {
        let bad = bad(&self.view);
        let kept = match fs::rename(&self.view, &bad) {
            Ok(()) => format!("; kept as {}", bad.display()),
            Err(_) => String::new(),
        };
        Loaded::Unusable(format!("{} {why}{kept}", self.view.display()))
    }

    /// Removes the files, also those that were set aside or were not finished. Returns whether there was a view.
    ///
    /// # Errors
    /// Where one of them cannot be removed.
    pub fn remove(&self) -> Result<bool, ViewFileError> {
        let mut was = false;
        let beside = [bad(&self.view), new(&self.view), self.confirmed.clone(), new(&self.confirmed)];
        for path in [self.view.clone()].into_iter().chain(beside) {
            match fs::remove_file(&path) {
                Ok(()) => was |= path == self.view,
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(source) => return Err(ViewFileError { path, source }),
            }
        }
        Ok(was)
    }
}

fn bad(path: &Path) -> PathBuf {
    path.with_extension("json.bad")
}

fn new(path: &Path) -> PathBuf {
    path.with_extension("json.new")
}

/// Replaces a file of this module by a new one.
fn replace<T>(path: &Path, write: impl FnOnce(&File) -> io::Result<T>) -> Result<T, ViewFileError> {
    let aside = new(path);
    replace_with(path, &aside, write).map_err(|source| {
        // The run folder may lie in memory.
        let _kept = fs::remove_file(&aside);
        ViewFileError { path: path.to_owned(), source }
    })
}
