//! `cluster-test`: a cluster of real kubelets in VMs, and nodefence in it.

mod clock;
mod pods;
mod stage;

use std::fs::{self, File};
use std::io::BufWriter;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Instant;

use anyhow::{Context as _, Result};
use clap::ValueEnum;
use serde_json::json;
pub(crate) use stage::{prepare, stage};

use crate::assets;
use crate::cache;
use crate::image::{self, REPOSITORY};
use crate::process;
use crate::say::say;
use crate::setup;
use crate::setup::need::Need;
use crate::vm::{self, cpio::Archive, guest, packed, qemu};
use crate::workspace::Workspace;

/// The program that runs the cluster, and that is the first process of its guests.
const PROGRAM: &str = "nodefence-cluster";
/// The program of the pods, and of their sandboxes.
const POD: &str = "nodefence-pod";
/// The target for static programs.
const STATIC: &str = "x86_64-unknown-linux-musl";
/// The guests' kernel: that of Debian stable, with IPVS.
const KERNEL: vm::Kernel = vm::Kernel::V6_12;
/// A guest's memory, in MiB. It has the initramfs, the images and the containers' files too.
const MEMORY: u32 = 1536;
/// The folder of the CNI plugins in Debian's package.
const CNI: &str = "/usr/lib/cni";
/// The CNI plugins that a node uses.
const PLUGINS: [&str; 3] = ["bridge", "host-local", "loopback"];
/// The programs of `cargo xtask assets` that a node has.
const NODE: [&str; 5] = ["containerd", "containerd-shim-runc-v2", "ctr", "kubelet", "kube-proxy"];

/// The part of the initramfs with this machine's programs.
const BASE: &str = "base.cpio";
/// The part of the initramfs with Kubernetes' programs and the images.
const NODE_PART: &str = "node.cpio";

/// The program that judges the records of a run.
const REPORT: &str = "nodefence-incident";
/// The page about the incident, its picture, and where the picture lies from the page.
const PAGE: &str = "docs/design/cluster.md";
const PICTURE: &str = "docs/cluster.svg";
const LINK: &str = "../cluster.svg";

/// kube-proxy's mode in the cluster of all scenarios.
const ALL_IN: Proxy = Proxy::Ipvs;

/// kube-proxy's mode.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Proxy {
    /// IPVS.
    Ipvs,
    /// iptables.
    Iptables,
    /// nftables.
    Nftables,
}

/// How far to go.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Until {
    /// All parts are built. No guest boots.
    Built,
    /// All nodes are ready.
    Ready,
    /// nodefence is installed.
    Installed,
    /// The incident is over.
    Incident,
    /// The agents were rolled, and the chart is removed again.
    Removed,
}

/// What happens to a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Scenario {
    /// Every process of the node is frozen.
    Freeze,
    /// The same while the API server is stopped; the node is flagged by `nodefence flag` on each other node.
    NoApi,
    /// All pods of the node are frozen, and its kubelet goes on.
    Pods,
    /// The node is powered off.
    Off,
}

/// What is wanted.
#[derive(Debug)]
pub(crate) struct Options {
    /// kube-proxy's mode.
    pub(crate) proxy: Proxy,
    /// What the incident is run with.
    pub(crate) scenarios: Vec<Scenario>,
    /// All scenarios in a cluster with IPVS, then the freeze in clusters with each other mode.
    pub(crate) all: bool,
    /// How far to go.
    pub(crate) until: Until,
    /// Whether the cluster stays up.
    pub(crate) keep: bool,
    /// A ready archive of nodefence's image.
    pub(crate) image: Option<PathBuf>,
    /// Whether the figures are written into the page about the incident.
    pub(crate) publish: bool,
}

/// What a machine must have.
pub(crate) const NEEDS: [Need; 4] = [Need::Build, Need::Vm, Need::Cluster, Need::Image];

/// Runs the verb.
pub(crate) fn verb(workspace: &Workspace, options: &Options) -> Result<ExitCode> {
    qemu::check_machine()?;
    setup::ensure(workspace, &NEEDS)?;
    let assets = assets::ensure(workspace, assets::Set::Cluster)?;
    let out = workspace.target.join("cluster-test");
    fs::create_dir_all(&out).with_context(|| format!("cannot create {}", out.display()))?;
    let _lock = cache::lock(&out.join("lock"), "another run uses this target folder: waiting for it")?;
    let program = build(workspace)?;
    let image = match &options.image {
        Some(file) => file.clone(),
        None => image::for_nodes(workspace)?,
    };
    let kernel = KERNEL.prepare()?;
    if options.until == Until::Built {
        return Ok(ExitCode::SUCCESS);
    }
    say!("packing the guests: kernel {}", kernel.release);
    let parts = parts(workspace, &image, &assets, &out, &program)?;
    let initramfs = out.join("initramfs");
    qemu::join(parts.iter().map(PathBuf::as_path).chain([&*kernel.modules]), &initramfs)?;
    let emulator: Vec<&str> = [qemu::QEMU].into_iter().chain(qemu::processors()).collect();
    let parameters = qemu::parameters(&clock::parameters());
    let mut command = process::root_command(&program);
    for (proxy, scenarios) in clusters(options) {
        let (out, until) = match options.all && proxy != ALL_IN {
            true => (out.join(name(proxy)), Until::Incident),
            false => (out.clone(), options.until),
        };
        fs::create_dir_all(&out).with_context(|| format!("cannot create {}", out.display()))?;
        let plan = json!({
            "qemu": emulator,
            "kernel": kernel.image, "initramfs": initramfs, "parameters": parameters, "memory": MEMORY,
            "proxy": name(proxy), "scenarios": scenarios.into_iter().map(name).collect::<Vec<_>>(),
            "chart": workspace.root.join("deploy/chart/nodefence"),
            "image": {"repository": REPOSITORY, "tag": env!("CARGO_PKG_VERSION")},
            "until": name(until), "keep": options.keep, "out": out,
        });
        let file = out.join("plan.json");
        fs::write(&file, format!("{plan:#}\n"))
            .with_context(|| format!("cannot write {}", file.display()))?;
        command.arg(&file);
    }
    command.env("NODEFENCE_ASSETS", &assets).current_dir(&workspace.root);
    let status = process::status(&mut command);
    for file in [out.join(BASE), out.join(NODE_PART), initramfs] {
        // An error is ignored: a file that remains does not change the results.
        let _leftover = fs::remove_file(file);
    }
    let status = status?;
    if status.success() && options.publish {
        publish(workspace, &program, &out)?;
    }
    Ok(ExitCode::from(status.code().and_then(|code| u8::try_from(code).ok()).unwrap_or(1)))
}

