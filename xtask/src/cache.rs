//! What is kept between runs and between clones: kernels, real Kubernetes programs.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};

/// `$NODEFENCE_CACHE`, else `nodefence` below the user's cache folder.
pub(crate) fn folder() -> Result<PathBuf> {
    let set = |name: &str| env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    set("NODEFENCE_CACHE")
        .or_else(|| set("XDG_CACHE_HOME").map(|folder| folder.join("nodefence")))
        .or_else(|| set("HOME").map(|folder| folder.join(".cache/nodefence")))
        .context("nowhere to cache what tests need: set NODEFENCE_CACHE or HOME")
}

/// A folder that goes away with its owner, also when an error or Ctrl-C ends the work in it.
#[derive(Debug)]
pub(crate) struct Scratch(PathBuf);

/// How the names of such folders begin.
pub(crate) const SCRATCH: &str = "scratch-";

impl Scratch {
    /// Makes one below `parent`.
    pub(crate) fn new(parent: &Path) -> Result<Self> {
        let path = parent.join(format!("{SCRATCH}{}", std::process::id()));
        fs::create_dir_all(&path).with_context(|| format!("cannot create {}", path.display()))?;
        Ok(Self(path))
    }

    /// Where it is.
    pub(crate) fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _leftover = fs::remove_dir_all(&self.0);
    }
}
