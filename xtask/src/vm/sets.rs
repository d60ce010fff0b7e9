//! Which tests run on which kernel.

use std::cmp::Reverse;

use super::guest::{self, Run};
use super::kernel::Kernel;
use crate::test::executables::Level;

/// Files that look at kube-proxy alone, or at what no kernel changes, and take minutes.
const ABOUT_KUBE_PROXY: [&str; 2] = ["vm_kube_audit", "vm_kube_usable"];
/// In iptables and nftables modes the same runs natively on a new kernel; kube-proxy's IPVS mode is compared and audited on this one alone.
const OLDEST: [Kernel; 1] = [Kernel::V5_10];
/// Programs are attached by clsact before 6.6 and by tcx since: a kernel of each kind, beside the machine's own.
const ENDS: [Kernel; 2] = [Kernel::V5_10, Kernel::Latest];

/// Tests of one kind of guest: all of them on some kernels, on the others those that depend on the kernel most.
#[derive(Debug)]
pub(super) struct Sets {
    /// The names of both in the guest.
    names: [&'static str; 2],
    all: Vec<Run>,
    few: Vec<Run>,
    all_on: Vec<Kernel>,
}

impl Sets {
    /// Of guests that are alone: packets and what needs IPVS on each kernel. `whole`: all on each.
    pub(super) fn alone(all: Vec<Run>, whole: bool) -> Self {
        let few = |run: &Run| run.level != Level::Namespaces;
        Self::new(["runs", "runs-few"], all, few, whole, &ENDS)
    }

    /// Of guests with kube-proxy.
    pub(super) fn beside_kube(all: Vec<Run>, whole: bool) -> Self {
        let few = |run: &Run| !ABOUT_KUBE_PROXY.iter().any(|name| run.title.ends_with(&format!("::{name}")));
        Self::new(["kubes", "kubes-few"], all, few, whole, &OLDEST)
    }

    /// Of pairs of guests.
    pub(super) fn pairs(all: Vec<Run>, whole: bool) -> Self {
        Self::new(["pairs", "pairs-few"], all, |_| false, whole, &ENDS)
    }

    /// All of them run on the kernels `some`, or on each where the `whole` is wanted.
    fn new(
        names: [&'static str; 2],
        all: Vec<Run>,
        few: impl Fn(&Run) -> bool,
        whole: bool,
        some: &[Kernel],
    ) -> Self {
        let few = all.iter().filter(|run| few(run)).cloned().collect();
        let all_on = if whole { &Kernel::ALL } else { some };
        Self { names, all, few, all_on: all_on.to_vec() }
    }

    /// What a kernel runs, and its name in the guest.
    pub(super) fn on(&self, kernel: Kernel) -> (&'static str, &[Run]) {
        if self.all_on.contains(&kernel) { (self.names[0], &self.all) } else { (self.names[1], &self.few) }
    }

    /// All of them.
    pub(super) fn all(&self) -> &[Run] {
        &self.all
    }

    /// The calls of both, by their names.
    pub(super) fn calls(&self) -> [(&'static str, String); 2] {
        [(self.names[0], guest::calls(&self.all)), (self.names[1], guest::calls(&self.few))]
    }

    /// Those of `kernels` that have something to run, in the order in which they boot: the longest first, and newer kernels take longer.
    pub(super) fn order(&self, kernels: &[Kernel]) -> Vec<Kernel> {
        let many = |kernel: &Kernel| self.on(*kernel).1.len();
        let mut order: Vec<Kernel> = kernels.iter().copied().filter(|kernel| many(kernel) > 0).collect();
        order.sort_by_key(|kernel| Reverse((many(kernel), *kernel)));
        order
    }
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::*;

    fn run(name: &str, level: Level) -> Run {
        let (title, names) = (format!("tests::{name}"), vec!["one".to_owned()]);
        Run { title, executable: PathBuf::new(), names, some: false, level }
    }

    #[test]
    fn namespaces_are_tried_on_the_oldest_and_the_newest_kernel() {
        let all = vec![
            run("net_cut", Level::Namespaces),
            run("packets_table", Level::Packets),
            run("vm_ipvs", Level::Vm),
        ];
        let sets = Sets::alone(all.clone(), false);
        assert_eq!(Kernel::ALL.map(|kernel| sets.on(kernel).1.len()), [3, 2, 2, 3]);
        assert_eq!(sets.on(Kernel::V6_1).0, "runs-few");
        assert_eq!(sets.order(&Kernel::ALL), [Kernel::Latest, Kernel::V5_10, Kernel::V6_12, Kernel::V6_1]);
        let sets = Sets::alone(all, true);
        assert_eq!(Kernel::ALL.map(|kernel| sets.on(kernel).1.len()), [3; 4]);
    }

    #[test]
    fn what_is_about_kube_proxy_runs_on_the_oldest_kernel_and_first() {
        let all = ["vm_kube_audit", "vm_kube_hang"].map(|name| run(name, Level::VmKubernetes));
        let sets = Sets::beside_kube(all.to_vec(), false);
        assert_eq!(sets.order(&Kernel::ALL), [Kernel::V5_10, Kernel::Latest, Kernel::V6_12, Kernel::V6_1]);
        assert_eq!(Kernel::ALL.map(|kernel| sets.on(kernel).1.len()), [2, 1, 1, 1]);
    }

    #[test]
    fn a_kernel_with_nothing_to_run_does_not_boot() {
        let sets = Sets::beside_kube(vec![run("vm_kube_usable", Level::VmKubernetes)], false);
        assert_eq!(sets.order(&Kernel::ALL), [Kernel::V5_10]);
        let sets = Sets::pairs(vec![run("pair_sums", Level::Pair)], false);
        assert_eq!(sets.order(&Kernel::ALL), [Kernel::Latest, Kernel::V5_10]);
        assert!(Sets::pairs(Vec::new(), true).order(&Kernel::ALL).is_empty());
    }
}
