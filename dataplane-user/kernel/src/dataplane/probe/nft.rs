//! The smallest ruleset that makes conntrack track a network namespace: one rule that loads a packet's conntrack state
//! (include/uapi/linux/netfilter/nf_tables.h). Without such a rule conntrack tracks nothing in the namespace.
use netlink_packet_core::{NLM_F_ACK, NLM_F_CREATE, NLM_F_REQUEST, NetlinkBuffer};
use netlink_sys::{Socket, SocketAddr, protocols::NETLINK_NETFILTER};

use crate::{
    netlink::{nest, put},
    nfnetlink::message,
    nftables::{NEW_CHAIN, NEW_RULE, NEW_TABLE, transaction},
};

const NLMSG_ERROR: u16 = 2;

/// `NF_INET_LOCAL_OUT`.
const LOCAL_OUT: u32 = 3;
/// `NFT_REG_1`, `NFT_CT_STATE`.
const REGISTER: u32 = 1;
const CT_STATE: u32 = 0;

const NAME: &[u8] = b"probe\0";

/// Makes conntrack track IPv4 in this namespace.
pub(super) fn track() -> Result<(), String> {
    let failed = |error: std::io::Error| format!("cannot load an nftables rule: {error}");
    let family = libc::AF_INET as u8;
    let flags = NLM_F_REQUEST | NLM_F_CREATE | NLM_F_ACK;
    let table = message(NEW_TABLE, flags, family, 0, 1, |out| put(out, 1, NAME));
    let chain = message(NEW_CHAIN, flags, family, 0, 2, |out| {
        put(out, 1, NAME);
        put(out, 3, NAME);
        nest(out, 4, |out| {
            put(out, 1, &LOCAL_OUT.to_be_bytes());
            put(out, 2, &0_u32.to_be_bytes());
        });
        put(out, 7, b"filter\0");
    });
    let rule = message(NEW_RULE, flags, family, 0, 3, |out| {
        put(out, 1, NAME);
        put(out, 2, NAME);
        nest(out, 4, |out| {
            nest(out, 1, |out| {
                put(out, 1, b"ct\0");
                nest(out, 2, |out| {
                    put(out, 1, &REGISTER.to_be_bytes());
                    put(out, 2, &CT_STATE.to_be_bytes());
                });
            });
        });
    });

    let mut socket = Socket::new(NETLINK_NETFILTER).map_err(failed)?;
    socket.bind_auto().map_err(failed)?;
    socket.connect(&SocketAddr::new(0, 0)).map_err(failed)?;
    socket.send(&transaction(&[table, chain, rule], [0, 4]), 0).map_err(failed)?;
    // The kernel acknowledges or refuses each request. The first refusal is returned.
    for _ in 0..3 {
        let (answer, _) = socket.recv_from_full().map_err(failed)?;
        let answer = NetlinkBuffer::new_checked(&answer[..]).map_err(|error| error.to_string())?;
        let code = answer.payload().first_chunk().map_or(0, |&code| i32::from_ne_bytes(code));
        if answer.message_type() == NLMSG_ERROR && code < 0 {
            return Err(failed(std::io::Error::from_raw_os_error(-code)));
        }
    }
    Ok(())
}
