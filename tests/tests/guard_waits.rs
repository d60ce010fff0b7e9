//! A guard that waits for the one before it, as that of a new pod does while the old pod ends.

use std::{
    fs::{File, read_to_string},
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::{Context as _, Result, ensure};
use nix::sys::signal::Signal;
use nodefence_tests::{Netns, Proc, client::wait_until, nodefence_command};
use tempfile::TempDir;

/// How long a guard may take to begin or to end. It takes some tenths of a second.
const LIMIT: Duration = Duration::from_secs(30);

struct Guard {
    proc: Proc,
    log: PathBuf,
}

impl Guard {
    fn start(ns: &Netns, folder: &Path, name: &str, more: &[&str]) -> Result<Self> {
        let log = folder.join(format!("{name}.log"));
        let mut command = nodefence_command()?;
        command.arg("guard").args(more).arg("--run-dir").arg(folder.join("run"));
        let file = File::create(&log)?;
        command.stdout(file.try_clone()?).stderr(file);
        Ok(Self { proc: Proc::spawn(ns, command)?, log })
    }

    fn says(&self, text: &str) -> Result<()> {
        let said = || read_to_string(&self.log).is_ok_and(|log| log.contains(text));
        wait_until(text, LIMIT, said).map(drop).with_context(|| read_to_string(&self.log).unwrap_or_default())
    }
}

#[test]
fn a_guard_waits_until_the_one_before_it_has_ended() -> Result<()> {
    let ns = Netns::new("guards")?;
    let folder = TempDir::with_prefix("nodefence-guards-")?;
    std::fs::create_dir(folder.path().join("run"))?;
    let start = |name: &str, more: &[&str]| Guard::start(&ns, folder.path(), name, more);
    let mut first = start("first", &["--wait"])?;
    first.says("the guard watches over")?;
    let mut refused = start("refused", &[])?;
    ensure!(refused.proc.wait(LIMIT)?.code() == Some(1));
    refused.says("another `nodefence guard` watches over the run folder")?;

    let mut second = start("second", &["--wait"])?;
    second.says("this one waits until the other has ended")?;
    let mut ends = start("ends", &["--wait"])?;
    ends.says("this one waits until the other has ended")?;
    ends.proc.signal(Signal::SIGTERM)?;
    ensure!(ends.proc.wait(LIMIT)?.code() == Some(0), "a guard that waits ends at once");

    ensure!(second.proc.ended()?.is_none() && !read_to_string(&second.log)?.contains("watches over what"));
    first.proc.signal(Signal::SIGKILL)?;
    first.proc.wait(LIMIT)?;
    second.says("the guard watches over")?;
    second.proc.signal(Signal::SIGTERM)?;
    ensure!(second.proc.wait(LIMIT)?.code() == Some(0));
    second.says("the guard ends")
}
