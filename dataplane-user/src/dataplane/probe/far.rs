//! Which questions does conntrack translate? A flow over loopback, segments of its reply direction from a raw socket: what conntrack
//! would not translate it counts as INVALID, while the sending call runs.
use std::{
    net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream},
    os::fd::{AsRawFd as _, OwnedFd},
};

use nix::sys::socket::{
    AddressFamily, MsgFlags, SockFlag, SockProtocol, SockType, SockaddrIn, sendto, socket,
};

use super::{Conntrack as Found, nft};
use crate::{
    conntrack::{Conntrack, Family, Flow},
    dataplane::{
        netlink::{Netlink, Request},
        sweep::ask::{Question, frames},
    },
};

const RTM_NEWLINK: u16 = 16;
/// Length of the Ethernet header that a raw IP socket does not take.
const ETHERNET_LEN: usize = 14;

pub(super) fn probe() -> Result<Found, String> {
    loopback_up()?;
    nft::track()?;
    let fail = |what: &'static str| move |error: std::io::Error| format!("{what}: {error}");
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).map_err(fail("listen on loopback"))?;
    let server = listener.local_addr().map_err(fail("listen on loopback"))?;
    let client = TcpStream::connect(server).map_err(fail("connect over loopback"))?;
    let _accepted = listener.accept().map_err(fail("accept over loopback"))?;
    let client = (client.local_addr().map_err(fail("connect over loopback"))?, client);

    let mut conntrack = Conntrack::open().map_err(|error| error.to_string())?;
    let flow = find(&mut conntrack, client.0, server)?;
    let raw = socket(AddressFamily::Inet, SockType::Raw, SockFlag::SOCK_CLOEXEC, SockProtocol::Raw)
        .map_err(|errno| format!("open a raw socket: {errno}"))?;
    let mut ask = |question| translated(&mut conntrack, &raw, &flow, question);
    let syn_ack = ask(Question::SynAck)?.iter().all(|&passed| passed);
    let far_past = ask(Question::FourAcks)?.contains(&true);
    conntrack.make_liberal(&flow).map_err(|error| error.to_string())?;
    // Any numbers: four of them, one in each quarter.
    let liberal = translated(&mut conntrack, &raw, &flow, Question::FourAcks)?.iter().all(|&passed| passed);
    Ok(Found { syn_ack, far_past, liberal })
}

/// `struct ifinfomsg`: loopback has index 1 in every namespace; IFF_UP is set, nothing else changed.
fn loopback_up() -> Result<(), String> {
    let mut header = [0; 16];
    header[4..8].copy_from_slice(&1_u32.to_ne_bytes());
    header[8..12].copy_from_slice(&(libc::IFF_UP as u32).to_ne_bytes());
    header[12..16].copy_from_slice(&(libc::IFF_UP as u32).to_ne_bytes());
    let mut netlink = Netlink::open().map_err(|error| error.to_string())?;
    netlink
        .ask(&Request::new(RTM_NEWLINK, 0, &header))
        .map(drop)
        .map_err(|refused| refused.into_error("set the loopback device up").to_string())
}

fn find(conntrack: &mut Conntrack, client: SocketAddr, server: SocketAddr) -> Result<Flow, String> {
    let dump = conntrack
        .dump(Family::V4, |flow| {
            flow.tcp.is_some() && flow.orig.src_port == client.port() && flow.orig.dst_port == server.port()
        })
        .map_err(|error| error.to_string())?;
    dump.flows.first().copied().ok_or_else(|| "conntrack did not list a flow over loopback".to_owned())
}

/// For each segment of the question: was it taken as the flow's?
fn translated(
    conntrack: &mut Conntrack,
    raw: &OwnedFd,
    flow: &Flow,
    question: Question,
) -> Result<Vec<bool>, String> {
    let mut segments = Vec::new();
    frames(flow, None, question, |frame| segments.push(frame));
    let to = SockaddrIn::new(127, 0, 0, 1, 0);
    segments
        .iter()
        .map(|frame| {
            let before = conntrack.invalid().map_err(|error| error.to_string())?;
            sendto(raw.as_raw_fd(), &frame[ETHERNET_LEN..], &to, MsgFlags::empty())
                .map_err(|errno| format!("send on a raw socket: {errno}"))?;
            Ok(conntrack.invalid().map_err(|error| error.to_string())? == before)
        })
        .collect()
}
