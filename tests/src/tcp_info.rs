//! The kernel's view of a TCP connection (TCP_INFO).
#![expect(unsafe_code, reason = "nix has no TCP_INFO")]

use std::{io, os::fd::AsRawFd, time::Duration};

/// An exchange that took less than this time did not wait for a retransmission. A segment without an answer is sent again after 200 ms at the earliest
/// (`TCP_RTO_MIN`, include/net/tcp.h).
pub const FIRST_SEGMENT: Duration = Duration::from_millis(190);

/// How many segments the connection has sent again. The number is valid after the connection's end too.
///
/// # Errors
/// Fails with the kernel's error.
pub fn retransmitted(stream: &impl AsRawFd) -> io::Result<u32> {
    Ok(ask(stream)?.tcpi_total_retrans)
}

/// How many lost segments the connection has sent again. A segment that was only late arrived twice, which the other side reports (D-SACK; since 4.19), and
/// does not count.
///
/// # Errors
/// Fails with the kernel's error.
pub fn lost(stream: &impl AsRawFd) -> io::Result<u32> {
    let info = ask(stream)?;
    Ok(info.tcpi_total_retrans.saturating_sub(info.tcpi_dsack_dups))
}

/// How many segments with data the connection has sent, retransmissions included (since 4.6).
///
/// # Errors
/// Fails with the kernel's error.
pub fn data_segments(stream: &impl AsRawFd) -> io::Result<u32> {
    Ok(ask(stream)?.tcpi_data_segs_out)
}

/// How many segments the other side has not acknowledged yet.
///
/// # Errors
/// Fails with the kernel's error.
pub fn unacknowledged(stream: &impl AsRawFd) -> io::Result<u32> {
    Ok(ask(stream)?.tcpi_unacked)
}

fn ask(stream: &impl AsRawFd) -> io::Result<libc::tcp_info> {
    let mut info = std::mem::MaybeUninit::<libc::tcp_info>::zeroed();
    let mut len = size_of::<libc::tcp_info>() as libc::socklen_t;
    // SAFETY: the kernel writes at most `len` bytes; all zero is a value of the struct, which is plain numbers.
    unsafe {
        if libc::getsockopt(
            stream.as_raw_fd(),
            libc::IPPROTO_TCP,
            libc::TCP_INFO,
            info.as_mut_ptr().cast(),
            &raw mut len,
        ) != 0
        {
            return Err(io::Error::last_os_error());
        }
        Ok(info.assume_init())
    }
}
