//! Reads a small file of a folder in which anything may lie, such as a pipe that nobody writes to.

use std::{
    fs::File,
    io::{self, Read as _},
    os::unix::fs::OpenOptionsExt as _,
    path::Path,
};

/// Opens a regular file. Never hangs on anything else.
///
/// # Errors
/// Where there is no such file, or something else lies there.
pub(crate) fn open(path: &Path) -> io::Result<File> {
    // O_NONBLOCK: opening a pipe that has no writer must not hang.
    let file = File::options().read(true).custom_flags(nix::libc::O_NONBLOCK).open(path)?;
    if !file.metadata()?.is_file() {
        return Err(io::Error::other("is not a regular file; move it away"));
    }
    Ok(file)
}

/// The content of a regular file of at most this many bytes.
///
/// # Errors
/// As of [`open`], and where the file is longer.
pub(crate) fn read(path: &Path, most: u64) -> io::Result<Vec<u8>> {
    let mut content = Vec::new();
    // One byte more shows that a file is longer.
    open(path)?.take(most.saturating_add(1)).read_to_end(&mut content)?;
    if content.len() as u64 > most {
        return Err(io::Error::other(format!("is longer than {most} bytes")));
    }
    Ok(content)
}

#[cfg(test)]
mod tests {
    use nix::{sys::stat::Mode, unistd::mkfifo};

    use super::*;

    #[test]
    fn a_file_is_read_up_to_its_limit() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        assert_eq!(read(&path, 5).unwrap_err().kind(), io::ErrorKind::NotFound);
        std::fs::write(&path, "12345").unwrap();
        assert_eq!(read(&path, 5).unwrap(), b"12345");
        assert_eq!(read(&path, 4).unwrap_err().to_string(), "is longer than 4 bytes");
    }

    #[test]
    fn what_is_no_file_is_refused_at_once() {
        let folder = tempfile::tempdir().unwrap();
        let pipe = folder.path().join("pipe");
        mkfifo(&pipe, Mode::S_IRUSR | Mode::S_IWUSR).unwrap();
        for path in [&pipe, folder.path()] {
            let error = read(path, 5).unwrap_err();
            assert_eq!(error.to_string(), "is not a regular file; move it away");
        }
    }
}
