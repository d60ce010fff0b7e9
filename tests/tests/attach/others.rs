//! Programs of others. Each program returns the same verdict for each packet.
#![expect(unsafe_code, reason = "raw bpf(2): aya loads no single instructions")]
use std::{
    ffi::CString,
    io,
    os::fd::{AsRawFd, FromRawFd, OwnedFd},
};

pub(crate) const SCHED_CLS: u32 = 3;
pub(crate) const XDP: u32 = 6;

pub(crate) const TCX_EGRESS: u32 = 47;
pub(crate) const ATTACH_XDP: u32 = 37;

/// Flags of a tcx attachment.
pub(crate) const FIRST: u32 = 1 << 3;
pub(crate) const LAST: u32 = 0;
/// XDP_FLAGS_SKB_MODE.
pub(crate) const GENERIC: u32 = 1 << 1;

pub(crate) const OK: i32 = 0;
pub(crate) const SHOT: i32 = 2;
pub(crate) const NEXT: i32 = -1;
pub(crate) const XDP_PASS: i32 = 2;

fn call<T>(command: libc::c_long, attr: &mut T) -> io::Result<i32> {
    // SAFETY: the attribute and what it points to outlive the call, whose size is given.
    let result = unsafe { libc::syscall(libc::SYS_bpf, command, std::ptr::from_mut(attr), size_of::<T>()) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result as i32) }
}

fn bpf<T>(command: libc::c_long, attr: &mut T) -> io::Result<OwnedFd> {
    let fd = call(command, attr)?;
    // SAFETY: the commands that are called by this return a new descriptor.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Loads `return verdict;` under a name.
pub(crate) fn program(kind: u32, name: &str, verdict: i32) -> OwnedFd {
    #[repr(C)]
    struct Attr {
        kind: u32,
        count: u32,
        instructions: u64,
        license: u64,
        log: [u64; 2],
        version: u32,
        flags: u32,
        name: [u8; 16],
    }
    // r0 = verdict (BPF_ALU64|BPF_MOV|BPF_K); exit.
    let instructions: [u64; 2] = [0xb7 | u64::from(verdict as u32) << 32, 0x95];
    let mut attr = Attr {
        kind,
        count: 2,
        instructions: instructions.as_ptr() as u64,
        license: c"GPL".as_ptr() as u64,
        log: [0; 2],
        version: 0,
        flags: 0,
        name: [0; 16],
    };
    attr.name[..name.len()].copy_from_slice(name.as_bytes());
    bpf(5, &mut attr).unwrap()
}

/// Pins the program with this id.
pub(crate) fn pin(id: u32, path: &str) {
    #[repr(C)]
    struct Attr {
        path: u64,
        fd: u32,
        flags: u32,
    }
    let program = bpf(13, &mut [id, 0, 0]).unwrap();
    let path = CString::new(path).unwrap();
    call(6, &mut Attr { path: path.as_ptr() as u64, fd: program.as_raw_fd() as u32, flags: 0 }).unwrap();
}

/// Attaches by a link. The program is detached when the link is dropped.
pub(crate) fn attach(program: &OwnedFd, ifindex: u32, attach_type: u32, flags: u32) -> OwnedFd {
    try_attach(program, ifindex, attach_type, flags).unwrap()
}

/// As [`attach`], or the kernel's error.
pub(crate) fn try_attach(
    program: &OwnedFd,
    ifindex: u32,
    attach_type: u32,
    flags: u32,
) -> io::Result<OwnedFd> {
    let mut attr: [u32; 8] = [program.as_raw_fd() as u32, ifindex, attach_type, flags, 0, 0, 0, 0];
    bpf(28, &mut attr)
}

/// A tcx program on `up0`.
pub(crate) fn tcx(name: &str, verdict: i32, attach_type: u32, flags: u32) -> OwnedFd {
    attach(&program(SCHED_CLS, name, verdict), super::support::ifindex("up0"), attach_type, flags)
}

/// A clsact filter on the egress of `up0`, made with `tc` from classic bytecode that returns the verdict.
pub(crate) fn filter(priority: u32, handle: u32, verdict: i32) {
    super::support::sh(&format!(
        "tc filter add dev up0 egress protocol all prio {priority} handle {handle} bpf da bytecode '1,6 0 0 {}'",
        verdict as u32
    ));
}
