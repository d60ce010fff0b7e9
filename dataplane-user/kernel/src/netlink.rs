//! What every netlink socket of the table rooms needs: requests out, whole messages in, and what ends an exchange. Knows no family.
use std::io;

use netlink_packet_core::{NLM_F_DUMP_INTR, NetlinkBuffer};
use netlink_sys::{Socket, SocketAddr};
use nix::sys::{
    socket::{setsockopt, sockopt::ReceiveTimeout},
    time::TimeVal,
};

mod wire;

pub(crate) use wire::{
    HEADER_LEN, address_of, attributes, message, messages, nest, put, put_text, split_attribute, str_of,
    text_of, u16_of, u32_of,
};

/// Receive buffer of a dump. The kernel sizes its own buffers by it (`netlink_dump`, af_netlink.c), up to 32 KiB.
const BUFFER_LEN: usize = 64 * 1024;
/// Seconds without an answer after which the kernel is not waited for any longer.
const TIMEOUT_SECONDS: i64 = 5;

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

/// What the kernel answered in place of what it was asked for.
#[derive(Clone, Debug)]
pub(crate) struct Refusal {
    /// Error number, positive.
    pub(crate) errno: i32,
    /// The kernel's own words, where it was asked for them and has any.
    pub(crate) words: Option<String>,
}

/// A blocking netlink socket in the network namespace that it was opened in; one exchange at a time.
pub(crate) struct Channel {
    socket: Socket,
    buffer: Vec<u8>,
    sequence: u32,
    refusal: Option<Refusal>,
}

impl Channel {
    /// A socket of one netlink protocol (`NETLINK_NETFILTER`, `NETLINK_GENERIC`, `NETLINK_ROUTE`, `NETLINK_XFRM`).
    pub(crate) fn open(protocol: isize) -> io::Result<Self> {
        let mut socket = Socket::new(protocol)?;
        socket.bind_auto()?;
        socket.connect(&SocketAddr::new(0, 0))?;
        // Only makes errors shorter: without the request that they answer.
        let _ = socket.set_cap_ack(true);
        setsockopt(&socket, ReceiveTimeout, &TimeVal::new(TIMEOUT_SECONDS, 0))?;
        Ok(Self { socket, buffer: Vec::with_capacity(BUFFER_LEN), sequence: 0, refusal: None })
    }

    /// Has the kernel say in words why it refuses (`NETLINK_EXT_ACK`).
    pub(crate) fn set_words(&self) -> io::Result<()> {
        self.socket.set_ext_ack(true)
    }

    /// Why the last exchange was refused, also where it is to be begun anew for that.
    pub(crate) fn take_refusal(&mut self) -> Option<Refusal> {
        self.refusal.take()
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
        self.refusal = None;
        self.send(request).map_err(Broken::Io)?;
        let mut lost = false;
        let mut datagrams = 0;
        let refusal = 'refused: loop {
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
                let errno = if done { 0 } else { errno(message.payload()) };
                if errno <= 0 {
                    return Ok(datagrams + usize::from(carries));
                }
                break 'refused Refusal { errno, words: words(&message) };
            }
            datagrams += usize::from(carries);
        };
        let errno = refusal.errno;
        self.refusal = Some(refusal);
        Err(match errno {
            libc::ENOBUFS | libc::EINTR | libc::EAGAIN | libc::EBUSY => Broken::Retry,
            errno => Broken::Refused(errno),
        })
    }

    /// Begins an attempt anew that the kernel broke off; `times` in all at most, of which the last is the outcome.
    pub(crate) fn again<T>(
        &mut self,
        times: usize,
        mut attempt: impl FnMut(&mut Self) -> Result<T, Broken>,
    ) -> Result<T, Broken> {
        for _ in 1..times {
            match attempt(self) {
                Err(Broken::Retry) => {}
                ended => return ended,
            }
        }
        attempt(self)
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
        self.answers(requests, count, |place, kind, payload| {
            let is_answer = kind == NLMSG_ERROR;
            if is_answer {
                done(place, errno(payload));
            }
            is_answer
        })
    }

    /// As [`Self::pipeline`], of requests that are each answered by one message, which is handed over, or by an error.
    pub(crate) fn look_up(
        &mut self,
        requests: &[u8],
        count: usize,
        mut found: impl FnMut(usize, Result<&[u8], i32>),
    ) -> io::Result<()> {
        self.answers(requests, count, |place, kind, payload| {
            found(place, if kind == NLMSG_ERROR { Err(errno(payload)) } else { Ok(payload) });
            true
        })
    }

    /// Hands over place, type and payload of what answers; it is told whether that was one of the `count` that are waited for.
    fn answers(
        &mut self,
        requests: &[u8],
        count: usize,
        mut answer: impl FnMut(usize, u16, &[u8]) -> bool,
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
            for message in messages(bytes) {
                let place = message.sequence_number().wrapping_sub(first) as usize;
                if place < count && answer(place, message.message_type(), message.payload()) {
                    waiting = waiting.saturating_sub(1);
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

/// The text that the kernel adds to an error: after the code (end of a list), or after the code and the request's header (an acknowledgement).
fn words(message: &NetlinkBuffer<&[u8]>) -> Option<String> {
    /// `NLM_F_ACK_TLVS`, `NLMSGERR_ATTR_MSG`.
    const HAS_WORDS: u16 = 0x200;
    const WORDS: u16 = 1;
    if message.flags() & HAS_WORDS == 0 {
        return None;
    }
    let at = if message.message_type() == NLMSG_ERROR { 4 + HEADER_LEN } else { 4 };
    let mut said = attributes(message.payload().get(at..)?);
    said.find(|(kind, _)| *kind == WORDS).map(|(_, value)| text_of(value))
}

/// Whether a message of this type ends an exchange.
const fn is_end(kind: u16) -> bool {
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
        message(kind, NLM_F_REQUEST | flags, channel.next_sequence(), |out| out.extend_from_slice(body))
    }

    /// What does nothing and is acknowledged (`netlink_rcv_skb`), so often that not all of it fits.
    fn too_many(channel: &mut Channel) -> Vec<u8> {
        (0..AT_ONCE).flat_map(|_| request(channel, NLMSG_NOOP, NLM_F_ACK, &[])).collect()
    }

    #[test]
    fn the_kernel_says_why_it_refuses() {
        let mut channel = Channel::open(NETLINK_ROUTE).expect("rtnetlink");
        channel.set_words().expect("extended acknowledgements");
        channel.set_strict().expect("requests are looked at");
        // `struct ifinfomsg` with a type of hardware, which is no question (`rtnl_valid_getlink_req`, net/core/rtnetlink.c).
        let mut header = [0; 16];
        header[2] = 1;
        let request = request(&mut channel, RTM_GETLINK, NLM_F_ACK, &header);
        let ended = channel.exchange(&request, |_, _| {});
        assert!(matches!(ended, Err(Broken::Refused(libc::EINVAL))), "{ended:?}");
        let refusal = channel.take_refusal().expect("a refusal");
        assert_eq!(refusal.errno, libc::EINVAL);
        let words = refusal.words.expect("words");
        assert!(words.contains("link"), "{words}");
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
