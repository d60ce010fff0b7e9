//! How the parser reads a packet: bounds are checked once for a window, then fields are read at constant offsets.

/// A packet that windows can be opened on.
pub trait Reader {
    /// `N` bytes whose presence has been checked.
    type Window<const N: usize>: Window;

    /// Opens `N` bytes at `at` (from the start of the frame); `None` where the packet is shorter.
    fn window<const N: usize>(&self, at: u32) -> Option<Self::Window<N>>;

    /// Length of the whole frame in bytes.
    fn len(&self) -> u32;

    /// Whether the frame has no bytes at all.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// Fields of a window at constant offsets.
pub trait Window {
    /// The byte at `AT`.
    fn u8<const AT: usize>(&self) -> u8;
    /// The big-endian 16 bits at `AT`.
    fn be16<const AT: usize>(&self) -> u16;
    /// The 32 bits at `AT` as they lie in memory.
    fn raw32<const AT: usize>(&self) -> u32;

    /// The big-endian 32 bits at `AT`.
    #[inline(always)]
    fn be32<const AT: usize>(&self) -> u32 {
        u32::from_be(self.raw32::<AT>())
    }
}

impl<const N: usize> Window for [u8; N] {
    #[inline(always)]
    fn u8<const AT: usize>(&self) -> u8 {
        const { assert!(AT < N) }
        self[AT]
    }

    #[inline(always)]
    fn be16<const AT: usize>(&self) -> u16 {
        const { assert!(AT + 1 < N) }
        u16::from_be_bytes([self[AT], self[AT + 1]])
    }

    #[inline(always)]
    fn raw32<const AT: usize>(&self) -> u32 {
        const { assert!(AT + 3 < N) }
        u32::from_ne_bytes([self[AT], self[AT + 1], self[AT + 2], self[AT + 3]])
    }
}

/// Plain memory, all of the frame.
impl Reader for &[u8] {
    type Window<const N: usize> = [u8; N];

    fn window<const N: usize>(&self, at: u32) -> Option<[u8; N]> {
        let at = at as usize;
        self.get(at..at.checked_add(N)?)?.try_into().ok()
    }

    fn len(&self) -> u32 {
        (**self).len() as u32
    }
}
