//! Counts bpf(2) calls of one process, and what it sends and receives by netlink sockets, whichever thread does. On the host this builds to an empty program.
//!
//! Raw tracepoints (Linux 4.17): they need no tracefs, and every kernel that traces system calls has them. Programs on entry of the kernel's own functions
//! would disturb nobody else, but are refused by some kernels.
#![cfg_attr(target_arch = "bpf", no_std, no_main)]
#![cfg_attr(
    target_arch = "bpf",
    expect(
        unstable_features,
        reason = "an atomic addition needs asm_experimental_arch: the target has no such type"
    ),
    feature(asm_experimental_arch)
)]
#![cfg_attr(
    target_arch = "bpf",
    expect(unsafe_code, reason = "registers, map values and entry points"),
    expect(unreachable_pub, reason = "the program macros need pub functions in a crate without a library")
)]

#[cfg(not(target_arch = "bpf"))]
fn main() {}

#[cfg(target_arch = "bpf")]
mod programs {
    use core::arch::asm;

    use aya_ebpf::{
        bindings::bpf_pidns_info,
        btf_maps::{Array, HashMap},
        helpers::{bpf_get_current_pid_tgid, bpf_probe_read_kernel, generated::bpf_get_ns_current_pid_tgid},
        macros::{btf_map, raw_tracepoint},
        programs::RawTracePointContext,
    };

    /// The process whose calls are counted: its id, and the PID namespace of that id. `bench/src/scale/calls.rs` writes this map and the next two.
    #[repr(C)]
    pub struct Process {
        /// Device and inode of the namespace's file.
        device: u64,
        inode: u64,
        id: u32,
        /// The offset of a system call's first argument in the kernel's `pt_regs`.
        first: u32,
    }

    #[btf_map(name = "process")]
    static PROCESS: Array<Process, 1> = Array::new();

    /// The kind of each system call, by its number: 0, or one of the constants below.
    #[btf_map(name = "kinds")]
    static KINDS: Array<u8, 512> = Array::new();

    const BPF: u8 = 1;
    const SOCKET: u8 = 2;
    const CLOSE: u8 = 3;
    const SEND: u8 = 4;
    const RECEIVE: u8 = 5;

    /// 1 if the file descriptor is a netlink socket.
    #[btf_map(name = "netlink")]
    static NETLINK: Array<u8, 65_536> = Array::new();

    /// Threads that are inside the system call that makes a netlink socket.
    #[btf_map(name = "making")]
    static MAKING: HashMap<u32, u8, 4_096> = HashMap::new();

    /// Calls of bpf(2), calls that send, calls that receive.
    #[btf_map(name = "calls")]
    static CALLS: Array<u64, 3> = Array::new();

    const AF_NETLINK: u64 = 16;

    /// Runs when a system call begins.
    #[raw_tracepoint(tracepoint = "sys_enter")]
    pub fn c_enter(ctx: RawTracePointContext) -> i32 {
        let Some(kind) = KINDS.get(ctx.arg::<u64>(1) as u32) else { return 0 };
        let kind = *kind;
        if kind == 0 {
            return 0;
        }
        let Some(process) = PROCESS.get(0) else { return 0 };
        if !is_current(process) {
            return 0;
        }
        if kind == BPF {
            count(0);
            return 0;
        }
        let register = ctx.arg::<u64>(0) + u64::from(process.first);
        // SAFETY: a read that may fail of the kernel's own memory.
        let Ok(first) = (unsafe { bpf_probe_read_kernel(register as *const u64) }) else { return 0 };
        let file = first as u32;
        match kind {
            // If the map is full, some calls are not counted. There are fewer threads than entries.
            SOCKET if first == AF_NETLINK => {
                let _ = MAKING.insert(&thread(), &1, 0);
            }
            CLOSE => set(file, 0),
            SEND if is_netlink(file) => count(1),
            RECEIVE if is_netlink(file) => count(2),
            _ => {}
        }
        0
    }

    /// Runs when a system call ends.
    #[raw_tracepoint(tracepoint = "sys_exit")]
    pub fn c_exit(ctx: RawTracePointContext) -> i32 {
        let thread = thread();
        if MAKING.get_ptr(&thread).is_some() {
            let _ = MAKING.remove(&thread);
            // A negative result is an error and no index of the map.
            set(ctx.arg::<u64>(1) as u32, 1);
        }
        0
    }

    fn thread() -> u32 {
        bpf_get_current_pid_tgid() as u32
    }

    fn is_current(process: &Process) -> bool {
        let mut current = bpf_pidns_info { pid: 0, tgid: 0 };
        // SAFETY: the pointer and the size are those of a value that lives; the helper (Linux 5.7) writes it, also where it fails.
        let failed = unsafe {
            bpf_get_ns_current_pid_tgid(
                process.device,
                process.inode,
                &raw mut current,
                size_of::<bpf_pidns_info>() as u32,
            )
        };
        failed == 0 && current.tgid == process.id
    }

    fn is_netlink(file: u32) -> bool {
        NETLINK.get(file).is_some_and(|is| *is == 1)
    }

    fn set(file: u32, is: u8) {
        if let Some(entry) = NETLINK.get_ptr_mut(file) {
            // SAFETY: a live map value, of one byte.
            unsafe { entry.write(is) };
        }
    }

    #[inline(always)]
    fn count(what: u32) {
        if let Some(calls) = CALLS.get_ptr_mut(what) {
            // SAFETY: a live map value, aligned to eight bytes. Threads may come by on several CPUs at once.
            unsafe {
                asm!("lock *(u64 *)({calls} + 0) += {one}", calls = in(reg) calls, one = in(reg) 1_u64)
            };
        }
    }
}

#[cfg(target_arch = "bpf")]
#[panic_handler]
fn panic(_info: &core::panic::PanicInfo<'_>) -> ! {
    loop {}
}

#[cfg(target_arch = "bpf")]
#[unsafe(link_section = "license")]
#[unsafe(no_mangle)]
static LICENSE: [u8; 13] = *b"Dual MIT/GPL\0";
