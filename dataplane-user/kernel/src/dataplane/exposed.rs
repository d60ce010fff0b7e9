//! Checks whether another user could replace our pins. Such a user could write verdicts, exemptions and the lease.
use std::{
    ffi::{OsStr, OsString},
    fs::{self, Metadata},
    io,
    os::unix::fs::MetadataExt as _,
    path::{Path, PathBuf},
};

use nix::{
    errno::Errno,
    fcntl::{AT_FDCWD, OFlag, openat},
    sys::{
        stat::{Mode, fstat},
        statfs::{BPF_FS_MAGIC, statfs},
    },
    unistd::geteuid,
};

use super::error::Error;

/// Permissions of the group and of others.
const OF_OTHERS: u32 = 0o077;
const WRITE_OF_OTHERS: u32 = 0o022;
const STICKY: u32 = 0o1000;

/// Where a file lies. The place decides what others may do with the file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Place {
    /// Above the folder `nodefence`, from the filesystem's root on. Others may have pins there too.
    Above,
    /// The folder `nodefence`, the pin folder, and what lies in the pin folder.
    Ours,
    /// What another version has pinned in the folder `nodefence`. Others may read some folders of agents up to v1, but cannot reach them.
    OtherVersion,
}

/// The mode and owner of a file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct File {
    /// `st_mode`.
    mode: u32,
    owner: u32,
}

/// What is wrong with a file.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Wrong {
    what: String,
    /// The command that mends it, without its path.
    command: &'static str,
    /// True: the command's path is the folder `nodefence`. What somebody else has pinned cannot be trusted after a change of its owner
    /// either, so all of it must be removed.
    all: bool,
}

impl File {
    /// Returns what is wrong. `us` is the uid of the user who pins.
    fn wrong(self, place: Place, us: u32) -> Option<Wrong> {
        let wrong = |what: String, command| Some(Wrong { what, command, all: false });
        let kind = self.mode & libc::S_IFMT;
        let mode = self.mode & 0o7777;
        if kind == libc::S_IFLNK {
            return wrong("it is a symbolic link, which is not followed".to_owned(), "rm");
        }
        let forbidden = match place {
            Place::Above if self.owner != 0 && self.owner != us => {
                return wrong(format!("it belongs to uid {}, and must to root", self.owner), "chown root");
            }
            Place::Above if mode & STICKY != 0 => 0,
            Place::Above | Place::OtherVersion => WRITE_OF_OTHERS,
            Place::Ours => OF_OTHERS,
        };
        if place != Place::Above && self.owner != us {
            let what = format!("it belongs to uid {}, and must to uid {us}", self.owner);
            return Some(Wrong { what, command: "rm -r", all: true });
        }
        match (mode & forbidden, forbidden) {
            (0, _) => None,
            (_, OF_OTHERS) => wrong(format!("others may use it (mode {mode:04o})"), "chmod go="),
            _ => wrong(format!("others may change what lies in it (mode {mode:04o})"), "chmod go-w"),
        }
    }
}

/// Makes sure that only root and this process' user can change what is pinned in a folder. A folder that does not exist yet passes: call
/// this again once the folder was made.
///
/// # Errors
/// [`Error::Exposed`], which names the command that mends it.
pub(super) fn refuse(pin_dir: &Path) -> Result<(), Error> {
    let us = geteuid().as_raw();
    let root = pin_dir.parent().unwrap_or(pin_dir);
    let Some((mount, names)) = from_the_mount(pin_dir)? else { return Ok(()) };
    if walk(&mount, &names, root, us)? {
        let place = |path: &Path| if path.starts_with(pin_dir) { Place::Ours } else { Place::OtherVersion };
        below(root, root, place, us)?;
    }
    Ok(())
}

