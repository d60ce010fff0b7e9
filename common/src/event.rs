/// Bytes of the frame that an [`Event`] carries at most.
pub const HEAD_LEN: usize = 192;

/// What an [`Event`] asks for.
#[repr(u32)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum EventKind {
    /// A sample of what was cut, for the log.
    Cut = 0,
    /// A packet was dropped; build the answer from its head and inject it as ingress of `ifindex`.
    Answer = 1,
}

impl EventKind {
    /// The kind a stored number stands for; `None` for a number from another version.
    pub const fn from_raw(raw: u32) -> Option<Self> {
        match raw {
            0 => Some(Self::Cut),
            1 => Some(Self::Answer),
            _ => None,
        }
    }
}

/// A record of the `events` ring buffer.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Event {
    /// CLOCK_MONOTONIC nanoseconds.
    pub time_ns: u64,
    /// An [`EventKind`].
    pub kind: u32,
    /// The [`crate::Reason`] that was counted with it.
    pub reason: u32,
    /// Device on which the packet was about to leave (TC) or arrived (XDP).
    pub ifindex: u32,
    /// Node index.
    pub node: u32,
    /// Length of the whole packet in bytes, link-layer header included.
    pub packet_len: u32,
    /// Tag of an accelerated VLAN (not in the frame), or 0.
    pub vlan_tci: u16,
    /// Protocol of that tag in host order (0x8100 or 0x88a8), or 0.
    pub vlan_proto: u16,
    /// Offset of the IP header in `head`.
    pub l3_offset: u16,
    /// How many bytes of `head` are the packet's.
    pub head_len: u16,
    /// Always zero.
    pub zero: u32,
    /// First bytes of the packet, from the link-layer header on (from the IP header on devices that have none).
    pub head: [u8; HEAD_LEN],
}

const _: () = assert!(size_of::<Event>() == 40 + HEAD_LEN);

impl Event {
    /// Reads a record of the ring buffer; `None` where it has another size.
    pub fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let u16_at = |at: usize| Some(u16::from_ne_bytes(bytes.get(at..at + 2)?.try_into().ok()?));
        let u32_at = |at: usize| Some(u32::from_ne_bytes(bytes.get(at..at + 4)?.try_into().ok()?));
        if bytes.len() != size_of::<Self>() {
            return None;
        }
        Some(Self {
            time_ns: u64::from_ne_bytes(bytes.get(..8)?.try_into().ok()?),
            kind: u32_at(8)?,
            reason: u32_at(12)?,
            ifindex: u32_at(16)?,
            node: u32_at(20)?,
            packet_len: u32_at(24)?,
            vlan_tci: u16_at(28)?,
            vlan_proto: u16_at(30)?,
            l3_offset: u16_at(32)?,
            head_len: u16_at(34)?,
            zero: u32_at(36)?,
            head: bytes.get(40..)?.try_into().ok()?,
        })
    }

    /// The captured bytes of the packet.
    pub fn packet(&self) -> &[u8] {
        &self.head[..usize::from(self.head_len).min(HEAD_LEN)]
    }
}
