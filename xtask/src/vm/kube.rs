//! A guest beside a real API server. etcd and the server run natively, in a network namespace that QEMU shares with them. The guest reaches the
//! server at its host's address, and runs kube-proxy itself.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};

use super::guest;
use super::kernel::Prepared;
use super::matrix::{Boot, Guest, Matrix, Ran};
use crate::assets;
use crate::test::executables::Built;
use crate::workspace::Workspace;

/// The program that runs QEMU beside an API server. It is one of the tests' own programs.
pub(crate) const HOST: &str = "nodefence-kube-host";
/// The server's address in QEMU's user network, where the host is the namespace's loopback. `tests/src/kube/control.rs` has the port.
pub(super) const API_SERVER: &str = "10.0.2.2:6443";

/// The files that a guest beside an API server needs, and other guests do not.
pub(super) struct Parts<'a> {
    /// The part of the initramfs with kube-proxy. It is removed when this value is dropped.
    file: PathBuf,
    host: &'a Path,
}

impl<'a> Parts<'a> {
    /// Makes the files in `folder`.
    pub(super) fn new(workspace: &Workspace, built: &'a Built, folder: &Path) -> Result<Self> {
        let host = built.programs.iter().find(|program| program.ends_with(HOST));
        let host = host.with_context(|| format!("cargo has not built {HOST}"))?;
        let this = Self { file: folder.join("assets.cpio"), host };
        guest::write_assets(
            &this.file,
            &[assets::ensure(workspace, assets::Set::Tests)?.join("kube-proxy")],
        )?;
        Ok(this)
    }
}

impl Drop for Parts<'_> {
    fn drop(&mut self) {
        let _gone = fs::remove_file(&self.file);
    }
}

/// QEMU's options for the guest's network card, which leads to the host only.
pub(super) fn wire() -> [String; 4] {
    ["-netdev", "user,id=host", "-device", "virtio-net-pci,netdev=host"].map(str::to_owned)
}

impl Parts<'_> {
    /// Boots a guest beside an API server of its own. The server runs as long as the guest.
    pub(super) fn run(
        &self,
        matrix: &Matrix<'_>,
        prepared: &Prepared,
        guest: &Guest,
        parameters: &str,
    ) -> Result<Ran> {
        let parameters = format!("{parameters} nodefence.test_api_server={API_SERVER}");
        let parts = [&*self.file];
        let network = wire();
        let boot =
            Boot { parts: &parts, network: &network, host: Some(self.host), ..Boot::new(guest, &parameters) };
        matrix.run(prepared, &guest.label(), &boot)
    }
}
