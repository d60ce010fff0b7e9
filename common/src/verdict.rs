/// The verdict on a node. `nodes` stores the number. An unknown number is of another version and counts as not healthy.
#[repr(u32)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Verdict {
    /// Nothing is held against the node. An unused entry, all zero, says so too.
    Healthy = 0,
    /// The operator flagged it.
    Flagged = 1,
}

/// What the datapath does with a packet to a node whose verdict is not healthy.
#[repr(u32)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Action {
    /// Answer (RST, RST|ACK, ICMP port unreachable), drop what has no answer.
    Refuse = 0,
    /// Drop everything, answer nothing.
    Drop = 1,
    /// Pass everything and count what would have been cut (`--mode observe`).
    Observe = 2,
    /// Stored and shown, not enforced: the agent's own node.
    Ignore = 3,
}

impl Action {
    /// The action a stored number stands for; `None` for a number from another version.
    pub const fn from_raw(raw: u32) -> Option<Self> {
        match raw {
            0 => Some(Self::Refuse),
            1 => Some(Self::Drop),
            2 => Some(Self::Observe),
            3 => Some(Self::Ignore),
            _ => None,
        }
    }
}

/// How [`Verdict`] and [`Action`] lie in a map value. In the eBPF object they are the enums, so that its BTF (and
/// `bpftool map dump`) shows the names; user space sees numbers, since another version may have written any.
#[cfg(target_arch = "bpf")]
pub type VerdictField = Verdict;
/// See above.
#[cfg(not(target_arch = "bpf"))]
pub type VerdictField = u32;
/// See [`VerdictField`].
#[cfg(target_arch = "bpf")]
pub type ActionField = Action;
/// See [`VerdictField`].
#[cfg(not(target_arch = "bpf"))]
pub type ActionField = u32;
