//! Packet access: direct reads of the linear part, and reads through a helper where that is not enough.
use core::{
    arch::asm,
    ffi::c_void,
    mem::{MaybeUninit, offset_of},
};

use aya_ebpf::{
    bindings::{__sk_buff, xdp_md},
    helpers::{bpf_skb_load_bytes, bpf_skb_store_bytes},
};
use nodefence_common::packet::{Reader, Window};

/// Offsets up to this may be read directly: the verifier wants a bound on what is added to a packet pointer.
const MAX_OFFSET: u32 = 1023;

/// Reads a pointer field of a context. The field's type is u32, but the verifier puts a pointer into the register. The
/// compiler trusts the type and would extend the value by shifts, in particular where it makes the field an argument.
macro_rules! context {
    ($ctx:expr, $at:expr) => {{
        let out: u64;
        // SAFETY: the context of a running program; the verifier checks the field.
        unsafe {
            asm!("{out} = *(u32 *)({ctx} + {at})", out = out(reg) out, ctx = in(reg) $ctx, at = const $at,
                options(readonly, nostack, preserves_flags));
        }
        out
    }};
}

/// The linear part of a packet, read in place.
#[derive(Clone, Copy)]
pub struct Direct {
    data: u64,
    end: u64,
    len: u32,
}

impl Direct {
    /// The linear part of an skb.
    #[inline(always)]
    pub fn skb(skb: *mut __sk_buff) -> Self {
        let data = context!(skb, offset_of!(__sk_buff, data));
        let end = context!(skb, offset_of!(__sk_buff, data_end));
        // SAFETY: the context of a running program.
        Self { data, end, len: unsafe { (*skb).len } }
    }

    /// A frame at XDP.
    #[inline(always)]
    pub fn xdp(ctx: *mut xdp_md) -> Self {
        let data = context!(ctx, offset_of!(xdp_md, data));
        let end = context!(ctx, offset_of!(xdp_md, data_end));
        let mut len = end;
        // SAFETY: a subtraction, spelled out because the compiler would narrow it to 32 bits, which the verifier does not
        // allow on packet pointers.
        unsafe {
            asm!("{len} -= {data}", len = inout(reg) len, data = in(reg) data,
                options(pure, nomem, nostack, preserves_flags));
        }
        Self { data, end, len: len as u32 }
    }

    /// Address of `n` bytes at `at`; `None` where the linear part is shorter.
    #[inline(always)]
    pub fn at(&self, at: u32, n: u64) -> Option<u64> {
        if at > MAX_OFFSET {
            return None;
        }
        let mut start = self.data;
        // SAFETY: an addition, spelled out because the compiler would split and reorder the sum, after which the verifier
        // does not connect the pointer that was checked with the one that is read.
        unsafe {
            asm!("{start} += {at}", start = inout(reg) start, at = in(reg) u64::from(at),
                options(pure, nomem, nostack, preserves_flags));
        }
        if start + n > self.end { None } else { Some(start) }
    }

    /// Writes words in place (XDP only: a direct write in a TC program makes the verifier copy every cloned packet).
    /// Whether the packet is long enough.
    #[inline(always)]
    pub fn write<const N: usize>(&self, at: u32, words: &[u32; N]) -> bool {
        let Some(start) = self.at(at, 4 * N as u64) else { return false };
        let mut i = 0;
        while i < N {
            // SAFETY: the packet was checked to hold 4 * N bytes from `start` on; for the alignment see `load`.
            unsafe {
                asm!("*(u32 *)({ptr} + 0) = {word}", ptr = in(reg) start + 4 * i as u64,
                    word = in(reg) u64::from(words[i]), options(nostack, preserves_flags));
            }
            i += 1;
        }
        true
    }
}

impl Reader for Direct {
    type Window<const N: usize> = Checked<N>;

    #[inline(always)]
    fn window<const N: usize>(&self, at: u32) -> Option<Checked<N>> {
        self.at(at, N as u64).map(Checked)
    }

    #[inline(always)]
    fn len(&self) -> u32 {
        self.len
    }
}

/// Packet memory that was compared with the packet's end.
pub struct Checked<const N: usize>(u64);

macro_rules! load {
    ($type:literal, $at:expr, $ptr:expr) => {{
        let out: u64;
        // SAFETY: the window was checked to hold these bytes. BPF has no alignment trap: the verifier accepts a packet
        // load at any address where the architecture does, which a Rust read would have to be told is aligned.
        unsafe {
            asm!(concat!("{out} = *(", $type, " *)({ptr} + {at})"), out = out(reg) out, ptr = in(reg) $ptr,
                at = const $at, options(pure, readonly, nostack, preserves_flags));
        }
        out
    }};
}

