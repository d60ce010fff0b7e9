//! A copy of the clone's sources in another folder, from which the image is built once more: the same source must give the same digest wherever it lies.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};

use crate::cache::Scratch;
use crate::process;
use crate::workspace::Workspace;

/// Copies the sources into a new folder, whose target folder is empty. The folder goes with the returned [`Scratch`].
pub(super) fn copy(workspace: &Workspace) -> Result<(Workspace, Scratch)> {
    let scratch = Scratch::new(&workspace.target.join("image"))?;
    let root = scratch.path().join("another/folder");
    for path in sources(&workspace.root)? {
        put(&workspace.root.join(&path), &root.join(&path))?;
    }
    let pins = workspace.pins.clone();
    Ok((Workspace { target: root.join("target"), root, pins }, scratch))
}

/// The files of the clone that git has or would take, with the changes that are not committed yet.
fn sources(root: &Path) -> Result<Vec<PathBuf>> {
    let mut list = process::command("git");
    list.args(["ls-files", "-z", "--cached", "--others", "--exclude-standard"]).current_dir(root);
    let listed = process::output(&mut list).context("cannot list the clone's files")?;
    let paths = listed.split_terminator('\0').map(PathBuf::from);
    // A file that was removed stays in git's list until the removal is committed.
    Ok(paths.filter(|path| root.join(path).symlink_metadata().is_ok()).collect())
}

fn put(from: &Path, to: &Path) -> Result<()> {
    if let Some(folder) = to.parent() {
        fs::create_dir_all(folder).with_context(|| format!("cannot make {}", folder.display()))?;
    }
    let copied = match fs::read_link(from) {
        Ok(leads_to) => std::os::unix::fs::symlink(leads_to, to),
        Err(_) => fs::copy(from, to).map(drop),
    };
    copied.with_context(|| format!("cannot copy {} to {}", from.display(), to.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_copy_has_what_a_build_reads_and_no_target() {
        let mut workspace = Workspace::find().expect("this workspace");
        // The copy is made below this folder.
        let place = Scratch::new(&std::env::temp_dir().join("nodefence-xtask-again")).expect("a folder");
        workspace.target = place.path().to_owned();
        let (copy, _scratch) = copy(&workspace).expect("copied");
        assert!(copy.root != workspace.root && copy.target.starts_with(&copy.root) && !copy.target.exists());
        for file in ["Cargo.toml", "Cargo.lock", "dataplane-user/src/main.rs", "dataplane-ebpf/src/main.rs"] {
            let of = |root: &Path| fs::read(root.join(file)).expect(file);
            assert_eq!(of(&copy.root), of(&workspace.root), "{file}");
        }
        let ours = Workspace::find().expect("this workspace").target;
        assert!(!copy.root.join(ours.file_name().expect("a name")).exists());
    }
}
