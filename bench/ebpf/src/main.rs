//! The reference programs for the cost per packet: an empty program, one that only takes an address from the list, and one that parses and does
//! one bare hash lookup. On the host this builds to an empty program.
#![cfg_attr(target_arch = "bpf", no_std, no_main)]
#![cfg_attr(
    target_arch = "bpf",
    expect(unstable_features, reason = "packet loads at any alignment need asm_experimental_arch"),
    feature(asm_experimental_arch)
)]
#![cfg_attr(
    target_arch = "bpf",
    expect(unsafe_code, reason = "packet access, map values and entry points"),
    expect(unreachable_pub, reason = "the program macros need pub functions in a crate without a library")
)]

#[cfg(not(target_arch = "bpf"))]
fn main() {}

// The list that bench builds of the dataplane read too, so that the list costs both sides the same.
#[cfg(target_arch = "bpf")]
#[path = "../../../dataplane-ebpf/src/bench_list.rs"]
#[expect(dead_code, reason = "the reference programs look up once")]
mod bench_list;

#[cfg(target_arch = "bpf")]
mod programs {
    use core::arch::asm;

    use aya_ebpf::{
        bindings::{BPF_F_NO_PREALLOC, TC_ACT_UNSPEC},
        btf_maps::HashMap,
        macros::{btf_map, classifier},
        programs::TcContext,
    };
    use nodefence_common::{Addr, BackendEntry, DEFAULT_MAX_BACKENDS, packet::ETH_IPV4};

    use crate::bench_list;

    /// The dataplane's own map. Both objects are loaded with the same pin folder, and so share the map.
    #[btf_map(name = "backends", pin_by_name)]
    static BACKENDS: HashMap<
        Addr,
        BackendEntry,
        { DEFAULT_MAX_BACKENDS as usize },
        { BPF_F_NO_PREALLOC as usize },
    > = HashMap::new();

    /// Returns at once.
    #[classifier]
    pub fn b_empty(_ctx: TcContext) -> i32 {
        TC_ACT_UNSPEC
    }

    /// Takes one address from the list and returns: what the list itself costs.
    #[classifier]
    pub fn b_list(_ctx: TcContext) -> i32 {
        let own = Addr::v4([0; 4]);
        // SAFETY: a reference; volatile, so that the read of the list stays.
        unsafe { core::ptr::read_volatile(&raw const bench_list::next(&own).bytes[15]) };
        TC_ACT_UNSPEC
    }

    /// Parses Ethernet and IPv4, takes its address from the list and looks it up once.
    #[classifier]
    pub fn b_lookup(ctx: TcContext) -> i32 {
        let (data, end) = (ctx.data(), ctx.data_end());
        if data + 34 > end {
            return TC_ACT_UNSPEC;
        }
        let (ethertype, version): (u64, u64);
        let dst: u64;
        // SAFETY: 34 bytes from `data` on lie before `data_end`, checked above. Whole loads at any address, as the
        // dataplane's own: a Rust read of unknown alignment would go byte by byte and make the reference dearer.
        unsafe {
            asm!("{out} = *(u16 *)({ptr} + 12)", out = out(reg) ethertype, ptr = in(reg) data, options(pure, readonly, nostack, preserves_flags));
            asm!("{out} = *(u8 *)({ptr} + 14)", out = out(reg) version, ptr = in(reg) data, options(pure, readonly, nostack, preserves_flags));
        }
        if ethertype as u16 != ETH_IPV4.to_be() || version >> 4 != 4 {
            return TC_ACT_UNSPEC;
        }
        // SAFETY: as above.
        unsafe {
            asm!("{out} = *(u32 *)({ptr} + 30)", out = out(reg) dst, ptr = in(reg) data, options(pure, readonly, nostack, preserves_flags));
        }
        let own = Addr::v4((dst as u32).to_ne_bytes());
        if let Some(entry) = BACKENDS.get_ptr(bench_list::next(&own)) {
            // SAFETY: a live map value; volatile, so that the hit is used as a real program would.
            unsafe { core::ptr::read_volatile(&raw const (*entry).node) };
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
