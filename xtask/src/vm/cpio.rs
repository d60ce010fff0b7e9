//! Writes an initramfs in the newc cpio format (Documentation/driver-api/early-userspace/buffer-format.rst).

use std::collections::BTreeSet;
use std::fs;
use std::io::{self, Write};
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use anyhow::{Context as _, Result};

const DIRECTORY: u32 = 0o040_755;
const REGULAR: u32 = 0o100_000;
const LINK: u32 = 0o120_777;

/// The end of an archive: the name of its last entry, and the padding to a multiple of four bytes.
pub(crate) const END: &[u8; 14] = b"TRAILER!!!\0\0\0\0";

/// Writes one archive. An entry brings the folders above it. If a path is added twice, the first entry counts.
#[derive(Debug)]
pub(crate) struct Archive<W> {
    out: W,
    written: BTreeSet<String>,
    inode: u32,
}

impl<W: Write> Archive<W> {
    pub(crate) fn new(out: W) -> Self {
        Self { out, written: BTreeSet::new(), inode: 0 }
    }

    /// Adds a folder, and the folders above it.
    pub(crate) fn folder(&mut self, path: &str) -> io::Result<()> {
        let path = path.trim_matches('/');
        let ends = path.match_indices('/').map(|(at, _)| at).chain([path.len()]);
        for end in ends {
            self.entry(&path[..end], DIRECTORY, &[])?;
        }
        Ok(())
    }

    /// Adds a file with these bytes.
    pub(crate) fn file(&mut self, path: &str, mode: u32, bytes: &[u8]) -> io::Result<()> {
        self.parents(path)?;
        self.entry(path.trim_matches('/'), REGULAR | (mode & 0o7777), bytes)
    }

    /// Adds a symbolic link.
    pub(crate) fn link(&mut self, path: &str, target: &str) -> io::Result<()> {
        self.parents(path)?;
        self.entry(path.trim_matches('/'), LINK, target.as_bytes())
    }

    /// Adds a copy of a file of this machine. Links are followed.
    pub(crate) fn copy(&mut self, path: &str, from: &Path) -> Result<()> {
        let bytes = fs::read(from).with_context(|| format!("cannot read {}", from.display()))?;
        let mode = from.metadata()?.permissions().mode();
        Ok(self.file(path, mode, &bytes)?)
    }

    /// Adds a copy of a whole folder. Links stay links.
    pub(crate) fn tree(&mut self, path: &str, from: &Path) -> Result<()> {
        self.folder(path)?;
        let entries = fs::read_dir(from).with_context(|| format!("cannot read {}", from.display()))?;
        for entry in entries {
            let entry = entry?;
            let inside = format!("{path}/{}", entry.file_name().to_string_lossy());
            let kind = entry.file_type()?;
            if kind.is_dir() {
                self.tree(&inside, &entry.path())?;
            } else if kind.is_symlink() {
                self.link(&inside, &fs::read_link(entry.path())?.to_string_lossy())?;
            } else if kind.is_file() {
                self.copy(&inside, &entry.path())?;
            }
        }
        Ok(())
    }

    /// Writes the end of the archive.
    pub(crate) fn finish(mut self) -> io::Result<()> {
        self.entry("TRAILER!!!", 0, &[])?;
        self.out.flush()
    }

    fn parents(&mut self, path: &str) -> io::Result<()> {
        match path.trim_matches('/').rsplit_once('/') {
            Some((parent, _)) => self.folder(parent),
            None => Ok(()),
        }
    }

    fn entry(&mut self, path: &str, mode: u32, bytes: &[u8]) -> io::Result<()> {
        if path.is_empty() || !self.written.insert(path.to_owned()) {
            return Ok(());
        }
        self.inode += 1;
        let size = u32::try_from(bytes.len()).map_err(|_| io::Error::other(format!("{path}: over 4 GiB")))?;
        let name = u32::try_from(path.len() + 1).map_err(io::Error::other)?;
        // The fields: magic, inode, mode, uid, gid, links, mtime, size, device (2), rdevice (2), name size, check.
        write!(self.out, "070701")?;
        for field in [self.inode, mode, 0, 0, 1, 0, size, 0, 0, 0, 0, name, 0] {
            write!(self.out, "{field:08x}")?;
        }
        self.out.write_all(path.as_bytes())?;
        self.out.write_all(&[0])?;
        self.pad(110 + path.len() + 1)?;
        self.out.write_all(bytes)?;
        self.pad(bytes.len())
    }

    /// Pads to a multiple of four bytes, at which headers and contents must end.
    fn pad(&mut self, written: usize) -> io::Result<()> {
        self.out.write_all(&[0; 3][..(4 - written % 4) % 4])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_are_aligned_and_folders_come_first_and_once() {
        let mut bytes = Vec::new();
        let mut archive = Archive::new(&mut bytes);
        archive.file("/usr/bin/a", 0o755, b"12345").expect("memory");
        archive.file("usr/bin/b", 0o644, b"").expect("memory");
        archive.link("bin", "usr/bin").expect("memory");
        archive.finish().expect("memory");
        assert_eq!(bytes.len() % 4, 0);
        assert!(bytes.ends_with(END));
        let text = String::from_utf8_lossy(&bytes);
        let starts: Vec<usize> = text.match_indices("070701").map(|(at, _)| at).collect();
        assert!(starts.iter().all(|at| at % 4 == 0), "{starts:?}");
        // The entries: usr, usr/bin, a, b, the link, the trailer.
        assert_eq!(starts.len(), 6);
        assert!(text.contains("000081ed"), "mode of a: {text}");
    }
}
