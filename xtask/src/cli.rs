//! The verbs and their help.

use std::process::ExitCode;

use anyhow::Result;
use clap::{Parser, Subcommand};

use crate::output::Output;
use crate::test::local::LONG;
use crate::test::plan::Scope;
use crate::workspace::Workspace;
use crate::{assets, build_ebpf, cluster, image, process, programs, setup, test, vm};

/// nodefence's build and test verbs.
///
/// Each verb first installs what it needs and this machine lacks (the pinned Rust toolchain, bpf-linker, Debian packages;
/// with sudo where it is not root) and says so. Progress goes to stderr, results to stdout.
#[derive(Debug, Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask", disable_help_subcommand = true)]
pub(crate) struct Cli {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// Install everything that any verb needs (Debian packages, the pinned toolchain, bpf-linker, cargo-deny), and nothing else.
    Setup {
        /// Only what building the agent takes: the pinned toolchain and bpf-linker.
        #[arg(long)]
        build: bool,
    },
    /// Build the kernel object; print its path, its size and the instructions of each program.
    BuildEbpf {
        /// How to print the result.
        #[arg(short, long, default_value = "table")]
        output: Output,
    },
    /// See it work: a small cluster in network namespaces whose node hangs, without nodefence and with it.
    ///
    /// About a minute once built. Needs root (sudo is used where it must be), attaches to nothing outside its own
    /// namespaces and removes all of them, also on Ctrl-C. Leaves target/demo/timeline.svg.
    Demo {
        /// Passed on to the demo; `-- --help` lists what it takes.
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        args: Vec<String>,
    },
    /// Run the tests: format, lints, dependencies, unit, packet and namespace tests, real Kubernetes, the kernel matrix in VMs, then a cluster of real kubelets.
    ///
    /// Takes up to 75 minutes on a new machine with two processors, beside what is downloaded.
    /// Ends with a table of the stages, the slowest test files, the failures by name and a line `N passed, N failed`; fails if anything failed. Figures and
    /// what passing tests printed are kept in target/test/results.json.
    /// Tests run as root (sudo), in namespaces and BPF filesystems of their own. A failed test is run once more only where a watchdog measured that the machine
    /// or guest stood still, or that the agent waited for a processor, for longer than the test can bear; where it then passes, it is named with that figure.
    #[command(after_help = "Examples:\n  cargo xtask test --quick\n  cargo xtask test net_cut")]
    Test {
        /// Everything but the VMs, real Kubernetes, the long fuzz and what is marked slow (xtask/src/test/table.rs): under 5 minutes once built, on two
        /// processors.
        #[arg(long)]
        quick: bool,
        /// All that a kernel may change on each kernel, with kube-proxy's and the kernel's own periods in place of shorter ones. Then the
        /// image for all architectures, as `image --check` makes it. Hours. (The long fuzz stays with this machine's kernel.)
        #[arg(long, conflicts_with = "quick")]
        all: bool,
        /// Only tests whose `file::name` contains this (one that names a file in full is about that file alone); leaves out format, lints and dependencies.
        /// With --quick on this kernel alone.
        filter: Option<String>,
    },
    /// Run the packet, namespace and VM tests on other kernels, in QEMU: all of them on each, where `test` leaves out on some
    /// what depends on the kernel little.
    ///
    /// Boots Debian's kernels (fetched from the mirror that apt is configured with, signatures checked, kept in
    /// ~/.cache/nodefence) with this machine's own programs. Works without KVM. One line per test and kernel; a panic, a
    /// hang and a missing result are failures, and leave the logs in target/vm-test/.
    #[command(
        after_help = "Examples:\n  cargo xtask vm-test --kernel 5.10\n  cargo xtask vm-test --kernel 6.1 latest --test net_cut\n\n\
        Environment:\n  NODEFENCE_CACHE          where kernels and Kubernetes programs are kept\n  NODEFENCE_ASSETS         folder of ready Kubernetes programs to use\n  \
        NODEFENCE_DEBIAN_MIRROR  Debian mirror in place of apt's (needed where apt has none)\n  \
        NODEFENCE_LONG_TESTS     set: kube-proxy's and the kernel's own periods in place of shorter ones"
    )]
    VmTest {
        /// Which kernels; all without this.
        #[arg(long = "kernel", value_enum, num_args = 1.., value_name = "KERNEL")]
        kernels: Vec<vm::Kernel>,
        /// Only tests whose `file::name` contains this; one that names a file in full is about that file alone.
        #[arg(long, value_name = "NAME")]
        test: Option<String>,
        /// Keep the logs also where all passed.
        #[arg(long)]
        keep: bool,
        /// Tests that run at once in a guest, where they do not share an API server or hold promised times.
        #[arg(long, value_name = "N", default_value_t = vm::THREADS)]
        threads: usize,
    },
    /// Build the real Kubernetes programs that tests run beside nodefence, once; print where they lie.
    ///
    /// etcd, kube-apiserver, kube-proxy, helm, promtool and an informer, from the Go modules pinned in tests/assets, checked by the sums
    /// there. They are kept in ~/.cache/nodefence, and a module's are built anew when its pins change: some minutes. This takes
    /// Go 1.26.
    #[command(after_help = "Environment:\n  \
        NODEFENCE_ASSETS  folder of ready programs to use instead, all in one folder as setup-envtest lays them out\n  \
        NODEFENCE_CACHE   where they are kept")]
    Assets {
        /// Also those of `cluster-test`: the kubelet, containerd, the controller manager, the scheduler and kubectl.
        #[arg(long)]
        cluster: bool,
        /// How to print the result.
        #[arg(short, long, default_value = "table")]
        output: Output,
    },
    /// Run nodefence in a cluster of real kubelets: three nodes in VMs, installed by its chart from its image.
    ///
    /// The control plane runs on this machine, in a network namespace that no packet leaves. Each node is a guest in QEMU (no KVM needed) with Debian's kernel, the
    /// kubelet, containerd and kube-proxy. Everything is removed at the end, also on Ctrl-C. Logs and results are in target/cluster-test.
    /// The first run builds the programs of Kubernetes and containerd from Go modules (minutes), and installs Debian's runc and CNI plugins.
    #[command(
        after_help = "Examples:\n  cargo xtask cluster-test\n  cargo xtask cluster-test --until installed --keep\n  \
        cargo xtask cluster-test --proxy nftables\n  cargo xtask cluster-test --scenario pods --scenario off\n  \
        cargo xtask cluster-test --all\n\nEnvironment: that of `cargo xtask vm-test --help`"
    )]
    ClusterTest {
        /// kube-proxy's mode.
        #[arg(long, value_enum, default_value = "ipvs")]
        proxy: cluster::Proxy,
        /// What happens to a node in the incident; can be given more than once.
        #[arg(long = "scenario", value_enum, value_name = "NAME", default_value = "freeze")]
        scenarios: Vec<cluster::Scenario>,
        /// Every scenario in a cluster with IPVS, there the chart's life too, then the freeze in clusters with iptables and nftables, and a table of all. Half an
        /// hour.
        #[arg(long, conflicts_with_all = ["proxy", "scenarios", "until", "keep"])]
        all: bool,
        /// How far to go.
        #[arg(long, value_enum, default_value = "removed")]
        until: cluster::Until,
        /// Leave the cluster up until Ctrl-C, and print how to look at it.
        #[arg(long)]
        keep: bool,
        /// A ready archive of nodefence's image, as `cargo xtask image` makes it. Without it the image is built.
        #[arg(long, value_name = "FILE")]
        image: Option<std::path::PathBuf>,
        /// Write the figures of the freeze into docs/design/cluster.md, where all promises held.
        #[arg(long, conflicts_with = "scenarios")]
        publish: bool,
    },
    /// Build the container image as an OCI layout, without a daemon: a static program for each architecture, and nothing else.
    ///
    /// Zig compiles what is not Rust; it comes from the Python package registry. Each program is checked for its architecture, and run as far as its version (those of
    /// other architectures under QEMU). The same source gives the same digest in each folder. The image is in target/image: `layout` for skopeo and the like,
    /// `nodefence.tar` for `ctr images import`.
    #[command(
        after_help = "Examples:\n  cargo xtask image --arch amd64\n  cargo xtask image --check   # before a release"
    )]
    Image {
        /// The architectures; all without this.
        #[arg(long = "arch", value_enum, num_args = 1.., value_name = "ARCH")]
        machines: Vec<image::Machine>,
        /// The image's tag.
        #[arg(long, default_value = env!("CARGO_PKG_VERSION"))]
        tag: String,
        /// Build all once more from a copy of the sources in another folder with an empty target folder; fail if the digests differ.
        #[arg(long)]
        check: bool,
        /// How to print the result.
        #[arg(short, long, default_value = "table")]
        output: Output,
    },
    /// Run the benchmarks on this machine, against peers or goals; table, plot and JSON go to target/bench/.
    ///
    /// Ends with 1 where a goal is missed, and with 3 where something could not be measured.
    #[command(after_help = "Examples:\n  cargo xtask bench datapath\n  cargo xtask bench ipvs --quick\n  \
        cargo xtask bench scale --only rest,change\n  cargo xtask bench scale --help\n  \
        cargo xtask bench kubernetes --quick\n  cargo xtask bench --publish")]
    Bench {
        /// Run all of them, about an hour and a half, and write docs/benchmarks.md; with --quick after it a trial, whose page stays in target/bench/publish/.
        #[arg(long)]
        publish: bool,
        /// Which benchmark (without one: datapath), and its options; `-- --help` lists benchmarks, `datapath --help` the options of one.
        #[arg(
            trailing_var_arg = true,
            allow_hyphen_values = true,
            default_value_if("publish", "false", "datapath")
        )]
        args: Vec<String>,
    },
}

