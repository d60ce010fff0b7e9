use nodefence_common::Addr;

/// Which half of the table to list.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum Family {
    /// IPv4.
    V4 = libc::AF_INET as u8,
    /// IPv6.
    V6 = libc::AF_INET6 as u8,
}

impl Family {
    /// The half in which flows of this address are.
    pub fn of(addr: Addr) -> Self {
        if addr.as_v4().is_some() { Self::V4 } else { Self::V6 }
    }
}