impl<const N: usize> Window for Checked<N> {
    #[inline(always)]
    fn u8<const AT: usize>(&self) -> u8 {
        const { assert!(AT < N) }
        load!("u8", AT, self.0) as u8
    }

    #[inline(always)]
    fn be16<const AT: usize>(&self) -> u16 {
        const { assert!(AT + 1 < N) }
        u16::from_be(load!("u16", AT, self.0) as u16)
    }

    #[inline(always)]
    fn raw32<const AT: usize>(&self) -> u32 {
        const { assert!(AT + 3 < N) }
        load!("u32", AT, self.0) as u32
    }
}

/// A whole skb, its non-linear part included, read by `bpf_skb_load_bytes` (Linux 4.5).
#[derive(Clone, Copy)]
pub struct Skb(pub *mut __sk_buff);

/// Bytes read by a helper, aligned so that they are copied and read as words.
#[repr(C, align(8))]
pub struct Loaded<const N: usize>(pub [u8; N]);

impl<const N: usize> Window for Loaded<N> {
    #[inline(always)]
    fn u8<const AT: usize>(&self) -> u8 {
        self.0.u8::<AT>()
    }

    #[inline(always)]
    fn be16<const AT: usize>(&self) -> u16 {
        self.0.be16::<AT>()
    }

    #[inline(always)]
    fn raw32<const AT: usize>(&self) -> u32 {
        self.0.raw32::<AT>()
    }
}

impl Reader for Skb {
    type Window<const N: usize> = Loaded<N>;

    #[inline(always)]
    fn window<const N: usize>(&self, at: u32) -> Option<Loaded<N>> {
        let mut out = MaybeUninit::<Loaded<N>>::uninit();
        // SAFETY: `out` has room for N bytes, and is read only after the helper filled it.
        unsafe {
            if bpf_skb_load_bytes(self.0.cast(), at, out.as_mut_ptr().cast(), N as u32) != 0 {
                return None;
            }
            Some(out.assume_init())
        }
    }

    #[inline(always)]
    fn len(&self) -> u32 {
        // SAFETY: the context of a running program.
        unsafe { (*self.0).len }
    }
}

impl Skb {
    /// Reads words into memory that stays where it is. (The result of [`Reader::window`] may be copied byte by byte into
    /// registers and from there to the stack.) Whether it worked.
    #[inline(always)]
    pub fn load<const N: usize>(&self, at: u32, out: &mut [u32; N]) -> bool {
        // SAFETY: `out` has room for 4 * N bytes.
        unsafe { bpf_skb_load_bytes(self.0.cast(), at, out.as_mut_ptr().cast(), 4 * N as u32) == 0 }
    }

    /// As [`Skb::load`], into memory that nobody has cleared: clearing more than a few words is a call, and each call in a chain takes at least 32 of the 512
    /// bytes for all stack frames (`check_max_stack_depth`, kernel/bpf/verifier.c, Linux 5.10).
    #[inline(always)]
    pub fn load_into<'a, const N: usize>(
        &self,
        at: u32,
        out: &'a mut MaybeUninit<[u32; N]>,
    ) -> Option<&'a [u32; N]> {
        // SAFETY: `out` has room for 4 * N bytes, and is read only after the helper filled it.
        unsafe {
            if bpf_skb_load_bytes(self.0.cast(), at, out.as_mut_ptr().cast(), 4 * N as u32) != 0 {
                return None;
            }
            Some(out.assume_init_ref())
        }
    }

    /// Writes words (`bpf_skb_store_bytes`, Linux 4.1). Whether it worked.
    #[inline(always)]
    pub fn store<const N: usize>(&self, at: u32, words: &[u32; N], flags: u64) -> bool {
        let from = words.as_ptr().cast::<c_void>();
        // SAFETY: `words` holds 4 * N bytes.
        unsafe { bpf_skb_store_bytes(self.0, at, from, 4 * N as u32, flags) == 0 }
    }

    /// Writes 16 bits as they lie in memory.
    #[inline(always)]
    pub fn store_half(&self, at: u32, half: u16, flags: u64) -> bool {
        // SAFETY: the number has two bytes.
        unsafe { bpf_skb_store_bytes(self.0, at, (&raw const half).cast(), 2, flags) == 0 }
    }
}
