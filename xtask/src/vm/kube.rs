//! A guest beside a real API server: etcd and the server run natively, in a network namespace that QEMU shares with them; the guest
//! has the server at its host's address, and kube-proxy inside.

use std::cmp::Reverse;
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

/// The names in the guest of the tests that run on each kernel, and of all of them.
pub(super) const SETS: [&str; 2] = ["kubes", "kubes-all"];
/// Files that look at kube-proxy alone, or at what no kernel changes, and take minutes. Where no kernel is named they run on `ONCE_ON`.
const ONCE: [&str; 2] = ["vm_kube_audit", "vm_kube_usable"];
/// The oldest: natively the same runs on a new one.
const ONCE_ON: Kernel = Kernel::V5_10;
/// What runs QEMU, of the tests' own programs.
pub(crate) const HOST: &str = "nodefence-kube-host";
/// QEMU's user network: its host is the namespace's loopback. `tests/src/kube/control.rs` has the server's port.
pub(super) const API_SERVER: &str = "10.0.2.2:6443";
/// What their stages are called.
pub(super) const NAME: &str = "vm kube";

/// What such a guest needs beside the others' things.
pub(super) struct Parts<'a> {
    /// Part of the initramfs with kube-proxy; removed with this.
    file: PathBuf,
    host: &'a Path,
}

impl<'a> Parts<'a> {
    /// Makes them ready, in `folder`.
    pub(super) fn new(workspace: &Workspace, built: &'a Built, folder: &Path) -> Result<Self> {
        let host = built.programs.iter().find(|program| program.ends_with(HOST));
        let host = host.with_context(|| format!("cargo has not built {HOST}"))?;
        let this = Self { file: folder.join("assets.cpio"), host };
        guest::write_assets(&this.file, &[assets::ensure(workspace)?.join("kube-proxy")])?;
        Ok(this)
    }
}

impl Drop for Parts<'_> {
    fn drop(&mut self) {
        let _gone = fs::remove_file(&self.file);
    }
}

/// The tests by set, as `SETS` names them.
pub(super) fn sets(all: Vec<Run>) -> [Vec<Run>; 2] {
    let once = |run: &Run| ONCE.iter().any(|name| run.title.ends_with(&format!("::{name}")));
    [all.iter().filter(|run| !once(run)).cloned().collect(), all]
}

/// Which of the sets a kernel runs; `named` are the kernels of the command line.
fn set(kernel: Kernel, named: &[Kernel]) -> usize {
    usize::from(kernel == ONCE_ON || !named.is_empty())
}

/// The kernels that have something to run, in the order in which they boot: the longest first.
pub(super) fn order(named: &[Kernel], sets: &[Vec<Run>; 2]) -> Vec<Kernel> {
    let mut order = if named.is_empty() { Kernel::ALL.to_vec() } else { named.to_vec() };
    let many = |kernel: &Kernel| sets[set(*kernel, named)].len();
    order.retain(|kernel| many(kernel) > 0);
    order.sort_by_key(|kernel| Reverse((many(kernel), *kernel)));
    order
}

/// The guest's card, which leads to the host alone.
pub(super) fn wire() -> [String; 4] {
    ["-netdev", "user,id=host", "-device", "virtio-net-pci,netdev=host"].map(str::to_owned)
}

impl Bench<'_> {
    /// Runs a kernel's tests in a guest beside an API server of its own.
    pub(super) fn kube(&self, kernel: Kernel, sets: &[Vec<Run>; 2], parts: &Parts<'_>) -> Result<Stage> {
        let set = set(kernel, &self.options.kernels);
        let started = Instant::now();
        let prepared = kernel.prepare()?;
        let mut stage = Stage::new(format!("{NAME} {}", kernel.label()));
        stage.note.clone_from(&prepared.release);
        let boot = Boot {
            // They share the server, so one after the other.
            parameters: &format!(
                "nodefence.runs={} nodefence.api_server={API_SERVER} nodefence.threads=1",
                SETS[set]
            ),
            parts: &[&parts.file],
            network: &wire(),
            host: Some(parts.host),
        };
        let ran = self.run(&prepared, &format!("{}-kube", kernel.label()), &boot)?;
        self.judge(&ran, &sets[set], &mut stage)?;
        stage.took = started.elapsed();
        Ok(stage)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(title: &str) -> Run {
        Run {
            title: title.to_owned(),
            executable: PathBuf::new(),
            names: vec!["one".to_owned()],
            some: false,
        }
    }

    #[test]
    fn what_no_kernel_changes_runs_on_the_oldest_alone_and_first() {
        let sets = sets(vec![run("tests::vm_kube_audit"), run("tests::vm_kube_hang")]);
        assert_eq!(sets.each_ref().map(Vec::len), [1, 2]);
        assert_eq!(order(&[], &sets), [Kernel::V5_10, Kernel::Latest, Kernel::V6_12, Kernel::V6_1]);
        assert_eq!(Kernel::ALL.map(|kernel| set(kernel, &[])), [1, 0, 0, 0]);
        assert_eq!(set(Kernel::V6_12, &[Kernel::V6_12]), 1);
    }

    #[test]
    fn a_kernel_with_nothing_to_run_does_not_boot() {
        let sets = sets(vec![run("tests::vm_kube_usable")]);
        assert_eq!(order(&[], &sets), [Kernel::V5_10]);
        assert_eq!(order(&[Kernel::V6_1], &sets), [Kernel::V6_1]);
        assert_eq!(order(&[], &self::sets(Vec::new())), []);
    }
}
