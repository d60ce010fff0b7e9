//! `assets`: real Kubernetes programs for the tests. They are built once from pinned Go modules, or taken from a folder of ready programs.

mod golang;
mod pins;
mod store;

use std::env;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail};
use pins::FOLDER;
pub(crate) use pins::Set;
use serde_json::json;

use crate::output::Output;
use crate::process;
use crate::workspace::Workspace;

/// The link in the target folder. A test that is run without xtask finds the programs by it.
const LINK: &str = "assets";

/// A program that runs here, and its version.
#[derive(Debug)]
struct Asset {
    path: PathBuf,
    version: String,
    bytes: u64,
}

/// Runs the verb `assets`: builds or finds the programs, and prints them.
pub(crate) fn verb(workspace: &Workspace, set: Set, format: Output) -> Result<()> {
    let folder = ensure(workspace, set)?;
    let assets: Vec<(&str, Asset)> =
        set.names().map(|name| Ok((name, ask(&folder, name)?))).collect::<Result<_>>()?;
    match format {
        Output::Table => print_table(&folder, &assets),
        Output::Json => {
            let row = |(name, asset): &(&str, Asset)| json!({"name": name, "version": asset.version, "size": asset.bytes, "path": asset.path});
            let programs: Vec<_> = assets.iter().map(row).collect();
            println!("{:#}", json!({"folder": folder, "programs": programs}));
        }
    }
    Ok(())
}

/// The folder of the programs: the folder that [`FOLDER`] names, else a folder of the cache. Programs that the cache lacks are built.
pub(crate) fn ensure(workspace: &Workspace, set: Set) -> Result<PathBuf> {
    let folder = match env::var_os(FOLDER).filter(|value| !value.is_empty()) {
        Some(folder) => {
            let folder = ready(Path::new(&folder), set)?;
            // All programs are run before the link points to them.
            set.names().try_for_each(|name| ask(&folder, name).map(drop))?;
            folder
        }
        None => store::ensure(&workspace.root.join("tests/assets"), set)?,
    };
    link(&workspace.target, &folder)?;
    Ok(folder)
}

/// Checks a folder of ready programs.
///
/// # Errors
/// Fails if programs are missing. The error names them.
fn ready(folder: &Path, set: Set) -> Result<PathBuf> {
    let folder = fs::canonicalize(folder).with_context(|| format!("{FOLDER}={}", folder.display()))?;
    let missing: Vec<&str> = set.names().filter(|name| !process::is_program(&folder.join(name))).collect();
    if missing.is_empty() {
        return Ok(folder);
    }
    bail!(
        "{FOLDER}={} lacks {}; wanted in it: {}. Without {FOLDER} they are built from source",
        folder.display(),
        missing.join(", "),
        set.names().collect::<Vec<_>>().join(", ")
    )
}

/// Makes the link in the target folder lead to `folder`. A rename replaces the link: a test that looks at the same time finds the old link or the
/// new one.
fn link(target: &Path, folder: &Path) -> Result<()> {
    let link = target.join(LINK);
    if fs::read_link(&link).is_ok_and(|now| now == folder) {
        return Ok(());
    }
    let fresh = target.join(format!("{LINK}-{}", std::process::id()));
    fs::create_dir_all(target)?;
    std::os::unix::fs::symlink(folder, &fresh)
        .and_then(|()| fs::rename(&fresh, &link))
        .with_context(|| format!("cannot make the link {}", link.display()))
}

/// Asks a program for its version. So a program that cannot run here is noticed now, and not in the middle of a test.
fn ask(folder: &Path, name: &str) -> Result<Asset> {
    let path = folder.join(name);
    let words: &[&str] = match name {
        "helm" => &["version", "--template={{.Version}}"],
        "kubectl" => &["version", "--client"],
        "containerd-shim-runc-v2" => &["-v"],
        _ => &["--version"],
    };
    let mut command = process::command(&path);
    let printed = process::output(command.args(words))?;
    let version =
        version(&printed).with_context(|| format!("`{}` printed nothing", process::line(&command)))?;
    let bytes = path.metadata()?.len();
    Ok(Asset { path, version, bytes })
}

/// The version of `Kubernetes v1.36.3`, `etcd Version: 3.6.8` or `promtool, version 0.316.0 (branch: )`: the last word before brackets, of the first line that
/// names a version so, else of the first line.
fn version(printed: &str) -> Option<String> {
    let named = printed.lines().find(|line| line.contains("Version: "));
    let line = named.or_else(|| printed.lines().next())?.split('(').next()?;
    line.split_whitespace().last().map(|word| word.trim_start_matches('v').to_owned())
}

fn print_table(folder: &Path, assets: &[(&str, Asset)]) {
    println!("folder  {}", folder.display());
    let width = assets.iter().map(|(name, _)| name.len()).max().unwrap_or(0).max(7);
    println!("\n{:<width$}  {:<10}  {:>6}", "PROGRAM", "VERSION", "MIB");
    for (name, Asset { version, bytes, .. }) in assets {
        println!("{name:<width$}  {version:<10}  {:>6}", bytes >> 20);
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;
    use crate::cache::Scratch;

    #[test]
    fn the_version_is_the_last_word_of_the_first_line() {
        assert_eq!(version("Kubernetes v1.36.3\n").as_deref(), Some("1.36.3"));
        assert_eq!(
            version("containerd-shim-runc-v2:\n  Version:  v2.4.2\n  Go version: go1.26.8\n").as_deref(),
            Some("2.4.2")
        );
        assert_eq!(version("etcd Version: 3.6.8\nGit SHA: none\n").as_deref(), Some("3.6.8"));
        assert_eq!(
            version("promtool, version 0.316.0 (branch: , revision: unknown)\n").as_deref(),
            Some("0.316.0")
        );
        assert_eq!(version(""), None);
    }

    #[test]
    fn a_ready_folder_names_what_it_lacks() {
        let scratch = Scratch::new(&env::temp_dir().join("nodefence-xtask-ready")).expect("a folder");
        for name in Set::Tests.names() {
            fs::write(scratch.path().join(name), "").expect("a file");
        }
        let run =
            |name: &str| fs::set_permissions(scratch.path().join(name), fs::Permissions::from_mode(0o755));
        Set::Tests.names().filter(|name| *name != "kube-proxy").try_for_each(run).expect("permissions");
        let error = ready(scratch.path(), Set::Tests).expect_err("one cannot be run").to_string();
        assert!(error.contains("lacks kube-proxy;"), "{error}");
        run("kube-proxy").expect("permissions");
        assert_eq!(ready(scratch.path(), Set::Tests).expect("complete"), scratch.path());
    }

    #[test]
    fn the_link_follows_the_folder() {
        let scratch = Scratch::new(&env::temp_dir().join("nodefence-xtask-link")).expect("a folder");
        for folder in ["one", "two", "two"] {
            let folder = scratch.path().join(folder);
            link(scratch.path(), &folder).expect("a link");
            assert_eq!(fs::read_link(scratch.path().join(LINK)).expect("a link"), folder);
        }
        assert_eq!(fs::read_dir(scratch.path()).expect("a folder").count(), 1, "nothing else is left");
    }
}
