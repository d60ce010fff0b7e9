//! Bench builds only (feature `bench`): a list of addresses that takes the place of the packet's destination.
//!
//! BPF_PROG_TEST_RUN repeats one packet, so its address would always hit a warm cache line. The list walks the program
//! through every backend in shuffled order instead. The bench's reference programs compile this very file.
use aya_ebpf::{btf_maps::Array, macros::btf_map};
use nodefence_common::Addr;

/// Addresses that fit.
pub const LIST_LEN: usize = 1 << 18;

/// Where the walk stands.
#[repr(C)]
pub struct Cursor {
    /// Next position, before the mask.
    pub position: u32,
    /// Length of the list in use (a power of two) minus one.
    pub mask: u32,
}

#[btf_map(name = "list", pin_by_name)]
static LIST: Array<Addr, LIST_LEN> = Array::new();

#[btf_map(name = "cursor", pin_by_name)]
static CURSOR: Array<Cursor, 1> = Array::new();

/// The list's next address, in place (a copy would not fit the stack that the cut needs); `own` where there is none.
#[inline(always)]
pub fn next(own: &Addr) -> &Addr {
    let Some(cursor) = CURSOR.get_ptr_mut(0) else { return own };
    // SAFETY: a live map value; test runs of one bench do not overlap.
    let at = unsafe {
        let position = (*cursor).position;
        (*cursor).position = position.wrapping_add(1);
        position & (*cursor).mask
    };
    LIST.get(at).unwrap_or(own)
}

/// The address that [`next`] gave last, for the second lookup of the same packet.
#[inline(always)]
pub fn last(own: &Addr) -> &Addr {
    let Some(cursor) = CURSOR.get_ptr(0) else { return own };
    // SAFETY: a live map value, as above.
    let at = unsafe { (*cursor).position.wrapping_sub(1) & (*cursor).mask };
    LIST.get(at).unwrap_or(own)
}
