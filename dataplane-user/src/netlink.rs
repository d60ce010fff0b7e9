//! What every netlink socket of the table rooms needs: requests out, whole messages in, and what ends an exchange. Knows no family.
use std::io;

use netlink_packet_core::{NLA_HEADER_SIZE, NLA_TYPE_MASK, NLM_F_DUMP_INTR, NetlinkBuffer};
use netlink_sys::{Socket, SocketAddr};
use nix::sys::{
    socket::{setsockopt, sockopt::ReceiveTimeout},
    time::TimeVal,
};

/// Receive buffer of a dump. The kernel sizes its own buffers by it (`netlink_dump`, af_netlink.c), up to 32 KiB.
const BUFFER_LEN: usize = 64 * 1024;
/// Seconds without an answer after which the kernel is not waited for any longer.
const TIMEOUT_SECONDS: i64 = 5;

/// Length of `struct nlmsghdr`.
const HEADER_LEN: usize = 16;

const NLMSG_ERROR: u16 = 2;
const NLMSG_DONE: u16 = 3;

/// Why one exchange gave no whole answer.
#[derive(Debug)]
pub(crate) enum Broken {
    /// The kernel broke off, or something was lost: begin anew.
    Retry,
    /// The kernel's answer is this error number.
    Refused(i32),
    /// The socket failed.
    Io(io::Error),
}

/// A blocking netlink socket in the network namespace that it was opened in; one exchange at a time.
pub(crate) struct Channel {
    socket: Socket,
    buffer: Vec<u8>,
    sequence: u32,
}

impl Channel {
    /// A socket of one netlink protocol (`NETLINK_NETFILTER`, `NETLINK_GENERIC`, `NETLINK_ROUTE`).
    pub(crate) fn open(protocol: isize) -> io::Result<Self> {
        let mut socket = Socket::new(protocol)?;
        socket.bind_auto()?;
        socket.connect(&SocketAddr::new(0, 0))?;
        // Only makes errors shorter: without the request that they answer.
        let _ = socket.set_cap_ack(true);
        setsockopt(&socket, ReceiveTimeout, &TimeVal::new(TIMEOUT_SECONDS, 0))?;
        Ok(Self { socket, buffer: Vec::with_capacity(BUFFER_LEN), sequence: 0 })
    }

    /// Has route netlink look at what a list is asked for (`NETLINK_GET_STRICT_CHK`, 4.20 and later).
    pub(crate) fn set_strict(&self) -> io::Result<()> {
        self.socket.set_netlink_get_strict_chk(true)
    }

    /// The sequence number of the next request.
    pub(crate) fn next_sequence(&mut self) -> u32 {
        self.sequence = self.sequence.wrapping_add(1);
        self.sequence
    }

    /// Sends one request, which must carry the number that [`Self::next_sequence`] gave last, and hands over type and payload of
    /// each message that answers it. Gives the number of datagrams that they came in: what came in one was read under one
    /// lock of the kernel.
    pub(crate) fn exchange(
        &mut self,
        request: &[u8],
        mut each: impl FnMut(u16, &[u8]),
    ) -> Result<usize, Broken> {
        let sequence = self.sequence;
        self.send(request).map_err(Broken::Io)?;
        let (mut lost, mut datagrams) = (false, 0);
        loop {
            let bytes = match self.receive(0) {
                Ok(bytes) => bytes,
                // The rest must be read all the same: one socket runs one dump at a time.
                Err(error) if error.raw_os_error() == Some(libc::ENOBUFS) => {
                    lost = true;
                    continue;
                }
                Err(error) => return Err(Broken::Io(error)),
            };
            let mut carries = false;
            for message in messages(bytes).filter(|message| message.sequence_number() == sequence) {
                lost |= message.flags() & NLM_F_DUMP_INTR != 0;
                let kind = message.message_type();
                if !is_end(kind) {
                    carries = true;
                    each(kind, message.payload());
                    continue;
                }
                if lost {
                    return Err(Broken::Retry);
                }
                // Newer kernels end a failed dump with its error; NLMSG_DONE of old ones carries nothing.
                let done = kind == NLMSG_DONE && message.payload().is_empty();
                return match if done { 0 } else { errno(message.payload()) } {
                    ..=0 => Ok(datagrams + usize::from(carries)),
                    libc::ENOBUFS | libc::EINTR | libc::EAGAIN | libc::EBUSY => Err(Broken::Retry),
                    errno => Err(Broken::Refused(errno)),
                };
            }
            datagrams += usize::from(carries);
        }
    }

