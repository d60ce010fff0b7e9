//! The guest's user space: this machine's own programs with their libraries, the tests, and an init that runs them.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::fs;
use std::io::BufWriter;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};

use super::cpio::Archive;
use crate::process;
use crate::test::executables::Level;
use crate::test::local::{FUZZ_COUNT, FUZZ_SHORT};

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

/// Files and folders of this machine that those programs read, where they exist.
const DATA: &[&str] =
    &["/etc/iproute2", "/usr/share/iproute2", "/etc/protocols", "/etc/services", "/etc/ethertypes"];

/// Printed by init around each run; the runner reads them back.
pub(crate) const BEGIN: &str = "@@begin";
/// Before failed tests of an executable are run once more.
pub(crate) const AGAIN: &str = "@@again";
pub(crate) const END: &str = "@@end";
pub(crate) const DONE: &str = "@@done";

/// One executable in the guest.
#[derive(Debug, Clone)]
pub(crate) struct Run {
    /// `package::file`.
    pub(crate) title: String,
    pub(crate) executable: PathBuf,
    /// Tests it is expected to tell the outcome of.
    pub(crate) names: Vec<String>,
    pub(crate) level: Level,
    /// Whether `names` are fewer than all.
    pub(crate) some: bool,
}

/// Writes the part of the initramfs that is the same for every kernel: programs of ours, and `sets` of calls, in shell, by the name that
/// `nodefence.runs` gives.
pub(crate) fn write<'a>(
    file: &Path,
    programs: impl IntoIterator<Item = &'a PathBuf>,
    sets: &[(&str, String)],
    scratch: &Path,
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
        // setup has installed what a test cannot do without.
        let Some(path) = process::find(name) else { continue };
        let folder =
            if path.starts_with("/usr/sbin") || path.starts_with("/sbin") { "usr/sbin" } else { "usr/bin" };
        archive.copy(&format!("{folder}/{name}"), &path)?;
        libraries.extend(needed(&path)?);
    }
    // iptables loads its matches and targets at run time, from a folder beside its libraries.
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

    archive.folder("nodefence")?;
    for program in programs {
        libraries.extend(needed(program)?);
        let stripped = scratch.join("stripped");
        // Line tables are nine tenths of a test's bytes.
        process::run(process::command("strip").arg("--strip-debug").arg("-o").arg(&stripped).arg(program))?;
        archive.copy(&at(program), &stripped)?;
        process::check_interrupt()?;
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
    archive.file("init", 0o755, INIT.as_bytes())?;
    for (name, calls) in sets {
        archive.file(&format!("nodefence/{name}"), 0o755, calls.as_bytes())?;
    }
    archive.finish()?;
    Ok(())
}

/// Writes a part of the initramfs with programs of `cargo xtask assets`, where tests look for them.
pub(crate) fn write_assets(file: &Path, programs: &[PathBuf]) -> Result<()> {
    let mut archive = Archive::new(BufWriter::new(fs::File::create(file)?));
    for program in programs {
        let name = program.file_name().unwrap_or_default().to_string_lossy();
        archive.copy(&format!("nodefence/assets/{name}"), program)?;
    }
    archive.finish()?;
    Ok(())
}

/// A call that loads what kube-proxy's IPVS mode loads.
pub(crate) const LOAD_IPVS: &str = "for module in ip_vs ip_vs_rr ip_vs_wrr; do modprobe -q $module || echo \"init: no module $module\"; done\n";

/// Where an executable of ours lies in the guest.
pub(crate) fn at(program: &Path) -> String {
    format!("nodefence/{}", program.file_name().map(|name| name.to_string_lossy()).unwrap_or_default())
}

/// A host path in the guest, whose `/lib` is a link to `/usr/lib`.
fn inside(path: &Path) -> String {
    let path = path.to_string_lossy();
    let path = path.trim_start_matches('/');
    if path.starts_with("lib") { format!("usr/{path}") } else { path.to_owned() }
}

/// The shared libraries of a program, the loader among them.
fn needed(program: &Path) -> Result<Vec<PathBuf>> {
    // ldd fails on a static executable, which needs none.
    let printed = process::output(process::command("ldd").arg(program)).unwrap_or_default();
    Ok(libraries(&printed))
}

fn libraries(ldd: &str) -> Vec<PathBuf> {
    ldd.lines()
        .flat_map(|line| line.split_whitespace().find(|word| word.starts_with('/')))
        .map(PathBuf::from)
        .collect()
}

/// The calls of all tests. Each is bounded, so that one that hangs does not hide the others.
pub(crate) fn calls(runs: &[Run]) -> String {
    let mut text = format!("export {FUZZ_COUNT}={FUZZ_SHORT}\n");
    for Run { title, executable, names, some, level: _ } in runs {
        if title.contains("::vm_ipvs") || title.contains("::vm_kube_") {
            // Not before: where IPVS is loaded an agent tries out at every start what it does.
            text.push_str(LOAD_IPVS);
        }
        let chosen = if *some { format!(" --exact {}", names.join(" ")) } else { String::new() };
        let _infallible = writeln!(text, "run {title} /{}{chosen}", at(executable));
    }
    text
}

