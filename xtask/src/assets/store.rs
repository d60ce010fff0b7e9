//! The store of built programs. Each set of pins of a module has a folder. One process at a time builds, and a rename puts the complete folder in place.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant, SystemTime};

use anyhow::{Context as _, Result, bail};

use super::golang;
use super::pins::{self, Set};
use crate::cache::{self, SCRATCH, Scratch};
use crate::process;
use crate::say::say;

/// Programs of other pins are removed if no run has used them for this long.
const UNUSED: Duration = Duration::from_secs(30 * 24 * 3600);
const LOCK: &str = "lock";
/// The end of the name of a folder with the programs of all modules.
const TOGETHER: &str = "-all";

/// The folder of the programs of `set` that `sources` (the clone's `tests/assets`) pins. What is missing is built first.
pub(super) fn ensure(sources: &Path, set: Set) -> Result<PathBuf> {
    let home = cache::folder()?.join("assets");
    let mut all = String::new();
    let mut made = Vec::new();
    for module in set.modules() {
        let pins = pins::text(sources, module)?;
        let names: Vec<&str> = module.names().collect();
        let folder = ensure_in(&home, &names, &pins, |to| golang::build(sources, module, to))?;
        made.extend(names.iter().map(|name| folder.join(name)));
        all += &pins;
    }
    together(&home, &all, &made)
}

/// The folder of one module's programs.
fn ensure_in(
    home: &Path,
    names: &[&str],
    pins: &str,
    build: impl FnOnce(&Path) -> Result<()>,
) -> Result<PathBuf> {
    fs::create_dir_all(home).with_context(|| format!("cannot create {}", home.display()))?;
    let folder = home.join(key(pins, home)?);
    if complete(&folder, names) {
        used(&folder);
        return Ok(folder);
    }
    let _lock = cache::lock(&home.join(LOCK), "another run builds these programs: waiting for it")?;
    // Another run may have built the programs while this one waited.
    if complete(&folder, names) {
        used(&folder);
        return Ok(folder);
    }
    tidy(home);
    let scratch = Scratch::new(home)?;
    let made = scratch.path().join("made");
    fs::create_dir(&made)?;
    let started = Instant::now();
    build(&made)?;
    let missing: Vec<&str> =
        names.iter().copied().filter(|name| !process::is_program(&made.join(name))).collect();
    if !missing.is_empty() {
        bail!("the build left no {}", missing.join(", "));
    }
    fs::write(made.join("pins"), pins)?;
    cache::seal(&made, names)?;
    for entry in fs::read_dir(&made)? {
        // The file's content must become durable before its name.
        File::open(entry?.path())?.sync_all()?;
    }
    put(&made, &folder)?;
    say!("built in {:.0} s, kept in {}", started.elapsed().as_secs_f64(), folder.display());
    Ok(folder)
}

/// The folder in which the programs of all modules are together: hard links to `programs`. So a change of one module's pins builds that module alone.
fn together(home: &Path, pins: &str, programs: &[PathBuf]) -> Result<PathBuf> {
    let folder = home.join(format!("{}{TOGETHER}", key(pins, home)?));
    let linked = || programs.iter().all(|program| is_same(program, &folder.join(name(program))));
    if linked() {
        used(&folder);
        return Ok(folder);
    }
    let _lock = cache::lock(&home.join(LOCK), "another run builds these programs: waiting for it")?;
    if linked() {
        return Ok(folder);
    }
    let scratch = Scratch::new(home)?;
    let made = scratch.path().join("made");
    fs::create_dir(&made)?;
    for program in programs {
        fs::hard_link(program, made.join(name(program)))
            .with_context(|| format!("cannot link {}", program.display()))?;
    }
    put(&made, &folder)?;
    Ok(folder)
}

fn name(program: &Path) -> &OsStr {
    program.file_name().unwrap_or_default()
}

/// Whether both paths lead to the same file.
fn is_same(one: &Path, other: &Path) -> bool {
    let file = |path: &Path| path.metadata().map(|meta| (meta.dev(), meta.ino()));
    matches!((file(one), file(other)), (Ok(one), Ok(other)) if one == other)
}

/// Renames a complete folder into its place.
fn put(made: &Path, folder: &Path) -> Result<()> {
    if folder.exists() {
        fs::remove_dir_all(folder)?;
    }
    fs::rename(made, folder).with_context(|| format!("cannot put {} in place", folder.display()))
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

fn complete(folder: &Path, names: &[&str]) -> bool {
    names.iter().all(|name| process::is_program(&folder.join(name))) && cache::is_whole(folder)
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

    const NAMES: [&str; 3] = ["etcd", "kube-apiserver", "kube-proxy"];

    fn all(to: &Path) -> Result<()> {
        make(to, &NAMES)
    }

    #[test]
    fn the_programs_of_all_modules_are_together() {
        let home = home("together");
        let build = |names: &'static [&'static str]| move |to: &Path| make(to, names);
        let etcd = ensure_in(home.path(), &["etcd"], "one", build(&["etcd"])).expect("built");
        let helm = ensure_in(home.path(), &["helm"], "two", build(&["helm"])).expect("built");
        let programs = [etcd.join("etcd"), helm.join("helm")];
        let folder = together(home.path(), "onetwo", &programs).expect("a folder");
        for (program, name) in programs.iter().zip(["etcd", "helm"]) {
            assert!(is_same(program, &folder.join(name)), "{name}");
        }
        assert_eq!(together(home.path(), "onetwo", &programs).expect("again"), folder);
        // A program that was built anew takes the old one's place.
        fs::write(etcd.join("etcd"), "").expect("truncated");
        ensure_in(home.path(), &["etcd"], "one", build(&["etcd"])).expect("built anew");
        assert_eq!(together(home.path(), "onetwo", &programs).expect("again"), folder);
        assert!(is_same(&programs[0], &folder.join("etcd")));
        assert_eq!(fs::read_to_string(folder.join("etcd")).expect("there"), "x");
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
            ensure_in(home.path(), &NAMES, pins, build).expect("a folder")
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
        assert!(complete(&one, &NAMES));
    }

    #[test]
    fn what_failed_leaves_nothing() {
        let home = home("failed");
        let half = |to: &Path| make(to, &["etcd"]);
        let error = ensure_in(home.path(), &NAMES, "one", half).expect_err("not whole").to_string();
        assert!(error.contains("kube-apiserver, kube-proxy"), "{error}");
        ensure_in(home.path(), &NAMES, "one", |_| bail!("no")).expect_err("failed");
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
        ensure_in(home.path(), &NAMES, "one", all).expect("built");
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
                ensure_in(home.path(), &NAMES, "one", build).expect("a folder")
            };
            let runs: Vec<_> = (0..3).map(|_| scope.spawn(one)).collect();
            runs.into_iter().map(|run| run.join().expect("no panic")).collect()
        });
        assert_eq!(count.load(Ordering::Relaxed), 1);
        assert!(folders.iter().all(|folder| *folder == folders[0] && complete(folder, &NAMES)));
    }
}
