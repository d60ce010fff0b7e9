//! The paths of etcd, kube-apiserver, kube-proxy, helm, promtool and the informer.

use std::path::PathBuf;

use anyhow::{Context as _, Result, bail};

/// The environment variable that names the folder of the programs. `cargo xtask test` sets it.
const FOLDER: &str = "NODEFENCE_ASSETS";

/// The path of the program `name`: in the folder that `NODEFENCE_ASSETS` names, or else behind the link that `cargo xtask assets` makes in the target folder.
///
/// # Errors
/// Fails if there is no such program. The error names the command that makes it.
pub fn asset(name: &str) -> Result<PathBuf> {
    let this = std::env::current_exe().context("find the running executable")?;
    let tried: Vec<PathBuf> = match std::env::var_os(FOLDER).filter(|value| !value.is_empty()) {
        Some(folder) => vec![PathBuf::from(folder).join(name)],
        None => this.ancestors().skip(1).take(3).map(|folder| folder.join("assets").join(name)).collect(),
    };
    if let Some(found) = tried.iter().find(|path| path.is_file()) {
        return Ok(found.clone());
    }
    let looked: Vec<String> = tried.iter().map(|path| path.display().to_string()).collect();
    bail!("no {name} at {}: run `cargo xtask assets` first", looked.join(", "))
}