/// The clusters, each with kube-proxy's mode and its scenarios.
fn clusters(options: &Options) -> Vec<(Proxy, Vec<Scenario>)> {
    if !options.all {
        return vec![(options.proxy, options.scenarios.clone())];
    }
    let of = |proxy: &Proxy| match *proxy {
        ALL_IN => (*proxy, Scenario::value_variants().to_vec()),
        other => (other, vec![Scenario::Freeze]),
    };
    Proxy::value_variants().iter().map(of).collect()
}

/// Writes table and picture of the run in `out` into the page about the incident.
fn publish(workspace: &Workspace, program: &Path, out: &Path) -> Result<()> {
    let [page, picture] = [PAGE, PICTURE].map(|file| workspace.root.join(file));
    let mut command = process::command(program.with_file_name(REPORT));
    command.arg("report").arg(out).arg("--publish").arg(page).arg(picture).arg(LINK);
    process::run(&mut command)
}

/// The name of a value on the command line and in the plan.
fn name(value: impl ValueEnum) -> String {
    value.to_possible_value().map(|value| value.get_name().to_owned()).unwrap_or_default()
}

/// Builds our programs. Returns the path of the one that runs the cluster.
fn build(workspace: &Workspace) -> Result<PathBuf> {
    say!("building");
    let programs = ["--bin=nodefence", "--bin=nodefence-cluster", "--bin=nodefence-incident"];
    // As the tests are built: with other packages a dependency has other features, and is built once more.
    process::run(workspace.cargo().args(["build", "--workspace"]).args(programs))?;
    let rust = &workspace.pins.rust;
    process::run(process::command("rustup").args(["target", "add", "--toolchain", rust, STATIC]))?;
    process::run(workspace.cargo().args(["build", "--release", "--package", POD, "--target", STATIC]))?;
    Ok(workspace.target.join("debug").join(PROGRAM))
}

/// Writes the parts of the initramfs, apart from the kernel's modules.
fn parts(
    workspace: &Workspace,
    image: &Path,
    assets: &Path,
    out: &Path,
    program: &PathBuf,
) -> Result<Vec<PathBuf>> {
    let runc = process::find("runc").context("runc is not on PATH")?;
    let plugins = PLUGINS.map(|plugin| Path::new(CNI).join(plugin));
    let base = out.join(BASE);
    guest::write(&base, plugins.iter().chain([&runc, program]), &[])?;
    let (packed, _) = packed::pack(out, [program], |_| PathBuf::from("init"), Instant::now())?;
    let node = out.join(NODE_PART);
    let mut archive = Archive::new(BufWriter::new(File::create(&node)?));
    for name in NODE {
        archive.copy(&format!("usr/bin/{name}"), &assets.join(name))?;
    }
    archive.copy("usr/sbin/runc", &runc)?;
    for (name, plugin) in PLUGINS.iter().zip(&plugins) {
        archive.copy(&format!("opt/cni/bin/{name}"), plugin)?;
    }
    let pod = fs::read(workspace.target.join(STATIC).join("release").join(POD))?;
    for (name, archived) in pods::images(&pod)? {
        archive.file(&format!("images/{name}.tar"), 0o644, &archived)?;
    }
    archive.copy("images/nodefence.tar", image)?;
    archive.finish()?;
    Ok(vec![base, packed.part(program)?.to_owned(), node])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options(all: bool) -> Options {
        Options {
            proxy: Proxy::Nftables,
            scenarios: vec![Scenario::Pods],
            all,
            until: Until::Incident,
            keep: false,
            image: None,
            publish: false,
        }
    }

    #[test]
    fn all_are_every_scenario_with_ipvs_and_the_freeze_in_the_other_modes() {
        assert_eq!(clusters(&options(false)), [(Proxy::Nftables, vec![Scenario::Pods])]);
        let every = vec![Scenario::Freeze, Scenario::NoApi, Scenario::Pods, Scenario::Off];
        let expected = [
            (Proxy::Ipvs, every),
            (Proxy::Iptables, vec![Scenario::Freeze]),
            (Proxy::Nftables, vec![Scenario::Freeze]),
        ];
        assert_eq!(clusters(&options(true)), expected);
    }
}
