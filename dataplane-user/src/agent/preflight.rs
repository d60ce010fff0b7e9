//! Checks before anything is taken, ended or attached. An agent that cannot run must find out while the earlier agent still runs.

use std::path::Path;

use anyhow::{Context as _, bail};
use nix::{
    sys::resource::{Resource, getrlimit, setrlimit},
    unistd::{AccessFlags, access},
};

use super::settings::{InterfaceChoice, Settings};
use crate::{
    dataplane::{self, interfaces},
    flags::FlagStore,
    report::Server,
};

/// Checks whether the agent can run.
///
/// # Errors
/// What would keep the agent from running, with the file, device or flag that it is about.
pub(super) fn check(settings: &Settings) -> anyhow::Result<()> {
    raise_files()?;
    dataplane::check(&settings.options)?;
    check_socket(&settings.socket, &settings.run_dir)?;
    FlagStore::new(&settings.run_dir).check()?;
    check_devices(&settings.interfaces)
}

/// Descriptors for maps, programs, links, netlink, and connections to the socket.
const LEAST_FILES: u64 = 128;

/// Raises the limit of open files as far as this process may: many devices and clients need many descriptors at once.
fn raise_files() -> anyhow::Result<()> {
    let (soft, hard) = getrlimit(Resource::RLIMIT_NOFILE).context("cannot read the limit of open files")?;
    if hard < LEAST_FILES {
        bail!("this process may open {hard} files (ulimit -Hn), at least {LEAST_FILES} are needed");
    }
    if soft < hard {
        setrlimit(Resource::RLIMIT_NOFILE, hard, hard).context("cannot raise the limit of open files")?;
    }
    Ok(())
}

fn check_socket(socket: &Path, run_dir: &Path) -> anyhow::Result<()> {
    Server::check(socket)?;
    let folder = socket.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    // The run folder is made with the lock.
    if folder == run_dir && !folder.exists() {
        return Ok(());
    }
    access(folder, AccessFlags::W_OK | AccessFlags::X_OK)
        .with_context(|| format!("socket {}: its folder cannot be written to", socket.display()))
}

/// A device may come later. Where none of the named ones is there, the names are probably mistyped.
fn check_devices(wanted: &InterfaceChoice) -> anyhow::Result<()> {
    if wanted.auto || wanted.names.is_empty() {
        return Ok(());
    }
    let mut there: Vec<String> = interfaces::list()?.into_iter().map(|device| device.name).collect();
    if wanted.names.iter().any(|name| there.contains(name)) {
        return Ok(());
    }
    there.sort_unstable();
    let named = wanted.names.join(", ");
    bail!(
        "--interface {named}: there is no such interface in this network namespace; there are {}",
        there.join(", ")
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_socket_that_cannot_be_made_is_named() {
        let dir = tempfile::tempdir().unwrap();
        let run = dir.path().join("run");
        check_socket(&run.join("agent.sock"), &run).unwrap();
        let error = check_socket(&dir.path().join("missing/agent.sock"), &run).unwrap_err();
        assert!(
            format!("{error:#}").contains("missing/agent.sock: its folder cannot be written to: ENOENT"),
            "{error:#}"
        );
        let long = dir.path().join("x".repeat(200));
        let error = check_socket(&long, &run).unwrap_err().to_string();
        assert!(error.contains("SUN_LEN"), "{error}");
        std::fs::write(dir.path().join("file"), "").unwrap();
        let error = check_socket(&dir.path().join("file"), &run).unwrap_err().to_string();
        assert!(error.contains("file: cannot listen: something that is no socket lies there"), "{error}");
    }

    #[test]
    fn one_of_the_devices_is_enough() {
        let wanted = |names: &[&str], auto| InterfaceChoice {
            names: names.iter().map(|&name| name.to_owned()).collect(),
            auto,
        };
        check_devices(&wanted(&["nope0", "lo"], false)).unwrap();
        check_devices(&wanted(&["nope0"], true)).unwrap();
        let error = check_devices(&wanted(&["nope0", "nope1"], false)).unwrap_err().to_string();
        assert!(
            error.contains("--interface nope0, nope1: there is no such interface") && error.contains("lo"),
            "{error}"
        );
    }
}
