//! A guest beside a real API server: etcd and the server run natively, in a network namespace that QEMU shares with them; the guest
//! has the server at its host's address, and kube-proxy inside.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::{Context as _, Result};

use super::guest::{self, Run};
use super::kernel::Kernel;
use super::{Bench, Boot};
use crate::assets;
use crate::test::executables::Built;
use crate::test::tally::Stage;
use crate::workspace::Workspace;

/// The tests' name in the guest.
pub(super) const SET: &str = "kubes";
/// What runs QEMU, of the tests' own programs.
const HOST: &str = "nodefence-kube-host";
/// QEMU's user network: its host is the namespace's loopback. `tests/src/kube/control.rs` has the server's port.
const API_SERVER: &str = "10.0.2.2:6443";
const NAME: &str = "vm kube";

impl Bench<'_> {
    /// A stage for each kernel. Where the programs cannot be had one failed stage says so.
    pub(super) fn kubes(
        &self,
        workspace: &Workspace,
        built: &Built,
        kernels: &[Kernel],
        runs: &[Run],
    ) -> Vec<Stage> {
        let part = self.folder.join("assets.cpio");
        let host = match self.kube_parts(workspace, built, &part) {
            Ok(host) => host,
            Err(error) => return vec![super::or_failed(NAME.to_owned(), Err(error))],
        };
        let stages = self.all(kernels, NAME, |kernel| self.kube(kernel, runs, &part, host));
        if !self.options.keep {
            let _gone = fs::remove_file(&part);
        }
        stages
    }

    fn kube_parts<'a>(&self, workspace: &Workspace, built: &'a Built, part: &Path) -> Result<&'a PathBuf> {
        let assets = assets::ensure(workspace)?;
        guest::write_assets(part, &[assets.join("kube-proxy")])?;
        let host = built.programs.iter().find(|program| program.ends_with(HOST));
        host.with_context(|| format!("cargo has not built {HOST}"))
    }

    fn kube(&self, kernel: Kernel, runs: &[Run], part: &Path, host: &Path) -> Result<Stage> {
        let started = Instant::now();
        let prepared = kernel.prepare()?;
        let mut stage = Stage::new(format!("{NAME} {}", kernel.label()));
        stage.note.clone_from(&prepared.release);
        let boot = Boot {
            // They share the server, so one after the other.
            parameters: &format!(
                "nodefence.runs={SET} nodefence.api_server={API_SERVER} nodefence.threads=1"
            ),
            parts: &[part],
            network: &["-netdev", "user,id=host", "-device", "virtio-net-pci,netdev=host"].map(str::to_owned),
            host: Some(host),
        };
        let ran = self.run(&prepared, &format!("{}-kube", kernel.label()), &boot)?;
        self.judge(&ran, runs, &mut stage)?;
        stage.took = started.elapsed();
        Ok(stage)
    }
}
