//! Finds out which challenges conntrack translates. The probe makes a flow over loopback, and sends segments of the flow's reply direction
//! from a raw socket. conntrack counts each segment that it does not translate as INVALID, while the sending call runs.
use std::{
    net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream},
    os::fd::{AsRawFd as _, OwnedFd},
    thread::sleep,
    time::Duration,
};

use nix::sys::socket::{
    AddressFamily, MsgFlags, SockFlag, SockProtocol, SockType, SockaddrIn, sendto, socket,
};
use nodefence_common::packet::ETH_LEN;
use serde::{Deserialize, Serialize};

use super::nft;
use crate::{
    conntrack::{Conntrack as Table, Family, Flow},
    dataplane::{
        challenge::segments::{Challenge, frames},
        netlink::{Netlink, Request},
    },
};

const RTM_NEWLINK: u16 = 16;
/// How often a look is tried at most, if it counts segments as INVALID.
const TRIES: u32 = 4;
/// How long the namespace is left alone before each further try.
const PAUSE: Duration = Duration::from_millis(30);

/// Which challenges conntrack translates. A challenge is a segment in the reply direction with numbers that are not those of the flow.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize, schemars::JsonSchema)]
#[schemars(rename = "Challenges")]
pub struct Conntrack {
    /// Whether a SYN|ACK with any numbers is translated.
    pub syn_ack: bool,
    /// Whether an ACK with numbers far in the past is translated.
    pub far_past: bool,
    /// Whether an ACK with any numbers is translated once the flow is liberal in the reply direction.
    pub liberal: bool,
}

pub(super) fn probe() -> Result<Conntrack, String> {
    loopback_up()?;
    nft::track()?;
    let fail = |what: &'static str| move |error: std::io::Error| format!("{what}: {error}");
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).map_err(fail("listen on loopback"))?;
    let server = listener.local_addr().map_err(fail("listen on loopback"))?;
    let client = TcpStream::connect(server).map_err(fail("connect over loopback"))?;
    let _accepted = listener.accept().map_err(fail("accept over loopback"))?;
    let client = (client.local_addr().map_err(fail("connect over loopback"))?, client);

    let mut conntrack = Table::open(0).map_err(|error| error.to_string())?;
    let flow = find(&mut conntrack, client.0, server)?;
    let raw = socket(AddressFamily::Inet, SockType::Raw, SockFlag::SOCK_CLOEXEC, SockProtocol::Raw)
        .map_err(|errno| format!("open a raw socket: {errno}"))?;
    let mut probe = Probe { conntrack, raw, flow };
    let syn_ack = probe.all_pass(Challenge::SynAck)?;
    let far_past = probe.any_passes(Challenge::FourAcks)?;
    let made = probe.conntrack.make_all_liberal(&[flow]).map_err(|error| error.to_string())?;
    if made.refused > 0 {
        return Err("the kernel makes no flow liberal".to_owned());
    }
    // Four ACKs stand for any numbers: one for each combination of the halves of both numbers' spaces.
    let liberal = probe.all_pass(Challenge::FourAcks)?;
    Ok(Conntrack { syn_ack, far_past, liberal })
}

/// Sets the loopback device up. `struct ifinfomsg`: loopback has index 1 in every namespace, and only IFF_UP is changed.
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

fn find(conntrack: &mut Table, client: SocketAddr, server: SocketAddr) -> Result<Flow, String> {
    let dump = conntrack
        .dump(Family::V4, |flow| {
            flow.tcp.is_some() && flow.orig.src_port == client.port() && flow.orig.dst_port == server.port()
        })
        .map_err(|error| error.to_string())?;
    dump.flows.first().copied().ok_or_else(|| "conntrack did not list a flow over loopback".to_owned())
}

struct Probe {
    conntrack: Table,
    raw: OwnedFd,
    flow: Flow,
}

impl Probe {
    /// Whether conntrack takes every segment of the challenge as the flow's.
    fn all_pass(&mut self, challenge: Challenge) -> Result<bool, String> {
        for segment in self.segments(challenge) {
            if !confirmed(|| self.look(&segment))? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Whether conntrack takes at least one segment of the challenge as the flow's.
    fn any_passes(&mut self, challenge: Challenge) -> Result<bool, String> {
        let segments = self.segments(challenge);
        confirmed(|| {
            for segment in &segments {
                if self.look(segment)? {
                    return Ok(true);
                }
            }
            Ok(false)
        })
    }

    fn segments(&self, challenge: Challenge) -> Vec<Vec<u8>> {
        let mut segments = Vec::new();
        frames(&self.flow, None, challenge, |frame| segments.push(frame));
        segments
    }

    fn invalid(&mut self) -> Result<u64, String> {
        self.conntrack.stats().map(|stats| stats.invalid).map_err(|error| error.to_string())
    }

    /// Sends a segment. Returns whether nothing was counted as INVALID meanwhile.
    fn look(&mut self, frame: &[u8]) -> Result<bool, String> {
        let to = SockaddrIn::new(127, 0, 0, 1, 0);
        let before = self.invalid()?;
        // A raw IP socket takes no Ethernet header.
        sendto(self.raw.as_raw_fd(), &frame[ETH_LEN..], &to, MsgFlags::empty())
            .map_err(|errno| format!("send on a raw socket: {errno}"))?;
        Ok(self.invalid()? == before)
    }
}

/// Whether segments pass. A look can be disturbed in one way only: it also counts other segments that are INVALID at that moment. A refused
/// segment leaves without a conntrack entry. conntrack looks at it again where it arrives, and counts it once more. On a busy machine the
/// segment arrives later, in ksoftirqd, during the look at the next segment, though that one passes. So a look that counts nothing is
/// believed, and a look that counts something is repeated.
fn confirmed(mut look: impl FnMut() -> Result<bool, String>) -> Result<bool, String> {
    for attempt in 0..TRIES {
        if attempt > 0 {
            sleep(PAUSE);
        }
        if look()? {
            return Ok(true);
        }
    }
    Ok(false)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_segment_that_is_always_counted_is_invalid() {
        let mut disturbed = [false, false, true].into_iter();
        assert_eq!(confirmed(|| Ok(disturbed.next().unwrap())), Ok(true));
        assert_eq!(disturbed.next(), None);
        let mut looks = 0;
        let count = || {
            looks += 1;
            Ok(false)
        };
        assert_eq!(confirmed(count), Ok(false));
        assert_eq!(looks, TRIES);
        assert_eq!(confirmed(|| Err("no".into())), Err("no".into()));
    }
}
