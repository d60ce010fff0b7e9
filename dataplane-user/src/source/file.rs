use std::{
    fs::{File, Metadata},
    io::Read as _,
    os::unix::fs::{FileTypeExt as _, MetadataExt as _, OpenOptionsExt as _},
    path::{Path, PathBuf},
    time::Duration,
};

use crate::cluster::{ClusterView, Error, MAX_FILE_BYTES, Problem, parse};

/// The number of attempts to read a file that changes while it is read.
const TRIES: u32 = 5;
/// The time between two attempts.
const RETRY_AFTER: Duration = Duration::from_millis(50);

/// Refuses everything but a regular file: reading anything else might hang or never end.
fn regular(meta: &Metadata) -> Result<(), Problem> {
    let kind = meta.file_type();
    let what = match () {
        () if kind.is_file() => return Ok(()),
        () if kind.is_dir() => "a folder",
        () if kind.is_fifo() => "a pipe",
        () if kind.is_socket() => "a socket",
        () => "a device",
    };
    Err(Problem::NotAFile(what))
}

/// Metadata that tells one state of a file from another without reading the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Stamp {
    dev: u64,
    ino: u64,
    size: u64,
    mtime: (i64, i64),
    ctime: (i64, i64),
}

impl Stamp {
    fn new(meta: &Metadata) -> Self {
        Self {
            dev: meta.dev(),
            ino: meta.ino(),
            size: meta.size(),
            mtime: (meta.mtime(), meta.mtime_nsec()),
            ctime: (meta.ctime(), meta.ctime_nsec()),
        }
    }

    /// The state of the file that `path` leads to. `None` where `path` leads to no file.
    pub(super) fn of(path: &Path) -> Option<Self> {
        std::fs::metadata(path).ok().map(|meta| Self::new(&meta))
    }
}

/// A cluster file on disk.
#[derive(Clone, Debug)]
pub struct FileSource {
    path: PathBuf,
    allow_empty: bool,
}

impl FileSource {
    /// Stores the path. Reads nothing yet.
    pub fn new(path: PathBuf, allow_empty: bool) -> Self {
        Self { path, allow_empty }
    }

    /// The file's path.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Reads and checks the whole file.
    ///
    /// # Errors
    /// Where anything is wrong with the file. Nothing in it is used then.
    pub fn load(&self) -> Result<ClusterView, Error> {
        self.settled_text()
            .and_then(|text| parse(&text, self.allow_empty))
            .map_err(|problem| Error { path: self.path.clone(), problem })
    }

    /// Reads the file's text. The file's metadata must be the same before and after, so that a half-written file is not used.
    fn settled_text(&self) -> Result<String, Problem> {
        for attempt in 0..TRIES {
            if attempt != 0 {
                std::thread::sleep(RETRY_AFTER);
            }
            // The file's kind is checked before the file is opened: opening a device may do something (arm a watchdog, rewind a tape).
            regular(&std::fs::metadata(&self.path).map_err(Problem::Read)?)?;
            // O_NONBLOCK: where a pipe has taken the file's place meanwhile, opening it must not hang.
            let mut file = File::options()
                .read(true)
                .custom_flags(nix::libc::O_NONBLOCK | nix::libc::O_CLOEXEC)
                .open(&self.path)
                .map_err(Problem::Read)?;
            let meta = file.metadata().map_err(Problem::Read)?;
            regular(&meta)?;
            if meta.len() > MAX_FILE_BYTES {
                return Err(Problem::TooLarge(meta.len()));
            }
            let before = Stamp::new(&meta);
            let mut bytes = Vec::new();
            (&mut file).take(MAX_FILE_BYTES + 1).read_to_end(&mut bytes).map_err(Problem::Read)?;
            let after = Stamp::new(&file.metadata().map_err(Problem::Read)?);
            if before == after && bytes.len() as u64 == before.size {
                return String::from_utf8(bytes)
                    .map_err(|error| Problem::NotUtf8(error.utf8_error().valid_up_to()));
            }
        }
        Err(Problem::Unsettled)
    }
}