    /// Sends `count` requests at once, whose sequence numbers are consecutive and end with the last one given, and hands over
    /// place and error number (0: done) of each acknowledgement.
    ///
    /// The kernel works through all of them, in order, before the send returns. Where acknowledgements were lost the error is ENOBUFS,
    /// and those that were not are handed over.
    pub(crate) fn pipeline(
        &mut self,
        requests: &[u8],
        count: usize,
        mut done: impl FnMut(usize, i32),
    ) -> io::Result<()> {
        let first = self.sequence.wrapping_sub(count as u32).wrapping_add(1);
        self.send(requests)?;
        let (mut waiting, mut lost) = (count, None);
        while waiting > 0 {
            let flags = if lost.is_some() { libc::MSG_DONTWAIT } else { 0 };
            let bytes = match self.receive(flags) {
                Ok(bytes) => bytes,
                Err(error) if error.raw_os_error() == Some(libc::ENOBUFS) => {
                    lost = Some(error);
                    continue;
                }
                Err(error) => return Err(lost.unwrap_or(error)),
            };
            for message in messages(bytes).filter(|message| message.message_type() == NLMSG_ERROR) {
                let place = message.sequence_number().wrapping_sub(first) as usize;
                if place < count {
                    waiting = waiting.saturating_sub(1);
                    done(place, errno(message.payload()));
                }
            }
        }
        Ok(())
    }