impl Cli {
    /// Runs the verb.
    pub(crate) fn run(self) -> Result<ExitCode> {
        let workspace = Workspace::find()?;
        match self.verb {
            Verb::Setup { build } => setup::verb(&workspace, build)?,
            Verb::BuildEbpf { output } => build_ebpf::verb(&workspace, output)?,
            Verb::Assets { cluster, output } => {
                let set = if cluster { assets::Set::Cluster } else { assets::Set::Tests };
                assets::verb(&workspace, set, output)?;
            }
            Verb::Test { quick, all, filter } => {
                let scope = match (quick, all) {
                    (true, _) => Scope::Quick,
                    (_, true) => Scope::All,
                    (false, false) => Scope::Usual,
                };
                return test::verb(&workspace, &test::Options { scope, filter });
            }
            Verb::VmTest { kernels, test, keep, threads } => {
                let long = std::env::var_os(LONG).is_some();
                let options = vm::Options { kernels, keep, threads, long };
                return vm::verb(&workspace, &options, test.as_deref());
            }
            Verb::Image { machines, tag, check, output } => {
                image::verb(&workspace, &image::Options { machines, tag, check }, output)?;
            }
            Verb::ClusterTest { proxy, scenarios, all, until, keep, image, publish } => {
                let options = cluster::Options { proxy, scenarios, all, until, keep, image, publish };
                return cluster::verb(&workspace, &options);
            }
            Verb::Demo { args } => return programs::demo(&workspace, &args),
            Verb::Bench { publish, args } => {
                let measured = match publish {
                    true => programs::publish(&workspace, &args),
                    false => programs::bench(&workspace, &args),
                };
                // 1 says that a goal is missed.
                return measured.or_else(|error| match process::interrupted() {
                    true => Err(error),
                    false => {
                        eprintln!("error: {error:#}");
                        Ok(ExitCode::from(programs::NOT_MEASURED))
                    }
                });
            }
        }
        Ok(ExitCode::SUCCESS)
    }
}
