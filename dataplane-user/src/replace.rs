//! Writes a small file as a whole: readers find the old content or the new, and after a crash of the machine too.

use std::{
    fs::{self, File},
    io::{self, Write as _},
    os::unix::fs::OpenOptionsExt as _,
    path::Path,
};

/// As [`replace_with`], with a text.
///
/// # Errors
/// As [`replace_with`].
pub(crate) fn replace(path: &Path, aside: &Path, text: &[u8]) -> io::Result<()> {
    replace_with(path, aside, |mut file| file.write_all(text))
}

/// Has the new file `aside` written, syncs it to the disk, and renames it to `path`, which is in the same folder. Returns what `write` returns.
///
/// # Errors
/// Where any step fails. The old file is unchanged then, unless only the sync of its folder failed.
pub(crate) fn replace_with<T>(
    path: &Path,
    aside: &Path,
    write: impl FnOnce(&File) -> io::Result<T>,
) -> io::Result<T> {
    // The file is created anew, since anything may lie at this path, such as a pipe that nobody reads.
    if let Err(error) = fs::remove_file(aside)
        && error.kind() != io::ErrorKind::NotFound
    {
        return Err(error);
    }
    let file = File::options().write(true).create_new(true).mode(0o600).open(aside)?;
    let written = write(&file)?;
    file.sync_all()?;
    fs::rename(aside, path)?;
    sync_folder(path)?;
    Ok(written)
}

/// Syncs the folder of `path` to the disk, so that a file that was renamed or removed there stays so.
///
/// # Errors
/// Where the folder cannot be opened or synced.
pub(crate) fn sync_folder(path: &Path) -> io::Result<()> {
    match path.parent() {
        Some(folder) => File::open(folder)?.sync_all(),
        None => Ok(()),
    }
}
