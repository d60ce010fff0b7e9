//! Counts system calls of the agent's process: bpf(2), and calls that send and receive by netlink sockets. Programs on the tracepoints of system
//! calls count (`bench/ebpf/src/bin/calls.rs`), without ptrace. The programs cost each system call of the machine some tenths of a microsecond,
//! those of the agent too.
use std::{collections::HashSet, os::linux::fs::MetadataExt as _};

use anyhow::{Context as _, bail};
use aya::{
    Ebpf,
    maps::{Array, MapData},
    programs::RawTracePoint,
};
use nix::{libc, unistd::Pid};

static OBJECT: &[u8] = aya::include_bytes_aligned!(concat!(env!("OUT_DIR"), "/nodefence-bench-calls"));

// The kinds of system calls, with the numbers that the programs use.
const BPF: u8 = 1;
const SOCKET: u8 = 2;
const CLOSE: u8 = 3;
const SEND: u8 = 4;
const RECEIVE: u8 = 5;

const KINDS: [(libc::c_long, u8); 13] = [
    (libc::SYS_bpf, BPF),
    (libc::SYS_socket, SOCKET),
    (libc::SYS_close, CLOSE),
    (libc::SYS_sendto, SEND),
    (libc::SYS_sendmsg, SEND),
    (libc::SYS_sendmmsg, SEND),
    (libc::SYS_write, SEND),
    (libc::SYS_writev, SEND),
    (libc::SYS_recvfrom, RECEIVE),
    (libc::SYS_recvmsg, RECEIVE),
    (libc::SYS_recvmmsg, RECEIVE),
    (libc::SYS_read, RECEIVE),
    (libc::SYS_readv, RECEIVE),
];

/// The process whose calls are counted (`Process` of the programs).
#[repr(C)]
#[derive(Clone, Copy)]
struct Process {
    device: u64,
    inode: u64,
    id: u32,
    first: u32,
}

mod pod {
    #![expect(unsafe_code, reason = "aya::Pod is an unsafe trait")]
    // SAFETY: repr(C), integers, no padding.
    unsafe impl aya::Pod for super::Process {}
}

/// Numbers of calls.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Count {
    pub(super) bpf: u64,
    pub(super) sent: u64,
    pub(super) received: u64,
}

/// The programs that count.
pub(super) struct Calls {
    counts: Array<MapData, u64>,
    /// Keeps the programs attached.
    _object: Ebpf,
}

impl Calls {
    /// Begins to count the calls of a process of our PID namespace. Calls on a netlink socket that the process copied to another descriptor (dup) are
    /// not counted.
    pub(super) fn of(process: Pid) -> anyhow::Result<Self> {
        let mut object = Ebpf::load(OBJECT).context("cannot load the programs that count calls")?;
        let missing = |name: &str| format!("no map `{name}`");
        let map = object.map_mut("process").with_context(|| missing("process"))?;
        Array::<_, Process>::try_from(map)?.set(0, &described(process)?, 0)?;
        let mut kinds: Array<_, u8> =
            object.map_mut("kinds").with_context(|| missing("kinds"))?.try_into()?;
        for (call, kind) in KINDS {
            kinds.set(u32::try_from(call)?, &kind, 0)?;
        }
        for (name, tracepoint) in [("c_enter", "sys_enter"), ("c_exit", "sys_exit")] {
            let program = object.program_mut(name).with_context(|| format!("no program {name}"))?;
            let program: &mut RawTracePoint = program.try_into()?;
            let what =
                || format!("cannot count calls by {tracepoint} (CONFIG_HAVE_SYSCALL_TRACEPOINTS, Linux 5.7)");
            program.load().with_context(what)?;
            program.attach(tracepoint).with_context(what)?;
        }
        let mut netlink: Array<_, u8> =
            object.map_mut("netlink").with_context(|| missing("netlink"))?.try_into()?;
        for file in sockets(process)? {
            netlink.set(file, &1, 0)?;
        }
        let counts = object.take_map("calls").with_context(|| missing("calls"))?.try_into()?;
        Ok(Self { counts, _object: object })
    }

    /// The calls since the count began.
    pub(super) fn now(&self) -> anyhow::Result<Count> {
        let count = |what| self.counts.get(&what, 0).context("cannot read the map `calls`");
        Ok(Count { bpf: count(0)?, sent: count(1)?, received: count(2)? })
    }
}

fn described(process: Pid) -> anyhow::Result<Process> {
    let file = "/proc/self/ns/pid";
    let namespace = std::fs::metadata(file).context(file)?;
    let device = namespace.st_dev();
    // ns_match() compares the device number in the kernel's form (MKDEV, include/linux/kdev_t.h).
    let device = nix::sys::stat::major(device) << 20 | nix::sys::stat::minor(device);
    // The offset of `di` in x86's pt_regs, and of `regs[0]` in arm64's (arch/*/include/asm/ptrace.h).
    let first = match std::env::consts::ARCH {
        "x86_64" => 14 * 8,
        "aarch64" => 0,
        other => bail!("where system calls' arguments lie is known of x86_64 and aarch64; this is {other}"),
    };
    Ok(Process { device, inode: namespace.st_ino(), id: process.as_raw().try_into()?, first })
}

/// The netlink sockets that a process has already.
fn sockets(process: Pid) -> anyhow::Result<Vec<u32>> {
    let file = format!("/proc/{process}/net/netlink");
    let text = std::fs::read_to_string(&file).context(file)?;
    let inodes = netlink_inodes(&text);
    let mut found = Vec::new();
    let folder = format!("/proc/{process}/fd");
    for entry in std::fs::read_dir(&folder).context(folder)? {
        let entry = entry?;
        // A descriptor that was closed after the folder was listed has no target.
        let Ok(to) = std::fs::read_link(entry.path()) else { continue };
        let to = to.to_string_lossy();
        let inode = to.strip_prefix("socket:[").and_then(|rest| rest.strip_suffix(']'));
        if inode.is_some_and(|inode| inodes.contains(inode)) {
            found.push(entry.file_name().to_string_lossy().parse()?);
        }
    }
    Ok(found)
}

/// The inodes of netlink sockets, from the last column (netlink_native_seq_show, net/netlink/af_netlink.c). The first line has the names of columns.
fn netlink_inodes(text: &str) -> HashSet<&str> {
    text.lines().skip(1).filter_map(|line| line.split_whitespace().last()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_program_and_we_mean_the_same_bytes() {
        assert_eq!(size_of::<Process>(), 24);
    }

    #[test]
    fn sockets_are_told_by_their_inodes() {
        let text = "sk               Eth Pid        Groups   Rmem     Wmem     Dump  Locks    Drops    Inode\n\
                    00000000e1b2c3d4 0   1234       00000551 0        0        0     2        0        45678   \n\
                    00000000e1b2c3d5 16  0          00000000 0        0        0     2        0        99      \n";
        assert_eq!(netlink_inodes(text), HashSet::from(["45678", "99"]));
    }
}
