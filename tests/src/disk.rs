//! A disk that can be suspended, under a folder of a test.

use std::{
    fs::File,
    path::{Path, PathBuf},
    process::Command,
    sync::Arc,
    time::Duration,
};

use anyhow::{Context as _, Result, ensure};
use nix::{
    mount::{MntFlags, MsFlags, mount, umount2},
    sched::{CloneFlags, unshare},
};
use tempfile::TempDir;

use crate::{Netns, Proc};

/// Bytes of the disk.
const SIZE: u64 = 64 << 20;
/// How long a small write takes at most once the disk goes on, also on a busy machine.
const WRITTEN: Duration = Duration::from_secs(30);

/// A disk with an ext4 file system, mounted over a folder. While it is suspended, whoever writes there waits in the kernel, and can be killed only once the
/// disk goes on. The disk goes on when this is dropped.
#[derive(Debug)]
pub struct Disk {
    folder: PathBuf,
    device: String,
    ns: Arc<Netns>,
    suspended: bool,
    /// Began to write once the disk was suspended.
    writer: Option<Proc>,
    _image: TempDir,
}

/// Gives the calling thread a mount namespace of its own, whose mounts end with the thread and with what it starts.
///
/// # Errors
/// Fails without root.
pub fn own_mounts() -> Result<()> {
    unshare(CloneFlags::CLONE_NEWNS).context("a mount namespace; these tests need root")?;
    let none: Option<&str> = None;
    mount(none, "/", none, MsFlags::MS_REC | MsFlags::MS_PRIVATE, none).context("make mounts private")
}

impl Disk {
    /// Puts a disk under a folder, for the calling thread and for `ns`. The folder's content is copied to the disk. No process may have a file of it open. The
    /// calling thread must have mounts of its own ([`own_mounts`]).
    ///
    /// # Errors
    /// Fails if the machine lacks loop devices, ext4 or a program for these.
    pub fn under(ns: &Arc<Netns>, folder: &Path) -> Result<Self> {
        let image = TempDir::with_prefix("nodefence-disk-")?;
        let file = image.path().join("image");
        File::create(&file)?.set_len(SIZE)?;
        run(Command::new("mkfs.ext4").args(["-q", "-F"]).arg(&file))?;
        let device = run(Command::new("losetup").args(["--find", "--show"]).arg(&file))?.trim().to_owned();
        let disk = Self {
            folder: folder.to_owned(),
            device,
            ns: Arc::clone(ns),
            suspended: false,
            writer: None,
            _image: image,
        };
        let first = disk._image.path().join("first");
        std::fs::create_dir(&first)?;
        attach(&disk.device, &first)?;
        run(Command::new("cp").arg("-a").arg(folder.join(".")).arg(&first))?;
        umount2(&first, MntFlags::empty())?;
        attach(&disk.device, folder)?;
        let (device, folder) = (disk.device.clone(), disk.folder.clone());
        ns.run(move || attach(&device, &folder))?;
        Ok(disk)
    }

    /// Suspends the disk.
    ///
    /// # Errors
    /// Fails if the disk cannot be suspended.
    pub fn suspend(&mut self) -> Result<()> {
        run(Command::new("fsfreeze").arg("-f").arg(&self.folder))?;
        self.suspended = true;
        let mut command = Command::new("touch");
        command.arg(self.folder.join("written"));
        self.writer = Some(Proc::spawn(&self.ns, command)?);
        Ok(())
    }

    /// Checks that a write that began once the disk was suspended still waits.
    ///
    /// # Errors
    /// Fails if the write has ended, or if the disk was not suspended.
    pub fn is_suspended(&mut self) -> Result<()> {
        let ended = self.writer.as_mut().context("it was not suspended")?.ended()?;
        ensure!(ended.is_none(), "a write to the suspended disk ended with {ended:?}");
        Ok(())
    }

    /// Lets the disk go on, and the write that waited.
    ///
    /// # Errors
    /// Fails if the disk cannot go on, or if the write fails.
    pub fn resume(&mut self) -> Result<()> {
        run(Command::new("fsfreeze").arg("-u").arg(&self.folder))?;
        self.suspended = false;
        if let Some(mut writer) = self.writer.take() {
            let status = writer.wait(WRITTEN)?;
            ensure!(status.success(), "the write that waited: {status}");
        }
        Ok(())
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        if self.suspended {
            let _told = self.resume();
        }
        // Whoever still has files there keeps them. The device goes with the last of them.
        let folder = self.folder.clone();
        let _gone = self.ns.run(move || umount2(&folder, MntFlags::MNT_DETACH));
        let _gone = umount2(&self.folder, MntFlags::MNT_DETACH);
        let _freed = run(Command::new("losetup").arg("-d").arg(&self.device));
    }
}

fn attach(device: &str, at: &Path) -> Result<()> {
    let none: Option<&str> = None;
    mount(Some(device), at, Some("ext4"), MsFlags::empty(), none)
        .with_context(|| format!("mount {device} at {}", at.display()))
}

/// Runs a program. Returns what it printed.
fn run(command: &mut Command) -> Result<String> {
    let program = command.get_program().to_string_lossy().into_owned();
    let output = command.output().with_context(|| format!("start {program}; is it installed?"))?;
    let told = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{program}: {}: {told}", output.status);
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}
