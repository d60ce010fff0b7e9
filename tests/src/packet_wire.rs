//! Sends frames by a device as the stack would (CHECKSUM_PARTIAL, GSO, headers outside the linear part), and receives frames. Both go through a packet socket
//! with `virtio_net_hdr` (PACKET_VNET_HDR, linux/if_packet.h).
#![expect(unsafe_code, reason = "setsockopt(PACKET_VNET_HDR) has no safe wrapper")]

use std::{
    os::fd::{AsRawFd as _, FromRawFd as _, OwnedFd},
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, ensure};
use nix::{
    errno::Errno,
    sys::socket::{MsgFlags, recv, send, setsockopt, sockopt},
};

const PACKET_VNET_HDR: i32 = 15;
const PACKET_IGNORE_OUTGOING: i32 = 23;
/// `VIRTIO_NET_HDR_F_NEEDS_CSUM`.
const NEEDS_CSUM: u8 = 1;
const HDR_LEN: usize = 10;

/// The header before a frame (`struct virtio_net_hdr`).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Offload {
    /// The offsets of a checksum that is not made yet: where the summed bytes start, and where the checksum is, counted from there.
    pub checksum: Option<(u16, u16)>,
    /// The kind (`VIRTIO_NET_HDR_GSO_*`) and the segment size in bytes of a frame that must be segmented.
    pub gso: Option<(u8, u16)>,
    /// The least number of bytes in the linear part. It counts only for frames longer than a page.
    pub linear: u16,
}

impl Offload {
    fn bytes(self) -> [u8; HDR_LEN] {
        let (start, offset) = self.checksum.unwrap_or_default();
        let (kind, size) = self.gso.unwrap_or_default();
        let mut out = [0; HDR_LEN];
        out[0] = u8::from(self.checksum.is_some()) * NEEDS_CSUM;
        out[1] = kind;
        for (i, field) in [self.linear, size, start, offset].into_iter().enumerate() {
            out[2 + 2 * i..4 + 2 * i].copy_from_slice(&field.to_ne_bytes());
        }
        out
    }

    fn from_bytes(bytes: &[u8]) -> Self {
        let field = |number: usize| u16::from_ne_bytes([bytes[2 + 2 * number], bytes[3 + 2 * number]]);
        Self {
            checksum: (bytes[0] & NEEDS_CSUM != 0).then(|| (field(2), field(3))),
            gso: (bytes[1] != 0).then(|| (bytes[1], field(1))),
            linear: field(0),
        }
    }
}

/// A packet socket on one device of the calling thread's network namespace.
#[derive(Debug)]
pub struct Wire {
    fd: OwnedFd,
}

impl Wire {
    /// Opens a packet socket on a device.
    ///
    /// # Errors
    /// Fails without privilege, or if there is no such device.
    pub fn open(ifindex: u32) -> Result<Self> {
        let every = libc::c_int::from((libc::ETH_P_ALL as u16).to_be());
        // SAFETY: plain numbers; the result is checked before it is owned.
        let fd = unsafe {
            let fd = libc::socket(libc::AF_PACKET, libc::SOCK_RAW | libc::SOCK_CLOEXEC, every);
            Errno::result(fd).context("a packet socket")?;
            OwnedFd::from_raw_fd(fd)
        };
        for option in [PACKET_VNET_HDR, PACKET_IGNORE_OUTGOING] {
            let on: libc::c_int = 1;
            // SAFETY: the pointer and the length are those of `on`.
            let done = unsafe {
                libc::setsockopt(fd.as_raw_fd(), libc::SOL_PACKET, option, (&raw const on).cast(), 4)
            };
            Errno::result(done).with_context(|| format!("packet socket option {option}"))?;
        }
        let mut address = libc::sockaddr_ll {
            sll_family: libc::AF_PACKET as u16,
            sll_protocol: (libc::ETH_P_ALL as u16).to_be(),
            sll_ifindex: ifindex as i32,
            sll_hatype: 0,
            sll_pkttype: 0,
            sll_halen: 0,
            sll_addr: [0; 8],
        };
        let len = size_of_val(&address) as libc::socklen_t;
        // SAFETY: the pointer and the length are those of `address`.
        let done = unsafe { libc::bind(fd.as_raw_fd(), (&raw mut address).cast(), len) };
        Errno::result(done).context("binding the packet socket")?;
        Ok(Self { fd })
    }

    /// Sets the mark of packets sent from now on (SO_MARK).
    ///
    /// # Errors
    /// Fails if the kernel refuses it.
    pub fn mark(&self, mark: u32) -> Result<()> {
        Ok(setsockopt(&self.fd, sockopt::Mark, &mark)?)
    }

    /// Sends a frame.
    ///
    /// # Errors
    /// Fails if the kernel refuses it.
    pub fn send(&self, offload: Offload, frame: &[u8]) -> Result<()> {
        let bytes = [&offload.bytes()[..], frame].concat();
        match send(self.fd.as_raw_fd(), &bytes, MsgFlags::empty()) {
            Ok(sent) => ensure!(sent == bytes.len(), "sent {sent} of {} bytes", bytes.len()),
            // The sender gets this error for a packet that a queueing discipline's program drops.
            Err(Errno::ENOBUFS) => {}
            Err(error) => return Err(error).context("sending a frame"),
        }
        Ok(())
    }

    /// Waits for a frame that `wanted` accepts.
    ///
    /// # Errors
    /// Fails if no such frame comes in time, or if the socket fails.
    pub fn receive(&self, within: Duration, wanted: impl Fn(&[u8]) -> bool) -> Result<(Offload, Vec<u8>)> {
        let end = Instant::now() + within;
        let mut buffer = vec![0; 70_000];
        while Instant::now() < end {
            match recv(self.fd.as_raw_fd(), &mut buffer, MsgFlags::MSG_DONTWAIT) {
                Ok(len) if len > HDR_LEN && wanted(&buffer[HDR_LEN..len]) => {
                    return Ok((Offload::from_bytes(&buffer), buffer[HDR_LEN..len].to_vec()));
                }
                Ok(_) | Err(Errno::EINTR) => {}
                Err(Errno::EAGAIN) => std::thread::sleep(Duration::from_millis(2)),
                Err(error) => return Err(error).context("receiving a frame"),
            }
        }
        anyhow::bail!("no frame within {within:?}")
    }
}
