//! Numbers of nftables' netlink messages, and the frame of a transaction (include/uapi/linux/netfilter/nf_tables.h and
//! nfnetlink.h). This module knows no ruleset and no socket.
use netlink_packet_core::NLM_F_REQUEST;

use crate::nfnetlink::message;

const SUBSYSTEM: u16 = 10;
pub(crate) const NEW_TABLE: u16 = SUBSYSTEM << 8;
pub(crate) const GET_TABLE: u16 = SUBSYSTEM << 8 | 1;
pub(crate) const NEW_CHAIN: u16 = SUBSYSTEM << 8 | 3;
pub(crate) const GET_CHAIN: u16 = SUBSYSTEM << 8 | 4;
pub(crate) const NEW_RULE: u16 = SUBSYSTEM << 8 | 6;
pub(crate) const GET_RULE: u16 = SUBSYSTEM << 8 | 7;
pub(crate) const NEW_SET: u16 = SUBSYSTEM << 8 | 9;
pub(crate) const GET_SET: u16 = SUBSYSTEM << 8 | 10;
pub(crate) const NEW_SET_ELEM: u16 = SUBSYSTEM << 8 | 12;
pub(crate) const GET_SET_ELEM: u16 = SUBSYSTEM << 8 | 13;
pub(crate) const DEL_SET_ELEM: u16 = SUBSYSTEM << 8 | 14;

/// `NFNL_MSG_BATCH_BEGIN`, `NFNL_MSG_BATCH_END`.
const BATCH_BEGIN: u16 = 0x10;
const BATCH_END: u16 = 0x11;

/// These requests as one transaction. `begin` and `end` are the sequence numbers of the transaction's own two messages.
pub(crate) fn transaction(requests: &[Vec<u8>], [begin, end]: [u32; 2]) -> Vec<u8> {
    let frame = |kind, sequence| message(kind, NLM_F_REQUEST, 0, SUBSYSTEM, sequence, |_| {});
    [frame(BATCH_BEGIN, begin), requests.concat(), frame(BATCH_END, end)].concat()
}
