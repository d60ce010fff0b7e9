//! `image`: the container image, as an OCI layout, without a daemon.

mod again;
mod layout;
mod program;
mod stage;
mod zig;

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, ensure};
use serde_json::{Value, json};

use crate::output::Output;
use crate::say::say;
use crate::setup;
use crate::setup::need::Need;
use crate::workspace::Workspace;
pub(crate) use layout::{REPOSITORY, sum, tar};
pub(crate) use program::Machine;
pub(crate) use stage::stage;

/// The wanted image.
#[derive(Debug, Clone)]
pub(crate) struct Options {
    /// The architectures. Empty: all of them.
    pub(crate) machines: Vec<Machine>,
    /// The image's tag in the layout.
    pub(crate) tag: String,
    /// Whether to build the image once more, from another folder, and compare.
    pub(crate) check: bool,
}

/// An image that was built.
struct Image {
    layout: PathBuf,
    archive: PathBuf,
    digest: String,
    programs: Vec<Built>,
}

/// A program of an image.
struct Built {
    machine: Machine,
    path: PathBuf,
    size: usize,
    version: String,
}

/// Builds the image and prints where it lies.
pub(crate) fn verb(workspace: &Workspace, options: &Options, format: Output) -> Result<()> {
    setup::ensure(workspace, &[Need::Build, Need::Image])?;
    let tools = zig::ensure()?;
    let image = make(workspace, options, &tools)?;
    if options.check {
        let (copy, _scratch) = again::copy(workspace)?;
        say!("once more, from {}", copy.root.display());
        compare(&image, &make(&copy, options, &tools)?)?;
        say!("the same digest from another folder");
    }
    match format {
        Output::Table => {
            println!("layout   {}", image.layout.display());
            println!("archive  {}", image.archive.display());
            println!("name     {}", layout::name(&options.tag));
            println!("digest   {}", image.digest);
        }
        Output::Json => {
            let programs: Vec<Value> = image.programs.iter().map(Built::to_json).collect();
            let Image { layout, archive, digest, .. } = image;
            let name = layout::name(&options.tag);
            let image = json!({ "layout": layout, "archive": archive, "name": name, "digest": digest, "programs": programs });
            println!("{image:#}");
        }
    }
    Ok(())
}

/// Builds the image for this machine's architecture, for the nodes of `cluster-test`. Returns its archive.
pub(crate) fn for_nodes(workspace: &Workspace) -> Result<PathBuf> {
    setup::ensure(workspace, &[Need::Build, Need::Image])?;
    let tag = env!("CARGO_PKG_VERSION").to_owned();
    let options = Options { machines: vec![Machine::Amd64], tag, check: false };
    Ok(make(workspace, &options, &zig::ensure()?)?.archive)
}

/// Builds the image of a clone into that clone's target folder.
fn make(workspace: &Workspace, options: &Options, tools: &Path) -> Result<Image> {
    let mut machines: Vec<Machine> = Machine::ALL.to_vec();
    machines.retain(|machine| options.machines.is_empty() || options.machines.contains(machine));
    let folder = workspace.target.join("image");
    let mut programs = Vec::new();
    let mut built = Vec::new();
    for machine in machines {
        let bytes = program::build(workspace, machine, tools)?;
        let path = folder.join(format!("nodefence-{}", machine.arch()));
        put(&path, &bytes)?;
        let version = program::run(&path, machine)?;
        ensure!(version.starts_with("nodefence "), "{} said `{version}`", path.display());
        say!("{}: {version}, {} MiB", machine.arch(), bytes.len() >> 20);
        built.push(Built { machine, path, size: bytes.len(), version });
        programs.push(layout::Program { arch: machine.arch(), bytes });
    }
    let layout = folder.join("layout");
    if layout.exists() {
        fs::remove_dir_all(&layout).with_context(|| format!("cannot remove {}", layout.display()))?;
    }
    let digest = layout::write(&layout, &options.tag, &programs)?;
    let archive = folder.join("nodefence.tar");
    layout::pack(&layout, &archive)?;
    Ok(Image { layout, archive, digest, programs: built })
}

/// Fails if the two images differ. Programs that differ are kept beside those of the first image.
fn compare(first: &Image, second: &Image) -> Result<()> {
    let mut differ = Vec::new();
    for (one, other) in first.programs.iter().zip(&second.programs) {
        if fs::read(&one.path)? != fs::read(&other.path)? {
            let kept = one.path.with_extension("again");
            fs::copy(&other.path, &kept).with_context(|| format!("cannot write {}", kept.display()))?;
            differ.push(format!("{} and {}", one.path.display(), kept.display()));
        }
    }
    ensure!(
        first.digest == second.digest && differ.is_empty(),
        "the same source gives another image in another folder: {} and {}; these programs differ: [{}]",
        first.digest,
        second.digest,
        differ.join(", ")
    );
    Ok(())
}

impl Built {
    fn to_json(&self) -> Value {
        let arch = self.machine.arch().to_string();
        json!({ "arch": arch, "size": self.size, "version": self.version, "path": self.path })
    }
}

/// Writes a program. A copy that runs keeps its own file.
fn put(path: &Path, bytes: &[u8]) -> Result<()> {
    use std::os::unix::fs::PermissionsExt as _;
    let fresh = path.with_extension("new");
    fs::write(&fresh, bytes).with_context(|| format!("cannot write {}", fresh.display()))?;
    fs::set_permissions(&fresh, fs::Permissions::from_mode(0o755))?;
    fs::rename(&fresh, path).with_context(|| format!("cannot write {}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cache::Scratch;

    fn image(folder: &Path, name: &str, program: &[u8]) -> Image {
        let path = folder.join(name);
        fs::write(&path, program).expect("written");
        let built =
            Built { machine: Machine::Arm64, path, size: program.len(), version: "nodefence 1".to_owned() };
        let digest = format!("sha256:{}", program.len());
        Image { layout: folder.to_owned(), archive: folder.to_owned(), digest, programs: vec![built] }
    }

    #[test]
    fn a_program_that_differs_is_named_and_kept() {
        let scratch = Scratch::new(&std::env::temp_dir().join("nodefence-xtask-compare")).expect("a folder");
        let folder = scratch.path();
        let first = image(folder, "first", b"same");
        compare(&first, &image(folder, "second", b"same")).expect("the same");
        let told = compare(&first, &image(folder, "third", b"another")).expect_err("another").to_string();
        let kept = folder.join("first.again");
        assert!(told.contains("another image") && told.contains(&kept.display().to_string()), "{told}");
        assert_eq!(fs::read(kept).expect("kept"), b"another");
    }
}
