//! A small route-netlink client: requests as bytes, answers as attribute lists. Attributes that are unknown here are
//! skipped, so that a newer kernel's devices can always be read.
use std::io;

use netlink_sys::{Socket, SocketAddr, protocols::NETLINK_ROUTE};

use super::error::Error;

pub(super) const RTM_GETLINK: u16 = 18;
pub(super) const RTM_GETROUTE: u16 = 26;
pub(super) const RTM_NEWQDISC: u16 = 36;
pub(super) const RTM_DELQDISC: u16 = 37;
pub(super) const RTM_GETQDISC: u16 = 38;
pub(super) const RTM_NEWTFILTER: u16 = 44;
pub(super) const RTM_DELTFILTER: u16 = 45;
pub(super) const RTM_GETTFILTER: u16 = 46;

pub(super) const CREATE: u16 = 0x400;
pub(super) const EXCL: u16 = 0x200;
pub(super) const DUMP: u16 = 0x300;

const REQUEST: u16 = 0x1;
const ACK: u16 = 0x4;
const DUMP_INTERRUPTED: u16 = 0x10;
const NLMSG_ERROR: u16 = 2;
const NLMSG_DONE: u16 = 3;
const HEADER: usize = 16;
const NESTED: u16 = 0x8000;
const TYPE_MASK: u16 = 0x3fff;
/// `NLM_F_ACK_TLVS`, `NLMSGERR_ATTR_MSG`: the kernel's own words on an error.
const ACK_TLVS: u16 = 0x200;
const ERROR_MESSAGE: u16 = 1;

/// One request under construction.
pub(super) struct Request {
    bytes: Vec<u8>,
}

impl Request {
    /// `fixed` is the family's own header (`struct tcmsg`, `struct ifinfomsg`, `struct rtmsg`).
    pub(super) fn new(kind: u16, flags: u16, fixed: &[u8]) -> Self {
        let flags = REQUEST | flags | if flags & DUMP == DUMP && kind_is_get(kind) { 0 } else { ACK };
        let mut bytes = vec![0; HEADER];
        bytes[4..6].copy_from_slice(&kind.to_ne_bytes());
        bytes[6..8].copy_from_slice(&flags.to_ne_bytes());
        bytes.extend_from_slice(fixed);
        Self { bytes }
    }

    pub(super) fn attr(mut self, kind: u16, value: &[u8]) -> Self {
        push_attr(&mut self.bytes, kind, value);
        self
    }

    pub(super) fn text(self, kind: u16, value: &str) -> Self {
        let mut value = value.as_bytes().to_vec();
        value.push(0);
        self.attr(kind, &value)
    }

    /// An attribute that holds the attributes which `fill` adds.
    pub(super) fn nest(mut self, kind: u16, fill: impl FnOnce(Self) -> Self) -> Self {
        let inner = fill(Self { bytes: Vec::new() }).bytes;
        push_attr(&mut self.bytes, kind | NESTED, &inner);
        self
    }
}

/// GET requests are those whose number ends in binary 10.
const fn kind_is_get(kind: u16) -> bool {
    kind & 3 == 2
}

fn push_attr(bytes: &mut Vec<u8>, kind: u16, value: &[u8]) {
    bytes.extend_from_slice(&((value.len() + 4) as u16).to_ne_bytes());
    bytes.extend_from_slice(&kind.to_ne_bytes());
    bytes.extend_from_slice(value);
    bytes.resize(bytes.len().next_multiple_of(4), 0);
}

/// The attributes in `bytes`: type and value. Stops at the first one that does not fit.
pub(super) fn attrs(mut bytes: &[u8]) -> impl Iterator<Item = (u16, &[u8])> {
    std::iter::from_fn(move || {
        let len = usize::from(u16_at(bytes, 0)?);
        let kind = u16_at(bytes, 2)? & TYPE_MASK;
        let value = bytes.get(4..len)?;
        bytes = bytes.get(len.next_multiple_of(4)..).unwrap_or_default();
        Some((kind, value))
    })
}

pub(super) fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_ne_bytes(bytes.get(at..at + 2)?.try_into().ok()?))
}

pub(super) fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_ne_bytes(bytes.get(at..at + 4)?.try_into().ok()?))
}

/// A text attribute without its closing zero.
pub(super) fn text(value: &[u8]) -> String {
    String::from_utf8_lossy(value.split(|b| *b == 0).next().unwrap_or_default()).into_owned()
}

/// A refusal by the kernel, with its own words where it has any.
#[derive(Debug)]
pub(super) struct Refused {
    pub(super) errno: i32,
    message: Option<String>,
}

impl Refused {
    /// As this room's error; `what` was tried.
    pub(super) fn into_error(self, what: impl Into<String>) -> Error {
        let mut what = what.into();
        if let Some(message) = self.message {
            what = format!("{what} (the kernel says: {message})");
        }
        Error::call(what)(io::Error::from_raw_os_error(self.errno))
    }
}

impl From<io::Error> for Refused {
    fn from(error: io::Error) -> Self {
        Self { errno: error.raw_os_error().unwrap_or(libc::EIO), message: None }
    }
}