/// The root of the BPF filesystem, and the names of the folders from there to the pins. `None` if the pins lie in no BPF filesystem.
fn from_the_mount(pin_dir: &Path) -> Result<Option<(PathBuf, Vec<OsString>)>, Error> {
    let in_bpffs = |path: &&Path| statfs(*path).is_ok_and(|fs| fs.filesystem_type() == BPF_FS_MAGIC);
    let Some(first) = pin_dir.ancestors().filter(in_bpffs).last() else { return Ok(None) };
    // A symbolic link outside of the filesystem may lead to a folder below its root.
    let real = first.canonicalize().map_err(Error::file(first, "resolve it"))?;
    let mount = real.ancestors().filter(in_bpffs).last().unwrap_or(&real);
    let rest = [real.strip_prefix(mount), pin_dir.strip_prefix(first)];
    let names = rest.iter().flatten().flat_map(|rest| rest.iter()).map(OsStr::to_owned).collect();
    Ok(Some((mount.to_owned(), names)))
}

/// Opens each folder from the one before it, without following links, and checks it. The last two folders are `root` (the folder
/// `nodefence`) and the pin folder. Returns whether all folders exist.
fn walk(mount: &Path, names: &[OsString], root: &Path, us: u32) -> Result<bool, Error> {
    let how = OFlag::O_PATH | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
    let mut path = mount.to_owned();
    let mut opened = openat(AT_FDCWD, mount, how, Mode::empty());
    let mut names = names.iter();
    loop {
        let folder = match opened {
            Err(Errno::ENOENT) => return Ok(false),
            opened => opened.map_err(|errno| Error::file(&path, "open the folder")(errno.into()))?,
        };
        let stat = fstat(&folder).map_err(|errno| Error::file(&path, "look at it")(errno.into()))?;
        let place = if names.len() < 2 { Place::Ours } else { Place::Above };
        let file = File { mode: stat.st_mode, owner: stat.st_uid };
        file.wrong(place, us).map_or(Ok(()), |wrong| Err(exposed(&path, root, wrong)))?;
        let Some(name) = names.next() else { return Ok(true) };
        path.push(name);
        opened = openat(&folder, name.as_os_str(), how, Mode::empty());
    }
}

/// Checks everything in a folder of ours, which nobody else can change meanwhile.
fn below(folder: &Path, root: &Path, place: impl Fn(&Path) -> Place + Copy, us: u32) -> Result<(), Error> {
    let entries = match fs::read_dir(folder) {
        Err(error) if is_gone(&error) => return Ok(()),
        entries => entries.map_err(Error::file(folder, "list it"))?,
    };
    for entry in entries {
        let path = entry.map_err(Error::file(folder, "list it"))?.path();
        let found = match fs::symlink_metadata(&path) {
            Err(error) if is_gone(&error) => continue,
            found => found.map_err(Error::file(&path, "look at it"))?,
        };
        let file = File { mode: found.mode(), owner: found.uid() };
        file.wrong(place(&path), us).map_or(Ok(()), |wrong| Err(exposed(&path, root, wrong)))?;
        if Metadata::is_dir(&found) {
            below(&path, root, place, us)?;
        }
    }
    Ok(())
}

/// Whether a file is gone. The previous agent may be ending, and remove files that were just listed.
fn is_gone(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::NotFound
}

