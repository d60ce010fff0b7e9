//! Where the real programs lie.

use std::path::PathBuf;

use anyhow::{Context as _, Result, bail};

/// Environment: the folder of the programs; `cargo xtask test` sets it.
const FOLDER: &str = "NODEFENCE_ASSETS";

/// The program `name`: in the folder that `NODEFENCE_ASSETS` names, else behind the link that `cargo xtask assets` leaves in
/// the target folder.
///
/// # Errors
/// Where the program is not there; with the command that makes it.
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