/// Mounts what a system has mounted, loads what rarely loads by itself, runs, powers off. The second serial line carries
/// results alone; the first one the kernel's messages and our own.
const INIT: &str = r#"#!/usr/bin/busybox sh
/usr/bin/busybox mkdir -p /opt/busybox
/usr/bin/busybox --install -s /opt/busybox
export PATH=/usr/sbin:/usr/bin:/opt/busybox HOME=/root TMPDIR=/tmp RUST_BACKTRACE=1
mount -t proc proc /proc
mount -t sysfs sysfs /sys
mount -t devtmpfs devtmpfs /dev
mkdir -p /dev/pts /dev/shm
mount -t devpts devpts /dev/pts
mount -t tmpfs tmpfs /dev/shm
mount -t tmpfs tmpfs /run
mount -t tmpfs tmpfs /tmp
mount -t bpf bpf /sys/fs/bpf
mount -t cgroup2 cgroup2 /sys/fs/cgroup
mount -t debugfs debugfs /sys/kernel/debug
mount -t tracefs tracefs /sys/kernel/tracing 2>/dev/null
mkdir -p /run/netns
for parameter in $(cat /proc/cmdline); do
    case $parameter in nodefence.*=*) value=${parameter#*=}; name=${parameter%%=*}; export "NODEFENCE_$(echo "${name#nodefence.}" | tr a-z A-Z)=$value" ;; esac
done
for module in veth bridge br_netfilter vxlan ipip ip6_tunnel sit tun 8021q dummy nf_conntrack nf_conntrack_netlink nf_nat \
    nf_tables nft_ct nft_nat nft_masq nft_chain_nat nft_compat ip_set ip_set_hash_ip xt_set \
    sch_ingress cls_bpf act_bpf cls_matchall act_mirred tcp_diag virtio_pci virtio_net vmxnet3; do
    modprobe -q $module || echo "init: no module $module"
done
ip link set lo up
if [ -n "$NODEFENCE_API_SERVER" ]; then
    # QEMU's own network: the host is .2, and no other machine is there.
    ip link set eth0 up && ip address add 10.0.2.15/24 dev eth0 || echo "init: no eth0"
fi
# By default the table's size follows from the guest's little memory.
sysctl -q -w net.netfilter.nf_conntrack_max=1048576
stty -F /dev/ttyS1 raw -echo 2>/dev/null
threads=${NODEFENCE_THREADS:-1}
mkfifo /run/told
once() {
    echo "$1 $title" >/dev/ttyS1
    at_once=$2; shift 2
    cd /tmp
    tee /run/printed </run/told >/dev/ttyS1 &
    teller=$!
    # Until the teller has it open too, opening it waits, and is broken off where some other child ends just then.
    code=
    until [ "$code" ]; do
        { timeout -s KILL ${NODEFENCE_LIMIT:-1500} $program --show-output --test-threads $at_once "$@"; code=$?; } </dev/null >/run/told 2>&1
    done
    # A process that outlives its test may hold the pipe.
    { sleep 5; kill $teller; } 2>/dev/null &
    wait $teller
    kill $!
    echo "@@end $title $code" >/dev/ttyS1
}
run() {
    title=$1; program=$2; shift 2
    once @@begin $threads "$@"
    # An emulated machine stands still now and then for longer than leases last. Where more than a few fail it is something else,
    # and two guests on one wire must stay in step.
    [ $code = 101 ] && [ -z "$NODEFENCE_ROLE" ] && grep -q 'QEMU TCG' /proc/cpuinfo || return
    set -- $(awk '/^failures:$/ { n = 0; list = 1; next } list && /^    [^ ]+$/ { names[n++] = $1; next }
        /^test result/ { list = 0 } END { while (n) print names[--n] }' /run/printed)
    [ $# -gt 0 ] && [ $# -le 3 ] && once @@again 1 --exact "$@"
}
. /nodefence/$NODEFENCE_RUNS
echo "@@done" >/dev/ttyS1
sync
poweroff -f
"#;

#[cfg(test)]
mod tests {
    use std::process::{Command, Stdio};

    use super::*;
    use crate::cache::Scratch;

    #[test]
    fn init_prints_the_marks_that_are_read_back() {
        for mark in [BEGIN, AGAIN, END, DONE] {
            assert!(INIT.contains(mark), "{mark}");
        }
    }

    /// Init's own functions with another serial line, and a teller that opens the pipe late.
    #[test]
    fn a_child_that_ends_while_the_pipe_is_opened_costs_no_test() {
        let dir = Scratch::new(&std::env::temp_dir().join("nodefence-xtask-guest")).unwrap();
        let folder = dir.path().to_str().unwrap();
        let (_, rest) = INIT.split_once("mkfifo").unwrap();
        let (functions, _) = rest.split_once("\n. /nodefence/").unwrap();
        const TELLER: &str = "tee /run/printed </run/told >/dev/ttyS1";
        assert!(functions.contains(TELLER));
        let functions = functions
            .replace(TELLER, &format!("{{ sleep 0.3; {TELLER}; }}"))
            .replace(">/dev/ttyS1", &format!(">>{folder}/serial"))
            .replace("/run/", &format!("{folder}/"));
        let test = format!("{folder}/test");
        let script = format!(
            "title=t; program='sh {test}'; code=; threads=1\nmkfifo{functions}\nsleep 0 & wait $!\nsleep 0.1 &\nonce @@begin 1 one"
        );
        fs::write(&test, "echo \"test $4 ... ok\"; exit 3").unwrap();
        fs::write(format!("{folder}/serial"), "").unwrap();
        let busybox = process::find("busybox").expect("busybox, which the guests run on");
        // A `sleep` outlives it, and would hold a pipe.
        let ran = Command::new(busybox).args(["sh", "-c", &script]).stderr(Stdio::null()).status().unwrap();
        let serial = fs::read_to_string(format!("{folder}/serial")).unwrap();
        assert_eq!(serial, "@@begin t\ntest one ... ok\n@@end t 3\n", "{ran:?}");
    }

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
