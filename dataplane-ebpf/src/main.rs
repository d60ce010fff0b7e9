//! nodefence's kernel programs. On the host this builds to an empty program, so that the workspace stays whole.
#![cfg_attr(target_arch = "bpf", no_std, no_main)]
#![expect(unsafe_code, reason = "packet access, map values and entry points")]

#[cfg(not(target_arch = "bpf"))]
fn main() {}

#[cfg(target_arch = "bpf")]
mod maps;

#[cfg(target_arch = "bpf")]
mod programs {
    use aya_ebpf::{bindings::TC_ACT_UNSPEC, macros::classifier, programs::TcContext};

    #[classifier]
    pub fn nf_egress_l2(_ctx: TcContext) -> i32 {
        if let Some(c) = crate::maps::CONFIG.get_ptr(0) {
            unsafe { core::ptr::read_volatile(c) };
        }
        TC_ACT_UNSPEC
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