/// A socket in the calling thread's network namespace.
pub(super) struct Netlink {
    socket: Socket,
    sequence: u32,
}

impl Netlink {
    pub(super) fn open() -> Result<Self, Error> {
        let open = || {
            let mut socket = Socket::new(NETLINK_ROUTE)?;
            socket.bind_auto()?;
            socket.connect(&SocketAddr::new(0, 0))?;
            // Both only make answers richer.
            let _ = socket.set_ext_ack(true);
            let _ = socket.set_cap_ack(true);
            Ok(socket)
        };
        let socket = open().map_err(Error::call("open a route netlink socket"))?;
        Ok(Self { socket, sequence: 0 })
    }

    /// Sends one request and collects the answers' bodies (from the family's own header on) until the kernel has
    /// acknowledged it. A dump that the kernel says was interrupted by a change is taken again.
    pub(super) fn ask(&mut self, request: &Request) -> Result<Vec<Vec<u8>>, Refused> {
        for _ in 0..10 {
            if let Some(bodies) = self.ask_once(&request.bytes)? {
                return Ok(bodies);
            }
        }
        Err(Refused { errno: libc::EINTR, message: Some("the list kept changing while it was read".into()) })
    }

    fn ask_once(&mut self, request: &[u8]) -> Result<Option<Vec<Vec<u8>>>, Refused> {
        self.sequence = self.sequence.wrapping_add(1);
        let mut bytes = request.to_vec();
        let len = bytes.len() as u32;
        bytes[..4].copy_from_slice(&len.to_ne_bytes());
        bytes[8..12].copy_from_slice(&self.sequence.to_ne_bytes());
        self.socket.send(&bytes, 0)?;
        let mut bodies = Vec::new();
        let mut interrupted = false;
        loop {
            let (received, _) = match self.socket.recv_from_full() {
                Err(e) if e.kind() == io::ErrorKind::Interrupted => continue,
                other => other?,
            };
            let mut rest = &received[..];
            while let (Some(len), Some(kind), Some(flags), Some(sequence)) =
                (u32_at(rest, 0), u16_at(rest, 4), u16_at(rest, 6), u32_at(rest, 8))
            {
                let len = len as usize;
                let Some(body) = rest.get(HEADER..len) else { break };
                rest = rest.get(len.next_multiple_of(4)..).unwrap_or_default();
                if sequence != self.sequence {
                    continue;
                }
                interrupted |= flags & DUMP_INTERRUPTED != 0;
                match kind {
                    NLMSG_DONE | NLMSG_ERROR => {
                        let code = u32_at(body, 0).unwrap_or(0) as i32;
                        return if code < 0 {
                            Err(Refused { errno: -code, message: error_message(kind, flags, body) })
                        } else {
                            Ok((!interrupted).then_some(bodies))
                        };
                    }
                    _ => bodies.push(body.to_vec()),
                }
            }
        }
    }
}

/// The text that the kernel adds to an error: after the code (end of a dump) or after the code and the request's header
/// (an acknowledgement, which is capped to that header).
fn error_message(kind: u16, flags: u16, body: &[u8]) -> Option<String> {
    if flags & ACK_TLVS == 0 {
        return None;
    }
    let at = if kind == NLMSG_ERROR { 4 + HEADER } else { 4 };
    attrs(body.get(at..)?).find(|(kind, _)| *kind == ERROR_MESSAGE).map(|(_, value)| text(value))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attributes_come_back_as_written() {
        let request = Request::new(RTM_NEWTFILTER, CREATE, &[7; 4])
            .text(1, "bpf")
            .nest(2, |r| r.attr(6, &5_u32.to_ne_bytes()).text(7, "a name"));
        let list: Vec<_> = attrs(&request.bytes[HEADER + 4..]).collect();
        assert_eq!(list[0], (1, &b"bpf\0"[..]));
        assert_eq!(list[1].0, 2);
        let inner: Vec<_> = attrs(list[1].1).collect();
        assert_eq!(inner, [(6, &5_u32.to_ne_bytes()[..]), (7, &b"a name\0"[..])]);
        assert_eq!(text(inner[1].1), "a name");
    }

    #[test]
    fn broken_attributes_end_the_list() {
        for bytes in [&[][..], &[0, 0, 0, 0], &[3, 0, 1, 0], &[9, 0, 1, 0, 1, 2, 3, 4], &[255, 255, 1]] {
            assert_eq!(attrs(bytes).count(), 0, "{bytes:?}");
        }
    }

    #[test]
    fn only_gets_are_dumps() {
        let flags = |kind, flags| u16_at(&Request::new(kind, flags, &[]).bytes, 6).unwrap();
        assert_eq!(flags(RTM_GETTFILTER, DUMP), REQUEST | DUMP);
        assert_eq!(flags(RTM_GETROUTE, 0), REQUEST | ACK);
        assert_eq!(flags(RTM_NEWQDISC, CREATE | EXCL), REQUEST | ACK | CREATE | EXCL);
    }
}