    fn send(&self, request: &[u8]) -> io::Result<()> {
        loop {
            match self.socket.send(request, 0) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                other => return other.map(drop),
            }
        }
    }

    fn receive(&mut self, flags: libc::c_int) -> io::Result<&[u8]> {
        loop {
            self.buffer.clear();
            match self.socket.recv(&mut self.buffer, flags) {
                Ok(_) => return Ok(&self.buffer),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
    }
}

/// The whole messages of a datagram; ends at the first malformed one. The crate's own check looks at the header more than once.
pub(crate) fn messages(mut bytes: &[u8]) -> impl Iterator<Item = NetlinkBuffer<&[u8]>> {
    std::iter::from_fn(move || {
        let len = u32::from_ne_bytes(*bytes.first_chunk()?) as usize;
        let this = bytes.get(..len).filter(|this| this.len() >= HEADER_LEN)?;
        bytes = bytes.get(len.next_multiple_of(4)..).unwrap_or_default();
        Some(NetlinkBuffer::new(this))
    })
}

/// The first attribute of `bytes` (`struct nlattr`, include/uapi/linux/netlink.h), its type with the flags in it, and what follows; `None` where it
/// is malformed. By hand, since a large table has millions of them and the crate's iterator took twice as long.
pub(crate) fn split_attribute(bytes: &[u8]) -> Option<(u16, &[u8], &[u8])> {
    let len = usize::from(u16::from_ne_bytes(*bytes.first_chunk()?));
    let kind = u16::from_ne_bytes(*bytes.get(2..)?.first_chunk()?);
    let value = bytes.get(NLA_HEADER_SIZE..len)?;
    Some((kind, value, bytes.get(len.next_multiple_of(4)..).unwrap_or_default()))
}

/// The attributes of `bytes`, without flags in their types; ends at the first malformed one.
pub(crate) fn attributes(mut bytes: &[u8]) -> impl Iterator<Item = (u16, &[u8])> {
    std::iter::from_fn(move || {
        let (kind, value, rest) = split_attribute(bytes)?;
        bytes = rest;
        Some((kind & NLA_TYPE_MASK, value))
    })
}

/// Whether a message of this type ends an exchange.
pub(crate) const fn is_end(kind: u16) -> bool {
    matches!(kind, NLMSG_DONE | NLMSG_ERROR)
}

/// The error number of an NLMSG_ERROR's payload, positive; 0 is an acknowledgement.
fn errno(payload: &[u8]) -> i32 {
    payload.first_chunk().map_or(libc::EBADMSG, |&code| i32::from_ne_bytes(code).saturating_neg())
}

#[cfg(test)]
mod tests {
    use netlink_packet_core::{NLM_F_ACK, NLM_F_DUMP, NLM_F_REQUEST};
    use netlink_sys::protocols::NETLINK_ROUTE;
    use nix::sys::socket::sockopt::RcvBuf;

    use super::*;

    const NLMSG_NOOP: u16 = 1;
    const RTM_NEWLINK: u16 = 16;
    const RTM_GETLINK: u16 = 18;
    const AT_ONCE: usize = 64;

    /// A socket with the least room for what comes: a few acknowledgements.
    fn narrow() -> Channel {
        let channel = Channel::open(NETLINK_ROUTE).expect("rtnetlink");
        setsockopt(&channel.socket, RcvBuf, &1).expect("the least receive buffer");
        channel
    }

    /// `body` behind a header that has the next sequence number.
    fn request(channel: &mut Channel, kind: u16, flags: u16, body: &[u8]) -> Vec<u8> {
        let len = u32::try_from(16 + body.len()).expect("short");
        let sequence = channel.next_sequence();
        let kind = [kind, NLM_F_REQUEST | flags].map(u16::to_ne_bytes).concat();
        [&len.to_ne_bytes()[..], &kind, &sequence.to_ne_bytes(), &[0; 4], body].concat()
    }

    /// What does nothing and is acknowledged (`netlink_rcv_skb`), so often that not all of it fits.
    fn too_many(channel: &mut Channel) -> Vec<u8> {
        (0..AT_ONCE).flat_map(|_| request(channel, NLMSG_NOOP, NLM_F_ACK, &[])).collect()
    }

    #[test]
    fn lost_acknowledgements_are_told_and_the_others_handed_over() {
        let mut channel = narrow();
        let requests = too_many(&mut channel);
        let mut places = Vec::new();
        let error = channel
            .pipeline(&requests, AT_ONCE, |place, errno| {
                assert_eq!(errno, 0);
                places.push(place);
            })
            .expect_err("some are lost");
        assert_eq!(error.raw_os_error(), Some(libc::ENOBUFS));
        let first: Vec<usize> = (0..places.len()).collect();
        assert!(!places.is_empty() && places.len() < AT_ONCE && places == first, "{places:?}");
        // Nothing of it is taken for what comes next.
        let one = request(&mut channel, NLMSG_NOOP, NLM_F_ACK, &[]);
        let mut done = Vec::new();
        channel.pipeline(&one, 1, |place, errno| done.push((place, errno))).expect("one fits");
        assert_eq!(done, [(0, 0)]);
    }

    #[test]
    fn an_answer_behind_a_loss_is_read_to_its_end_and_asked_for_anew() {
        let mut channel = narrow();
        let requests = too_many(&mut channel);
        // Its acknowledgements overflow, and nobody has read the error yet.
        channel.send(&requests).expect("sent");
        let links = |channel: &mut Channel| {
            // `struct ifinfomsg`.
            let dump = request(channel, RTM_GETLINK, NLM_F_DUMP, &[0; 16]);
            let mut count = 0;
            let ended = channel.exchange(&dump, |kind, _| count += usize::from(kind == RTM_NEWLINK));
            (ended, count)
        };
        let (ended, count) = links(&mut channel);
        assert!(matches!(ended, Err(Broken::Retry)) && count > 0, "{ended:?}, {count} links");
        let (ended, again) = links(&mut channel);
        assert!(ended.is_ok() && again == count, "{ended:?}, {again} of {count} links");
    }
}
