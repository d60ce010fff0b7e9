//! The bare loop: it sends the requests that read all tables, on one socket like the agent's. The requests are made beforehand. The loop reads
//! only as much of the answers as shows where they end.
use std::net::IpAddr;

use anyhow::{Context as _, bail, ensure};
use netlink_packet_core::{NLA_F_NESTED, NLM_F_ACK, NLM_F_DUMP, NLM_F_REQUEST, NetlinkBuffer, NlasIterator};
use netlink_sys::{Socket, SocketAddr, protocols::NETLINK_GENERIC};
use nodefence::ipvs::ServiceKey;

/// The size of the agent's socket buffer: the kernel sizes the pieces of a dump by it (`netlink_dump`, af_netlink.c), up to 32 KiB.
const BUFFER: usize = 64 * 1024;

// include/uapi/linux/netlink.h
const NLMSG_ERROR: u16 = 2;
const NLMSG_DONE: u16 = 3;
/// `struct genlmsghdr`.
const GENERIC_HEADER: usize = 4;
// include/uapi/linux/genetlink.h
const GENL_ID_CTRL: u16 = 16;
const CTRL_CMD_GETFAMILY: u8 = 3;
const CTRL_ATTR_FAMILY_ID: u16 = 1;
const CTRL_ATTR_FAMILY_NAME: u16 = 2;
// include/uapi/linux/ip_vs.h
const IPVS_CMD_GET_SERVICE: u8 = 4;
const IPVS_CMD_GET_DEST: u8 = 8;
const IPVS_CMD_ATTR_SERVICE: u16 = 1;
const IPVS_SVC_ATTR_AF: u16 = 1;
const IPVS_SVC_ATTR_PROTOCOL: u16 = 2;
const IPVS_SVC_ATTR_ADDR: u16 = 3;
const IPVS_SVC_ATTR_PORT: u16 = 4;

/// How many times the agent reads all services if nothing changes them.
pub(super) const SERVICES_READ: usize = 2;

pub(super) struct Bare {
    socket: Socket,
    buffer: Vec<u8>,
    requests: Vec<Vec<u8>>,
}

/// Counts of the data that the loop has read. They show that it did read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Came {
    pub(super) messages: usize,
    pub(super) attributes: usize,
    pub(super) bytes: usize,
}

impl Bare {
    /// The dumps that the agent makes: two of all services, which it reads until two readings agree, and one of each service's destinations.
    pub(super) fn new(services: &[ServiceKey]) -> anyhow::Result<Self> {
        let mut socket = Socket::new(NETLINK_GENERIC)?;
        socket.bind_auto()?;
        socket.connect(&SocketAddr::new(0, 0))?;
        let mut this = Self { socket, buffer: Vec::with_capacity(BUFFER), requests: Vec::new() };
        let family = this.family()?;
        for _ in 0..SERVICES_READ {
            this.requests.push(request(family, NLM_F_DUMP, IPVS_CMD_GET_SERVICE, &[]));
        }
        for key in services {
            let service = attribute(IPVS_CMD_ATTR_SERVICE | NLA_F_NESTED, &service(key)?);
            this.requests.push(request(family, NLM_F_DUMP, IPVS_CMD_GET_DEST, &service));
        }
        Ok(this)
    }

    /// The number that the kernel gave to the family "IPVS".
    fn family(&mut self) -> anyhow::Result<u16> {
        let name = attribute(CTRL_ATTR_FAMILY_NAME, b"IPVS\0");
        self.socket.send(&request(GENL_ID_CTRL, NLM_F_ACK, CTRL_CMD_GETFAMILY, &name), 0)?;
        let mut family = None;
        walk(&self.socket, &mut self.buffer, |payload| {
            let attributes = NlasIterator::new(payload.get(GENERIC_HEADER..).unwrap_or_default());
            for found in attributes.filter_map(Result::ok).filter(|found| found.kind() == CTRL_ATTR_FAMILY_ID)
            {
                family = found.value().try_into().ok().map(u16::from_ne_bytes);
            }
        })?;
        family.context("the kernel names no family IPVS")
    }

    /// Makes all dumps once.
    pub(super) fn run(&mut self) -> anyhow::Result<Came> {
        let mut came = Came::default();
        for request in &self.requests {
            self.socket.send(request, 0)?;
            walk(&self.socket, &mut self.buffer, |payload| {
                came.messages += 1;
                came.bytes += payload.len();
                let attributes = NlasIterator::new(payload.get(GENERIC_HEADER..).unwrap_or_default());
                came.attributes += attributes.filter(Result::is_ok).count();
            })?;
        }
        Ok(came)
    }
}

/// Reads one answer up to its last message.
fn walk(socket: &Socket, buffer: &mut Vec<u8>, mut each: impl FnMut(&[u8])) -> anyhow::Result<()> {
    loop {
        buffer.clear();
        socket.recv(buffer, 0)?;
        let mut rest = buffer.as_slice();
        while !rest.is_empty() {
            let message = NetlinkBuffer::new_checked(rest)?;
            let length = message.length() as usize;
            match message.message_type() {
                NLMSG_DONE => return Ok(()),
                NLMSG_ERROR => {
                    let code = message.payload().first_chunk().map_or(0, |code| i32::from_ne_bytes(*code));
                    ensure!(
                        code == 0,
                        "the kernel refused a dump: {}",
                        std::io::Error::from_raw_os_error(-code)
                    );
                    return Ok(());
                }
                _ => each(message.payload()),
            }
            rest = rest.get(length.next_multiple_of(4)..).unwrap_or_default();
        }
    }
}

/// A message: `struct nlmsghdr`, `struct genlmsghdr`, attributes.
fn request(kind: u16, flags: u16, command: u8, attributes: &[u8]) -> Vec<u8> {
    let length = (16 + GENERIC_HEADER + attributes.len()) as u32;
    let mut bytes = length.to_ne_bytes().to_vec();
    bytes.extend(kind.to_ne_bytes());
    bytes.extend((NLM_F_REQUEST | flags).to_ne_bytes());
    bytes.extend([0; 8]);
    bytes.extend([command, 1, 0, 0]);
    bytes.extend(attributes);
    bytes
}

fn attribute(kind: u16, value: &[u8]) -> Vec<u8> {
    let length = 4 + value.len();
    let mut bytes = (length as u16).to_ne_bytes().to_vec();
    bytes.extend(kind.to_ne_bytes());
    bytes.extend(value);
    bytes.resize(length.next_multiple_of(4), 0);
    bytes
}

/// The attributes that identify a service.
fn service(key: &ServiceKey) -> anyhow::Result<Vec<u8>> {
    let ServiceKey::Address { address, protocol } = key else { bail!("{key} has no address") };
    let IpAddr::V4(v4) = address.ip() else { bail!("{key} is not IPv4") };
    let mut padded = [0; 16];
    padded[..4].copy_from_slice(&v4.octets());
    Ok([
        attribute(IPVS_SVC_ATTR_AF, &(key.family() as u16).to_ne_bytes()),
        attribute(IPVS_SVC_ATTR_PROTOCOL, &protocol.0.to_ne_bytes()),
        attribute(IPVS_SVC_ATTR_ADDR, &padded),
        attribute(IPVS_SVC_ATTR_PORT, &address.port().to_be_bytes()),
    ]
    .concat())
}
