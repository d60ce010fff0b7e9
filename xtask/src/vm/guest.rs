//! The guest's user space: this machine's programs with their libraries, the tests, and this program as the init that runs the tests.

use std::collections::BTreeSet;
use std::fs;
use std::io::BufWriter;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};

use super::cpio::Archive;
use super::plan::{self, Plan};
use crate::process;

/// Programs that tests call, copied from this machine.
const PROGRAMS: &[&str] = &[
    "ip",
    "tc",
    "bridge",
    "ss",
    "nft",
    "iptables",
    "iptables-save",
    "iptables-restore",
    "ip6tables",
    "ip6tables-save",
    "ip6tables-restore",
    "iptables-nft",
    "iptables-nft-save",
    "iptables-nft-restore",
    "iptables-legacy",
    "iptables-legacy-save",
    "ip6tables-nft",
    "ip6tables-legacy",
    "ipset",
    "ipvsadm",
    "conntrack",
    "ethtool",
    "bpftool",
    "tcpdump",
    "unshare",
    "nsenter",
    "mount",
    "umount",
    "sysctl",
    "modprobe",
    "setpriv",
    "ping",
    "sh",
    "bash",
];

/// Files and folders of this machine that these programs read. Missing ones are left out.
const DATA: &[&str] =
    &["/etc/iproute2", "/usr/share/iproute2", "/etc/protocols", "/etc/services", "/etc/ethertypes"];

/// Writes the part of the initramfs that is the same for every guest: this machine's programs, the libraries of these and of `ours`, and each of
/// `plans` under its name.
pub(crate) fn write<'a>(
    file: &Path,
    ours: impl IntoIterator<Item = &'a PathBuf>,
    plans: &[(String, Plan)],
) -> Result<()> {
    let mut archive = Archive::new(BufWriter::new(fs::File::create(file)?));
    for folder in [
        "dev",
        "proc",
        "sys",
        "run",
        "tmp",
        "root",
        "var/lib",
        "etc",
        "usr/lib",
        "usr/lib64",
        "usr/sbin",
        "opt/busybox",
    ] {
        archive.folder(folder)?;
    }
    for (link, target) in [
        ("bin", "usr/bin"),
        ("sbin", "usr/sbin"),
        ("lib", "usr/lib"),
        ("lib64", "usr/lib64"),
        ("var/run", "/run"),
    ] {
        archive.link(link, target)?;
    }
    let mut libraries = BTreeSet::new();
    for name in PROGRAMS {
        // A missing program is left out: setup has installed all programs that tests need.
        let Some(path) = process::find(name) else { continue };
        let folder =
            if path.starts_with("/usr/sbin") || path.starts_with("/sbin") { "usr/sbin" } else { "usr/bin" };
        archive.copy(&format!("{folder}/{name}"), &path)?;
        libraries.extend(needed(&path)?);
    }
    // iptables loads its matches and targets at run time from a folder beside its libraries.
    let plugins: Vec<PathBuf> = libraries
        .iter()
        .filter_map(|library| library.parent())
        .map(|folder| folder.join("xtables"))
        .collect();
    for folder in plugins.iter().filter(|folder| folder.is_dir()).collect::<BTreeSet<_>>() {
        archive.tree(&inside(folder), folder)?;
    }
    let busybox = process::find("busybox").context("busybox is not on PATH")?;
    archive.copy("usr/bin/busybox", &busybox)?;

    archive.folder(plan::FOLDER)?;
    for program in ours {
        libraries.extend(needed(program)?);
    }
    for library in &libraries {
        archive.copy(&inside(library), library)?;
    }
    for data in DATA.iter().map(Path::new) {
        if data.is_dir() {
            archive.tree(&data.to_string_lossy()[1..], data)?;
        } else if data.is_file() {
            archive.copy(&data.to_string_lossy(), data)?;
        }
    }
    archive.file(
        "etc/passwd",
        0o644,
        b"root:x:0:0:root:/root:/bin/sh\nnobody:x:65534:65534:nobody:/:/bin/sh\n",
    )?;
    archive.file("etc/group", 0o644, b"root:x:0:\nnogroup:x:65534:\n")?;
    archive.file("etc/hosts", 0o644, b"127.0.0.1 localhost\n::1 localhost\n")?;
    archive.file(
        "etc/nsswitch.conf",
        0o644,
        b"passwd: files\ngroup: files\nhosts: files\nservices: files\nprotocols: files\n",
    )?;
    for (name, plan) in plans {
        archive.file(&Plan::at(name), 0o644, &serde_json::to_vec(plan)?)?;
    }
    archive.finish()?;
    Ok(())
}

/// Writes a part of the initramfs with programs of `cargo xtask assets`, at the paths at which tests look for them.
pub(super) fn write_assets(file: &Path, programs: &[PathBuf]) -> Result<()> {
    let mut archive = Archive::new(BufWriter::new(fs::File::create(file)?));
    for program in programs {
        let name = program.file_name().unwrap_or_default().to_string_lossy();
        archive.copy(&format!("nodefence/assets/{name}"), program)?;
    }
    archive.finish()?;
    Ok(())
}

/// The path of this program, which is the guest's first process.
pub(super) fn init() -> Result<PathBuf> {
    std::env::current_exe().context("where this program lies")
}

/// The paths of our programs in a guest whose first process is `init`.
pub(super) fn places(init: &Path) -> impl Fn(&Path) -> PathBuf {
    move |program| if program == init { PathBuf::from("init") } else { at(program) }
}

/// The path of one of our executables in the guest.
pub(super) fn at(program: &Path) -> PathBuf {
    Path::new(plan::FOLDER).join(program.file_name().unwrap_or_default())
}

/// The path in the guest for a path of the host. The guest's `/lib` is a link to `/usr/lib`.
fn inside(path: &Path) -> String {
    let path = path.to_string_lossy();
    let path = path.trim_start_matches('/');
    if path.starts_with("lib") { format!("usr/{path}") } else { path.to_owned() }
}

/// The shared libraries of a program, the loader included.
fn needed(program: &Path) -> Result<Vec<PathBuf>> {
    // ldd fails for a static executable, which needs no libraries.
    let printed = process::output(process::command("ldd").arg(program)).unwrap_or_default();
    Ok(libraries(&printed))
}

fn libraries(ldd: &str) -> Vec<PathBuf> {
    ldd.lines()
        .flat_map(|line| line.split_whitespace().find(|word| word.starts_with('/')))
        .map(PathBuf::from)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ldd_names_libraries_and_the_loader() {
        let printed = "\tlinux-vdso.so.1 (0x00007fff)\n\tlibc.so.6 => /lib/x86_64-linux-gnu/libc.so.6 (0x00007f)\n\
            \t/lib64/ld-linux-x86-64.so.2 (0x00007f)\n";
        let found = libraries(printed);
        assert_eq!(
            found,
            [Path::new("/lib/x86_64-linux-gnu/libc.so.6"), Path::new("/lib64/ld-linux-x86-64.so.2")]
        );
        assert_eq!(inside(&found[1]), "usr/lib64/ld-linux-x86-64.so.2");
    }
}
