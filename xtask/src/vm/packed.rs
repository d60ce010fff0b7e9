//! Packs our programs for the initramfs, each as a part of its own. So a guest gets only the programs that it runs, and a program is packed again
//! only after it was built anew.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::io::{BufWriter, Read as _, Seek as _, SeekFrom};
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::thread;
use std::time::{Instant, UNIX_EPOCH};

use anyhow::{Context as _, Result, anyhow};

use super::cpio::{self, Archive};
use crate::process;
use crate::say::say;
use crate::test::tally::Stage;

/// The name of the folder of parts, below the folder of guests.
const FOLDER: &str = "packed";
/// The prefix of unfinished parts. No part's name has it.
const ASIDE: &str = ".aside-";

/// The part of each program.
#[derive(Debug)]
pub(crate) struct Packed {
    parts: BTreeMap<PathBuf, PathBuf>,
}

/// Packs programs, as many at once as there are processors. `folder`: the folder of guests, which stores the parts. `place`: the path of a program in a
/// guest. The stage has the time since `started`.
pub(crate) fn pack<'a>(
    folder: &Path,
    programs: impl IntoIterator<Item = &'a PathBuf>,
    place: impl Fn(&Path) -> PathBuf + Sync,
    started: Instant,
) -> Result<(Packed, Stage)> {
    let folder = folder.join(FOLDER);
    fs::create_dir_all(&folder).with_context(|| format!("cannot create {}", folder.display()))?;
    let programs: BTreeSet<&PathBuf> = programs.into_iter().collect();
    let mut parts = BTreeMap::new();
    let mut missing = Vec::new();
    for program in programs {
        let part = part(&folder, program)?;
        if !is_whole(&part) {
            missing.push((program, part.clone()));
        }
        parts.insert(program.clone(), part);
    }
    let note = format!("{} programs, {} built anew", parts.len(), missing.len());
    say!("packing for the guests: {note}");
    let queue = Mutex::new(missing.into_iter());
    let work = |number: usize| -> Result<()> {
        // The lock is held while a program is taken, and not while it is packed.
        let next = || queue.lock().ok()?.next();
        while let Some((program, part)) = next() {
            let aside = folder.join(format!("{ASIDE}{number}"));
            one(program, &place(program), &aside, &part).with_context(|| program.display().to_string())?;
        }
        Ok(())
    };
    let at_once = thread::available_parallelism().map_or(1, usize::from);
    thread::scope(|scope| {
        let work = &work;
        let all: Vec<_> = (0..at_once).map(|number| scope.spawn(move || work(number))).collect();
        all.into_iter().try_for_each(|one| one.join().map_err(|_| anyhow!("a thread that packs panicked"))?)
    })?;
    let mut stage = Stage::since("pack", started);
    stage.note = note;
    Ok((Packed { parts }, stage))
}

impl Packed {
    /// The part that has a program.
    pub(crate) fn part(&self, program: &Path) -> Result<&Path> {
        let part = self.parts.get(program);
        part.map(PathBuf::as_path).with_context(|| format!("{} was not packed", program.display()))
    }
}

/// The path of a program's part. Time and length of the program are in the name: a program that was built anew has another part. cargo, too, takes a
/// file with the same time and length for unchanged.
fn part(folder: &Path, program: &Path) -> Result<PathBuf> {
    let meta = program.metadata().with_context(|| format!("cannot read {}", program.display()))?;
    let built = meta.modified()?.duration_since(UNIX_EPOCH)?.as_nanos();
    let stem = stem(program);
    Ok(folder.join(format!("{stem}{built}.{}.cpio", meta.len())))
}

/// The common prefix of all parts of a program.
fn stem(program: &Path) -> String {
    format!("{}.", program.file_name().unwrap_or_default().to_string_lossy())
}

/// Whether a part is complete. A machine that stopped may have left half of one.
fn is_whole(part: &Path) -> bool {
    let mut end = [0; cpio::END.len()];
    let back = i64::try_from(end.len()).unwrap_or_default();
    let read = File::open(part).and_then(|mut file| {
        file.seek(SeekFrom::End(-back))?;
        file.read_exact(&mut end)
    });
    read.is_ok() && end == *cpio::END
}

/// Packs one program, and removes its older parts.
fn one(program: &Path, place: &Path, aside: &Path, part: &Path) -> Result<()> {
    let stripped = aside.with_extension("stripped");
    // A build of `[profile.dev]` has no debug information. If a build is set to have it, it is nine tenths of a test's bytes.
    process::run(process::command("strip").arg("--strip-debug").arg("-o").arg(&stripped).arg(program))?;
    let mut archive = Archive::new(BufWriter::new(File::create(aside)?));
    archive.copy(&place.to_string_lossy(), &stripped)?;
    archive.finish()?;
    fs::remove_file(&stripped)?;
    let folder = part.parent().context("a part without a folder")?;
    for old in fs::read_dir(folder)?.flatten() {
        if old.file_name().to_string_lossy().starts_with(&stem(program)) {
            fs::remove_file(old.path())?;
        }
    }
    fs::rename(aside, part)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::cache::Scratch;

    /// Packs a program. Returns its part, and the stage's note, which says how many programs were packed anew.
    fn packed(folder: &Path, program: &PathBuf) -> (PathBuf, String) {
        let place = |program: &Path| Path::new("nodefence").join(program.file_name().expect("a name"));
        let (packed, stage) = pack(folder, [program], place, Instant::now()).expect("packed");
        (packed.part(program).expect("there").to_owned(), stage.note)
    }

    #[test]
    fn what_was_built_anew_is_packed_anew_and_nothing_else() {
        let scratch = Scratch::new(&std::env::temp_dir().join("nodefence-xtask-packed")).expect("a folder");
        let program = scratch.path().join("a");
        let other = scratch.path().join("a-b");
        for to in [&program, &other] {
            fs::copy(std::env::current_exe().expect("this one"), to).expect("copied");
        }
        let (beside, _) = packed(scratch.path(), &other);
        let (first, note) = packed(scratch.path(), &program);
        assert_eq!(note, "1 programs, 1 built anew");
        let bytes = fs::read(&first).expect("there");
        assert!(bytes.len() < fs::metadata(&program).expect("there").len() as usize, "not stripped");
        assert!(bytes.windows(11).any(|name| name == b"nodefence/a"));
        assert_eq!(packed(scratch.path(), &program), (first.clone(), "1 programs, 0 built anew".to_owned()));

        // Half of a part counts as missing.
        fs::write(&first, &bytes[..bytes.len() / 2]).expect("written");
        assert_eq!(packed(scratch.path(), &program).1, "1 programs, 1 built anew");
        assert_eq!(fs::read(&first).expect("there"), bytes);

        let file = File::options().append(true).open(&program).expect("there");
        let later =
            file.metadata().and_then(|meta| meta.modified()).expect("a time") + Duration::from_secs(1);
        file.set_modified(later).expect("set");
        let (second, note) = packed(scratch.path(), &program);
        assert_eq!(note, "1 programs, 1 built anew");
        assert!(second != first && !first.exists(), "the old part goes");
        assert!(beside.exists(), "another program's part stays");
    }
}