/// `root` is the folder `nodefence`.
fn exposed(path: &Path, root: &Path, wrong: Wrong) -> Error {
    let remedy = format!("{} {}", wrong.command, if wrong.all { root } else { path }.display());
    Error::Exposed { path: path.to_owned(), what: wrong.what, remedy }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt as _, symlink};

    use super::*;

    const FOLDER: u32 = libc::S_IFDIR;
    const PIN: u32 = libc::S_IFREG;

    #[test]
    fn who_may_own_what_and_who_may_write_where() {
        use Place::{Above, OtherVersion, Ours};
        const US: u32 = 7;
        for (place, mode, owner, command) in [
            // The filesystem's root, as others mount it and as the agent mounts it.
            (Above, FOLDER | 0o1777, 0, None),
            (Above, FOLDER | 0o1700, 0, None),
            (Above, FOLDER | 0o755, 0, None),
            (Above, FOLDER | 0o755, US, None),
            (Above, FOLDER | 0o755, 65_534, Some("chown root")),
            (Above, FOLDER | 0o1777, 65_534, Some("chown root")),
            (Above, FOLDER | 0o777, 0, Some("chmod go-w")),
            (Above, FOLDER | 0o770, US, Some("chmod go-w")),
            (Above, libc::S_IFLNK | 0o777, 0, Some("rm")),
            (Ours, FOLDER | 0o700, US, None),
            (Ours, PIN | 0o600, US, None),
            (Ours, PIN | 0o640, US, Some("chmod go=")),
            (Ours, FOLDER | 0o1701, US, Some("chmod go=")),
            // Root may not own these either: an agent of another user would write into root's pins.
            (Ours, FOLDER | 0o700, 0, Some("rm -r")),
            (Ours, PIN | 0o600, 65_534, Some("rm -r")),
            (Ours, libc::S_IFLNK | 0o700, US, Some("rm")),
            (OtherVersion, FOLDER | 0o755, US, None),
            (OtherVersion, FOLDER | 0o775, US, Some("chmod go-w")),
            (OtherVersion, FOLDER | 0o755, 0, Some("rm -r")),
        ] {
            let wrong = File { mode, owner }.wrong(place, US);
            assert_eq!(
                wrong.as_ref().map(|wrong| wrong.command),
                command,
                "{place:?} {mode:o} {owner}: {wrong:?}"
            );
        }
    }

    /// Runs without privilege, in a folder that is in no BPF filesystem.
    #[test]
    fn each_folder_is_looked_at_and_named() {
        let mount = tempfile::tempdir().unwrap();
        let us = geteuid().as_raw();
        let set = |path: &Path, mode| fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
        let names = ["shared", "nodefence", "v3"].map(OsString::from);
        let [shared, root, pins] =
            ["shared", "shared/nodefence", "shared/nodefence/v3"].map(|name| mount.path().join(name));
        let look = || walk(mount.path(), &names, &root, us);
        assert!(!look().unwrap(), "nothing is there");
        fs::create_dir_all(&pins).unwrap();
        for folder in [&root, &pins] {
            set(folder, 0o700);
        }
        assert!(look().unwrap());
        let refused = |path: &Path, remedy: &str| {
            let text = look().unwrap_err().to_string();
            assert!(text.starts_with(&format!("{}: ", path.display())), "{text}");
            assert!(text.contains(&format!("`{remedy} {}`", path.display())), "{text}");
        };
        set(&shared, 0o777);
        refused(&shared, "chmod go-w");
        set(&shared, 0o1777);
        assert!(look().unwrap());
        set(&pins, 0o750);
        refused(&pins, "chmod go=");
        set(&root, 0o710);
        refused(&root, "chmod go=");
        set(&root, 0o700);
        set(&pins, 0o700);
        fs::rename(&shared, mount.path().join("elsewhere")).unwrap();
        symlink("elsewhere", &shared).unwrap();
        refused(&shared, "rm");
    }

    #[test]
    fn all_that_lies_in_our_folder_is_ours_alone() {
        let folder = tempfile::tempdir().unwrap();
        let us = geteuid().as_raw();
        let root = folder.path();
        let look = || {
            below(
                root,
                root,
                |path| if path.starts_with(root.join("v3")) { Place::Ours } else { Place::OtherVersion },
                us,
            )
        };
        for name in ["v1/qdiscs/3", "v3/qdiscs"] {
            fs::create_dir_all(root.join(name)).unwrap();
        }
        let set = |name: &str, mode| {
            fs::set_permissions(root.join(name), fs::Permissions::from_mode(mode)).unwrap()
        };
        for name in ["v3", "v3/qdiscs"] {
            set(name, 0o700);
        }
        set("v1/qdiscs/3", 0o755);
        look().unwrap();
        let pin = root.join("v3/qdiscs/pin");
        fs::write(&pin, "").unwrap();
        set("v3/qdiscs/pin", 0o604);
        let text = look().unwrap_err().to_string();
        assert!(text.contains(&format!("{}: others may use it (mode 0604)", pin.display())), "{text}");
        set("v3/qdiscs/pin", 0o600);
        look().unwrap();
        symlink("pin", root.join("v3/qdiscs/link")).unwrap();
        let text = look().unwrap_err().to_string();
        assert!(text.contains("link: it is a symbolic link"), "{text}");
    }
}
