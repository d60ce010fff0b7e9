//! Installs programs of Debian packages.

use std::path::Path;

use anyhow::{Result, bail};

use super::need::Need;
use crate::process;
use crate::say::say;

/// What shows that a package is installed: a program on the search path, a file, or a module of Python.
#[derive(Debug, Clone, Copy)]
enum Proof {
    Program(&'static str),
    File(&'static str),
    Module(&'static str),
}

use Proof::{File, Module, Program};

const BUILD: &[(Proof, &str)] = &[(Program("cc"), "build-essential")];

const DEMO: &[(Proof, &str)] = &[
    (Program("ip"), "iproute2"),
    (Program("nft"), "nftables"),
    (Program("conntrack"), "conntrack"),
    (Program("ethtool"), "ethtool"),
    (Program("ps"), "procps"),
];

const NAMESPACES: &[(Proof, &str)] = &[
    (Program("tcpdump"), "tcpdump"),
    (Program("bpftool"), "bpftool"),
    (Program("ipset"), "ipset"),
    (Program("iptables"), "iptables"),
    (Program("unshare"), "util-linux"),
    // A test suspends a disk.
    (Program("mkfs.ext4"), "e2fsprogs"),
    (Program("losetup"), "mount"),
    (Program("ping"), "iputils-ping"),
    // Unit tests make a signed archive.
    (Program("gpg"), "gpg"),
    (Program("gpgv"), "gpgv"),
    (Program("xz"), "xz-utils"),
];

const BENCH: &[(Proof, &str)] = &[(Program("ipset"), "ipset"), (Program("iptables"), "iptables")];

const VM: &[(Proof, &str)] = &[
    (Program("qemu-system-x86_64"), "qemu-system-x86"),
    (Program("gpgv"), "gpgv"),
    (File("/usr/share/keyrings/debian-archive-keyring.gpg"), "debian-archive-keyring"),
    (Program("xz"), "xz-utils"),
    (Program("dpkg-deb"), "dpkg"),
    (Program("depmod"), "kmod"),
    (Program("strip"), "binutils"),
    (Program("busybox"), "busybox-static"),
    (Program("ipvsadm"), "ipvsadm"),
];

const IMAGE: &[(Proof, &str)] = &[
    (Program("python3"), "python3"),
    (Module("ensurepip"), "python3-venv"),
    (Program("qemu-aarch64-static"), "qemu-user-static"),
];

const CLUSTER: &[(Proof, &str)] =
    &[(Program("runc"), "runc"), (File("/usr/lib/cni/bridge"), "containernetworking-plugins")];

/// Installs the packages that `needs` lack.
pub(crate) fn ensure(needs: &[Need]) -> Result<()> {
    let wanted = missing(needs);
    if wanted.is_empty() {
        return Ok(());
    }
    if process::find("apt-get").is_none() {
        bail!(
            "missing: {}. This is no Debian-like system (no apt-get): install them by its own means",
            wanted.join(", ")
        );
    }
    if !process::is_root() && process::find("sudo").is_none() {
        bail!(
            "missing: {}. Neither root nor sudo: have root run `apt-get install {}`",
            wanted.join(", "),
            wanted.join(" ")
        );
    }
    say!("installing Debian packages: {}", wanted.join(", "));
    if install(&wanted).is_err() {
        process::check_interrupt()?;
        say!("refreshing apt's package lists, then again");
        process::run(process::root_command("apt-get").args(["update", "-q"]))?;
        install(&wanted)?;
    }
    match missing(needs) {
        still if still.is_empty() => Ok(()),
        still => bail!("installed, yet their programs are not on PATH: {}", still.join(", ")),
    }
}

fn missing(needs: &[Need]) -> Vec<&'static str> {
    let mut packages = Vec::new();
    for need in needs {
        let tables: &[&[(Proof, &'static str)]] = match need {
            Need::Build => &[BUILD],
            Need::Deny => &[],
            Need::Demo => &[DEMO],
            Need::Namespaces => &[DEMO, NAMESPACES],
            Need::Bench => &[DEMO, BENCH],
            Need::Vm => &[DEMO, NAMESPACES, VM],
            Need::Image => &[IMAGE],
            Need::Cluster => &[CLUSTER],
        };
        for (proof, package) in tables.iter().copied().flatten() {
            let there = match proof {
                Program(name) => process::find(name).is_some(),
                File(path) => Path::new(path).exists(),
                Module(name) => imports(name),
            };
            if !there && !packages.contains(package) {
                packages.push(package);
            }
        }
    }
    packages
}

fn imports(module: &str) -> bool {
    process::output(process::command("python3").args(["-c", &format!("import {module}")])).is_ok()
}

fn install(packages: &[&str]) -> Result<()> {
    let mut command = process::root_command("apt-get");
    command.env("DEBIAN_FRONTEND", "noninteractive");
    command
        .args(["install", "-y", "-q", "--no-install-recommends", "-o", "DPkg::Lock::Timeout=120"])
        .args(packages);
    process::run(&mut command)
}
