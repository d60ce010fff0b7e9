//! The netlink socket of every module for a kernel table: it sends requests, receives whole messages, and finds the end of an
//! exchange. It knows no netlink family.
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

/// Length of the receive buffer. For a dump the kernel sizes its own buffers by it (`netlink_dump`, af_netlink.c), up to 32 KiB.
const BUFFER_LEN: usize = 64 * 1024;
/// Seconds to wait for an answer of the kernel.
const TIMEOUT_SECONDS: i64 = 5;

const NLMSG_ERROR: u16 = 2;
const NLMSG_DONE: u16 = 3;

/// Why one exchange gave no whole answer.
#[derive(Debug)]
pub(crate) enum Broken {
    /// The kernel broke the answer off, or a part of it was lost: begin the exchange anew.
    Retry,
    /// The kernel's answer is this error number.
    Refused(i32),
    /// The socket failed.
    Io(io::Error),
}

/// The error that the kernel gave in place of an answer.
#[derive(Clone, Debug)]
pub(crate) struct Refusal {
    /// Error number, positive.
    pub(crate) errno: i32,
    /// The kernel's text about the error, where texts were requested and the kernel has one.
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
        // A failure does no harm: the option only makes errors shorter, by the request that they answer.
        let _ = socket.set_cap_ack(true);
        setsockopt(&socket, ReceiveTimeout, &TimeVal::new(TIMEOUT_SECONDS, 0))?;
        Ok(Self { socket, buffer: Vec::with_capacity(BUFFER_LEN), sequence: 0, refusal: None })
    }

    /// Makes the kernel say in words why it refuses a request (`NETLINK_EXT_ACK`).
    pub(crate) fn set_words(&self) -> io::Result<()> {
        self.socket.set_ext_ack(true)
    }

    /// The refusal of the last exchange, also one that ended the exchange with [`Broken::Retry`].
    pub(crate) fn take_refusal(&mut self) -> Option<Refusal> {
        self.refusal.take()
    }

    /// Makes route netlink check what a request for a list asks for (`NETLINK_GET_STRICT_CHK`, Linux 4.20 and later).
    pub(crate) fn set_strict(&self) -> io::Result<()> {
        self.socket.set_netlink_get_strict_chk(true)
    }

    /// The sequence number of the next request.
    pub(crate) fn next_sequence(&mut self) -> u32 {
        self.sequence = self.sequence.wrapping_add(1);
        self.sequence
    }

    /// Sends one request, and hands over type and payload of each message that answers it. The request must carry the number
    /// that [`Self::next_sequence`] gave last. Returns the number of datagrams with such messages: the kernel read the content
    /// of one datagram under one lock.
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
                // The rest of the answer must be read all the same: one socket runs one dump at a time.
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
                // Newer kernels end a failed dump with the error in NLMSG_DONE. The NLMSG_DONE of old kernels is empty.
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

    /// Repeats an attempt that the kernel broke off, up to `times` attempts in all. Returns the outcome of the last attempt.
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

    /// Sends `count` requests at once, and hands over place and error number (0: done) of each acknowledgement. The sequence
    /// numbers of the requests must be consecutive and end with the last number given.
    ///
    /// The kernel works through all requests, in order, before the send returns. Where acknowledgements were lost, the others are
    /// handed over and the error is ENOBUFS.
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

    /// As [`Self::pipeline`], for requests that the kernel answers by one message each, or by an error. That answer is handed over.
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

    /// Sends requests, and hands over place, type and payload of each message that answers one. `answer` returns whether the
    /// message was one of the `count` answers that are waited for.
    fn answers(
        &mut self,
        requests: &[u8],
        count: usize,
        mut answer: impl FnMut(usize, u16, &[u8]) -> bool,
    ) -> io::Result<()> {
        let first = self.sequence.wrapping_sub(count as u32).wrapping_add(1);
        self.send(requests)?;
        let mut waiting = count;
        let mut lost = None;
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

/// The text that the kernel adds to an error: behind the code at the end of a list, behind the code and the request's header in
/// an acknowledgement.
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

/// The error number in the payload of an NLMSG_ERROR, positive; 0 means an acknowledgement.
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

    /// A socket with the smallest receive buffer, which has room for a few acknowledgements.
    fn narrow() -> Channel {
        let channel = Channel::open(NETLINK_ROUTE).expect("rtnetlink");
        setsockopt(&channel.socket, RcvBuf, &1).expect("the least receive buffer");
        channel
    }

    /// `body` behind a header that has the next sequence number.
    fn request(channel: &mut Channel, kind: u16, flags: u16, body: &[u8]) -> Vec<u8> {
        message(kind, NLM_F_REQUEST | flags, channel.next_sequence(), |out| out.extend_from_slice(body))
    }

    /// Requests that do nothing and are acknowledged (`netlink_rcv_skb`), so many that not all acknowledgements fit the buffer.
    fn too_many(channel: &mut Channel) -> Vec<u8> {
        (0..AT_ONCE).flat_map(|_| request(channel, NLMSG_NOOP, NLM_F_ACK, &[])).collect()
    }

    #[test]
    fn the_kernel_says_why_it_refuses() {
        let mut channel = Channel::open(NETLINK_ROUTE).expect("rtnetlink");
        channel.set_words().expect("extended acknowledgements");
        channel.set_strict().expect("requests are looked at");
        // `struct ifinfomsg` with a type of hardware, which a request must not have (`rtnl_valid_getlink_req`,
        // net/core/rtnetlink.c).
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
        // No late acknowledgement is taken for that of the next request.
        let one = request(&mut channel, NLMSG_NOOP, NLM_F_ACK, &[]);
        let mut done = Vec::new();
        channel.pipeline(&one, 1, |place, errno| done.push((place, errno))).expect("one fits");
        assert_eq!(done, [(0, 0)]);
    }

    #[test]
    fn an_answer_behind_a_loss_is_read_to_its_end_and_asked_for_anew() {
        let mut channel = narrow();
        let requests = too_many(&mut channel);
        // The acknowledgements overflow the buffer, and nobody has read that error yet.
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
