/// Bytes from the IP header on of a packet that is rescued, at most.
pub const RESCUE_MAX: u32 = 2_048;
/// Size of a record for frames of at most [`RESCUE_SHORT_FRAME`] bytes: a SYN takes no more of the ring buffer than it must. The kernel reserves sizes
/// that the verifier knows (`bpf_ringbuf_reserve`, Linux 5.8), so there are two.
pub const RESCUE_SHORT: usize = size_of::<RescueHead>() + RESCUE_SHORT_FRAME;
/// Frame bytes in a short record.
pub const RESCUE_SHORT_FRAME: usize = 256;
/// Size of a record for longer frames.
pub const RESCUE_LONG: usize = size_of::<RescueHead>() + RESCUE_LONG_FRAME;
/// Frame bytes in a long record: an Ethernet header, two VLAN tags, [`RESCUE_MAX`] bytes, and up to a multiple of 8.
pub const RESCUE_LONG_FRAME: usize = 2_072;
/// Size of the `rescue` ring buffer in bytes; a power of two and a multiple of the page size. Holds 3,400 short records.
pub const RESCUE_BYTES: u32 = 1 << 20;
/// Packets to rescue a second unless configured otherwise.
pub const DEFAULT_RESCUE_PER_SECOND: u32 = 10_000;
/// Indexes of `rescue_budget`.
pub mod rescue_budget {
    /// Packets are handed over until [`ASKED`] reaches this number. Written by the agent.
    pub const ALLOWED: u32 = 0;
    /// How many packets the kernel programs were about to hand over.
    pub const ASKED: u32 = 1;
}
/// How long (ns) the kernel goes on to hand over packets to rescue after user space last said that it takes them.
pub const RESCUE_LEASE_NS: u64 = 200_000_000;

/// Begin of a record of the `rescue` ring buffer: a packet that was dropped, and that user space rescues. The frame's bytes follow.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct RescueHead {
    /// CLOCK_MONOTONIC nanoseconds.
    pub time_ns: u64,
    /// Device on which the packet was about to leave.
    pub ifindex: u32,
    /// Device by which it had come in; 0 for a packet of this machine's own sockets.
    pub ingress_ifindex: u32,
    /// Node index.
    pub node: u32,
    /// Length of the frame in bytes: all of it follows, from the link-layer header on (from the IP header on devices that have none).
    pub frame_len: u32,
    /// Tag of an accelerated VLAN (not in the frame), or 0.
    pub vlan_tci: u16,
    /// Protocol of that tag in host order (0x8100 or 0x88a8), or 0.
    pub vlan_proto: u16,
    /// Offset of the IP header in the frame.
    pub l3_offset: u16,
    /// Always zero.
    pub zero: u16,
}

const _: () = assert!(size_of::<RescueHead>() == 32);
const _: () = assert!(RESCUE_LONG_FRAME >= RESCUE_MAX as usize + 22 && RESCUE_LONG.is_multiple_of(8));

impl RescueHead {
    /// Reads a record of the ring buffer: its head, and the frame. `None` where it is not as this version writes it.
    pub fn from_bytes(bytes: &[u8]) -> Option<(Self, &[u8])> {
        let u16_at = |at: usize| Some(u16::from_ne_bytes(bytes.get(at..at + 2)?.try_into().ok()?));
        let u32_at = |at: usize| Some(u32::from_ne_bytes(bytes.get(at..at + 4)?.try_into().ok()?));
        let head = Self {
            time_ns: u64::from_ne_bytes(bytes.get(..8)?.try_into().ok()?),
            ifindex: u32_at(8)?,
            ingress_ifindex: u32_at(12)?,
            node: u32_at(16)?,
            frame_len: u32_at(20)?,
            vlan_tci: u16_at(24)?,
            vlan_proto: u16_at(26)?,
            l3_offset: u16_at(28)?,
            zero: u16_at(30)?,
        };
        let frame = bytes.get(size_of::<Self>()..)?.get(..head.frame_len as usize)?;
        (usize::from(head.l3_offset) < frame.len()).then_some((head, frame))
    }
}
