//! The store of built programs. Each set of pins has a folder. One process at a time builds, and a rename puts the complete folder in place.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant, SystemTime};

use anyhow::{Context as _, Result, bail};

use super::{golang, pins};
use crate::cache::{self, SCRATCH, Scratch};
use crate::process;
use crate::say::say;

/// Programs of other pins are removed if no run has used them for this long.
const UNUSED: Duration = Duration::from_secs(30 * 24 * 3600);
const LOCK: &str = "lock";

/// The folder of the programs that `sources` (the clone's `tests/assets`) pins. If the folder is missing, the programs are built first.
pub(super) fn ensure(sources: &Path) -> Result<PathBuf> {
    ensure_in(&cache::folder()?.join("assets"), &pins::text(sources)?, |to| golang::build(sources, to))
}

fn ensure_in(home: &Path, pins: &str, build: impl FnOnce(&Path) -> Result<()>) -> Result<PathBuf> {
    fs::create_dir_all(home).with_context(|| format!("cannot create {}", home.display()))?;
    let folder = home.join(key(pins, home)?);
    if complete(&folder) {
        used(&folder);
        return Ok(folder);
    }
    let _lock = cache::lock(&home.join(LOCK), "another run builds these programs: waiting for it")?;
    // Another run may have built the programs while this one waited.
    if complete(&folder) {
        used(&folder);
        return Ok(folder);
    }
    tidy(home);
    let scratch = Scratch::new(home)?;
    let made = scratch.path().join("made");
    fs::create_dir(&made)?;
    let started = Instant::now();
    build(&made)?;
    let missing: Vec<&str> = pins::names().filter(|name| !process::is_program(&made.join(name))).collect();
    if !missing.is_empty() {
        bail!("the build left no {}", missing.join(", "));
    }
    fs::write(made.join("pins"), pins)?;
    cache::seal(&made, &pins::names().collect::<Vec<_>>())?;
    for entry in fs::read_dir(&made)? {
        // The file's content must become durable before its name.
        File::open(entry?.path())?.sync_all()?;
    }
    if folder.exists() {
        fs::remove_dir_all(&folder)?;
    }
    fs::rename(&made, &folder).with_context(|| format!("cannot put {} in place", folder.display()))?;
    say!("built in {:.0} s, kept in {}", started.elapsed().as_secs_f64(), folder.display());
    Ok(folder)
}

/// The name of the pins' folder in the cache.
fn key(pins: &str, home: &Path) -> Result<String> {
    let scratch = home.join(format!("pins-{}-{:?}", std::process::id(), thread::current().id()));
    fs::write(&scratch, pins)?;
    let printed = process::output(process::command("sha256sum").arg(&scratch));
    fs::remove_file(&scratch)?;
    let hash = printed?.split_whitespace().next().unwrap_or_default().trim_start_matches('\\').to_owned();
    match hash.get(..16) {
        Some(start) => Ok(start.to_owned()),
        None => bail!("sha256sum printed no hash"),
    }
}

fn complete(folder: &Path) -> bool {
    pins::names().all(|name| process::is_program(&folder.join(name))) && cache::is_whole(folder)
}

/// Notes in the folder's modification time that the folder is still used.
fn used(folder: &Path) {
    // An error is ignored: another user's cache may be read-only. Then this run does not tidy it either.
    let _refused = File::open(folder).and_then(|file| file.set_modified(SystemTime::now()));
}

/// Removes what a killed run left, and folders that no run has used for long. This process holds the lock, so no other build runs.
fn tidy(home: &Path) {
    let Ok(entries) = fs::read_dir(home) else { return };
    for entry in entries.filter_map(Result::ok) {
        let left = entry.file_name().to_string_lossy().starts_with(SCRATCH);
        let age = entry.metadata().and_then(|meta| meta.modified()).ok().and_then(|then| then.elapsed().ok());
        if entry.path().is_dir() && (left || age.is_some_and(|age| age > UNUSED)) {
            say!("cache: removing {}", entry.path().display());
            let _leftover = fs::remove_dir_all(entry.path());
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::os::unix::fs::PermissionsExt as _;
    use std::sync::atomic::{AtomicU32, Ordering};

    use super::*;

    fn home(name: &str) -> Scratch {
        Scratch::new(&std::env::temp_dir().join(format!("nodefence-xtask-store-{name}"))).expect("a folder")
    }

    fn make(to: &Path, names: &[&str]) -> Result<()> {
        for name in names {
            fs::write(to.join(name), "x")?;
            fs::set_permissions(to.join(name), fs::Permissions::from_mode(0o755))?;
        }
        Ok(())
    }

    fn all(to: &Path) -> Result<()> {
        make(to, &pins::names().collect::<Vec<_>>())
    }

    #[test]
    fn built_once_for_each_set_of_pins() {
        let home = home("once");
        let count = Cell::new(0);
        let ensure = |pins: &str| {
            let build = |to: &Path| {
                count.set(count.get() + 1);
                all(to)
            };
            ensure_in(home.path(), pins, build).expect("a folder")
        };
        let one = ensure("one");
        let again = ensure("one");
        let two = ensure("two");
        assert_eq!((one == again, one == two, count.get()), (true, false, 2));
        assert_eq!(fs::read_to_string(one.join("pins")).expect("pins"), "one");
        fs::remove_file(one.join("etcd")).expect("there");
        assert_eq!((ensure("one") == one, count.get()), (true, 3), "what is not whole is built anew");
        fs::write(one.join("etcd"), "").expect("there");
        assert_eq!((ensure("one") == one, count.get()), (true, 4), "what was truncated is built anew");
        assert!(complete(&one));
    }

    #[test]
    fn what_failed_leaves_nothing() {
        let home = home("failed");
        let half = |to: &Path| make(to, &["etcd"]);
        let error = ensure_in(home.path(), "one", half).expect_err("not whole").to_string();
        assert!(error.contains("kube-apiserver, kube-proxy"), "{error}");
        ensure_in(home.path(), "one", |_| bail!("no")).expect_err("failed");
        let names: Vec<_> = fs::read_dir(home.path())
            .expect("a folder")
            .map(|entry| entry.expect("one").file_name())
            .collect();
        assert_eq!(names, [LOCK]);
    }

    #[test]
    fn leftovers_go_and_recent_ones_stay() {
        let home = home("tidy");
        for name in ["scratch-1", "old", "recent"] {
            fs::create_dir(home.path().join(name)).expect("a folder");
        }
        let long_ago = SystemTime::now() - UNUSED - Duration::from_secs(60);
        File::open(home.path().join("old")).and_then(|file| file.set_modified(long_ago)).expect("a time");
        ensure_in(home.path(), "one", all).expect("built");
        let there = |name: &str| home.path().join(name).exists();
        assert_eq!((there("scratch-1"), there("old"), there("recent")), (false, false, true));
    }

    #[test]
    fn two_at_once_build_once() {
        let home = home("two");
        let count = AtomicU32::new(0);
        let folders: Vec<PathBuf> = thread::scope(|scope| {
            let one = || {
                let build = |to: &Path| {
                    count.fetch_add(1, Ordering::Relaxed);
                    thread::sleep(Duration::from_millis(300));
                    all(to)
                };
                ensure_in(home.path(), "one", build).expect("a folder")
            };
            let runs: Vec<_> = (0..3).map(|_| scope.spawn(one)).collect();
            runs.into_iter().map(|run| run.join().expect("no panic")).collect()
        });
        assert_eq!(count.load(Ordering::Relaxed), 1);
        assert!(folders.iter().all(|folder| *folder == folders[0] && complete(folder)));
    }
}
