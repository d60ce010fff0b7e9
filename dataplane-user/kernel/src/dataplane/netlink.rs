//! A small client of route netlink and XFRM. Requests are bytes, and answers are lists of attributes. Unknown attributes are skipped, so
//! that devices of a newer kernel can be read.
use std::io;

use netlink_packet_core::{NLM_F_ACK, NLM_F_DUMP, NLM_F_REQUEST};
use netlink_sys::protocols::NETLINK_ROUTE;

use super::error::Error;
use crate::netlink::{Broken, Channel, Refusal, message, nest, put, put_text};

pub(super) const RTM_GETLINK: u16 = 18;
pub(super) const RTM_GETROUTE: u16 = 26;
pub(super) const RTM_NEWQDISC: u16 = 36;
pub(super) const RTM_DELQDISC: u16 = 37;
pub(super) const RTM_GETQDISC: u16 = 38;
pub(super) const RTM_NEWTFILTER: u16 = 44;
pub(super) const RTM_DELTFILTER: u16 = 45;
pub(super) const RTM_GETTFILTER: u16 = 46;

/// How often a list is read at most, if it changes while it is read.
const TRIES: usize = 10;

/// One request under construction.
pub(super) struct Request {
    kind: u16,
    flags: u16,
    body: Vec<u8>,
}

impl Request {
    /// `fixed` is the family's own header (`struct tcmsg`, `struct ifinfomsg`, `struct rtmsg`).
    pub(super) fn new(kind: u16, flags: u16, fixed: &[u8]) -> Self {
        Self { kind, flags: NLM_F_REQUEST | NLM_F_ACK | flags, body: fixed.to_vec() }
    }

    /// A request for a list of all objects.
    pub(super) fn list(kind: u16, fixed: &[u8]) -> Self {
        Self { kind, flags: NLM_F_REQUEST | NLM_F_DUMP, body: fixed.to_vec() }
    }

    pub(super) fn attr(mut self, kind: u16, value: &[u8]) -> Self {
        put(&mut self.body, kind, value);
        self
    }

    pub(super) fn text(mut self, kind: u16, value: &str) -> Self {
        put_text(&mut self.body, kind, value);
        self
    }

    /// Adds an attribute that holds the attributes which `fill` adds.
    pub(super) fn nest(mut self, kind: u16, fill: impl FnOnce(&mut Vec<u8>)) -> Self {
        nest(&mut self.body, kind, fill);
        self
    }
}

impl Refusal {
    /// Turns the refusal into an [`Error`]. `what` says what was tried.
    pub(super) fn into_error(self, what: impl Into<String>) -> Error {
        let mut what = what.into();
        if let Some(words) = self.words {
            what = format!("{what} (the kernel says: {words})");
        }
        Error::call(what)(io::Error::from_raw_os_error(self.errno))
    }
}

/// A socket in the calling thread's network namespace.
pub(super) struct Netlink {
    channel: Channel,
}

impl Netlink {
    pub(super) fn open() -> Result<Self, Error> {
        Self::of(NETLINK_ROUTE).map_err(Error::call("open a route netlink socket"))
    }

    /// Opens a socket of this protocol.
    pub(super) fn of(protocol: isize) -> io::Result<Self> {
        let channel = Channel::open(protocol)?;
        // The kernel then says in words why it refuses. Everything else works without that.
        let _refused = channel.set_words();
        Ok(Self { channel })
    }

    /// Makes the kernel check what a request for a list asks for. Otherwise the kernel also lists its cached routes to single addresses,
    /// which may be many. Kernels before 4.20 do not have this option.
    pub(super) fn set_strict(&self) {
        let _refused = self.channel.set_strict();
    }

    /// Sends one request, and collects the bodies of the answers (from the family's own header on).
    pub(super) fn ask(&mut self, request: &Request) -> Result<Vec<Vec<u8>>, Refusal> {
        self.ask_for(request, |_, body| Some(body.to_vec()))
    }

    /// Sends one request, and collects what `parse` makes of the type and body of each answer, until the kernel has acknowledged the
    /// request. A list that a change interrupted, as the kernel says, is read again.
    pub(super) fn ask_for<T>(
        &mut self,
        request: &Request,
        parse: impl Fn(u16, &[u8]) -> Option<T>,
    ) -> Result<Vec<T>, Refusal> {
        let read = self.channel.again(TRIES, |channel| {
            let bytes = message(request.kind, request.flags, channel.next_sequence(), |out| {
                out.extend_from_slice(&request.body);
            });
            let mut found = Vec::new();
            channel.exchange(&bytes, |kind, body| found.extend(parse(kind, body)))?;
            Ok(found)
        });
        read.map_err(|broken| match broken {
            Broken::Io(error) => Refusal { errno: error.raw_os_error().unwrap_or(libc::EIO), words: None },
            Broken::Refused(errno) => self.channel.take_refusal().unwrap_or(Refusal { errno, words: None }),
            Broken::Retry => self.channel.take_refusal().unwrap_or_else(|| {
                let words = Some("the list kept changing while it was read".to_owned());
                Refusal { errno: libc::EINTR, words }
            }),
        })
    }
}
