//! nodefence's kernel programs. On the host this builds to an empty program, so that the workspace stays whole.
//!
//! Entry points are thin: parse, look up, decide (in the library), act. A program lets a packet pass by returning
//! `TC_ACT_UNSPEC` or `XDP_PASS`, so that programs of others on the same device still run.
#![cfg_attr(target_arch = "bpf", no_std, no_main)]
#![cfg_attr(
    target_arch = "bpf",
    expect(unstable_features, reason = "packet loads at any alignment need asm_experimental_arch"),
    feature(asm_experimental_arch)
)]
#![cfg_attr(
    target_arch = "bpf",
    expect(unsafe_code, reason = "packet access, map values, helpers and entry points"),
    expect(unreachable_pub, reason = "the program macros need pub functions in a crate without a library")
)]

#[cfg(not(target_arch = "bpf"))]
fn main() {}

#[cfg(all(target_arch = "bpf", feature = "bench"))]
mod bench_list;
#[cfg(target_arch = "bpf")]
mod egress;
#[cfg(target_arch = "bpf")]
mod icmp;
#[cfg(target_arch = "bpf")]
mod inject;
#[cfg(target_arch = "bpf")]
mod judge;
#[cfg(target_arch = "bpf")]
mod log;
#[cfg(target_arch = "bpf")]
mod maps;
#[cfg(target_arch = "bpf")]
mod own;
#[cfg(target_arch = "bpf")]
mod packet;
#[cfg(target_arch = "bpf")]
mod report;
#[cfg(target_arch = "bpf")]
mod rescue;
#[cfg(target_arch = "bpf")]
mod sender;
#[cfg(target_arch = "bpf")]
mod tc_answer;
#[cfg(target_arch = "bpf")]
mod xdp;

#[cfg(target_arch = "bpf")]
#[panic_handler]
fn panic(_info: &core::panic::PanicInfo<'_>) -> ! {
    loop {}
}

#[cfg(target_arch = "bpf")]
#[unsafe(link_section = "license")]
#[unsafe(no_mangle)]
static LICENSE: [u8; 13] = *b"Dual MIT/GPL\0";
