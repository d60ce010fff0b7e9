//! Messages of the ctnetlink subsystem (include/uapi/linux/netfilter/nfnetlink_conntrack.h), read in place.
use netlink_packet_core::{NLM_F_ACK, NLM_F_CREATE, NLM_F_DUMP, NLM_F_EXCL, NLM_F_REQUEST};
use nodefence_common::Addr;

use super::{Family, Flow, TcpState, Tuple, Zone};
use crate::{
    netlink::{attributes, nest, put},
    nfnetlink::{NFGEN_LEN, message},
};

pub(super) const SUBSYS_CTNETLINK: u16 = 1 << 8;
const IPCTNL_MSG_CT_NEW: u16 = 0;
const IPCTNL_MSG_CT_GET: u16 = 1;
const IPCTNL_MSG_CT_GET_STATS_CPU: u16 = 4;
/// Type of the messages that a dump consists of.
pub(super) const CT_NEW: u16 = SUBSYS_CTNETLINK | IPCTNL_MSG_CT_NEW;
/// Type of the messages that count one CPU's packets.
pub(super) const CT_STATS_CPU: u16 = SUBSYS_CTNETLINK | IPCTNL_MSG_CT_GET_STATS_CPU;

pub(super) const CTA_TUPLE_ORIG: u16 = 1;
pub(super) const CTA_TUPLE_REPLY: u16 = 2;
const CTA_STATUS: u16 = 3;
const CTA_PROTOINFO: u16 = 4;
pub(super) const CTA_TIMEOUT: u16 = 7;
pub(super) const CTA_ID: u16 = 12;
pub(super) const CTA_ZONE: u16 = 18;

pub(super) const CTA_TUPLE_IP: u16 = 1;
pub(super) const CTA_TUPLE_PROTO: u16 = 2;
pub(super) const CTA_TUPLE_ZONE: u16 = 3;

pub(super) const CTA_IP_V4_SRC: u16 = 1;
const CTA_IP_V4_DST: u16 = 2;
pub(super) const CTA_IP_V6_SRC: u16 = 3;
const CTA_IP_V6_DST: u16 = 4;

pub(super) const CTA_PROTO_NUM: u16 = 1;
pub(super) const CTA_PROTO_SRC_PORT: u16 = 2;
const CTA_PROTO_DST_PORT: u16 = 3;

const CTA_PROTOINFO_TCP: u16 = 1;
const CTA_PROTOINFO_TCP_STATE: u16 = 1;
const CTA_PROTOINFO_TCP_FLAGS_REPLY: u16 = 5;
/// `IP_CT_TCP_FLAG_BE_LIBERAL` (nf_conntrack_tcp.h): no segment of this direction is out of window.
const TCP_FLAG_BE_LIBERAL: u8 = 0x08;

fn be16(value: &[u8]) -> Option<u16> {
    value.try_into().ok().map(u16::from_be_bytes)
}

pub(super) fn be32(value: &[u8]) -> Option<u32> {
    value.try_into().ok().map(u32::from_be_bytes)
}

/// The entry that the body of a `CT_NEW` message describes; `None` where a tuple is missing or malformed.
pub(super) fn parse(body: &[u8]) -> Option<Flow> {
    let mut orig = None;
    let mut reply = None;
    let mut zone = None;
    let mut tcp = None;
    let mut liberal = false;
    let mut status = 0;
    let mut id = 0;
    let mut timeout = 0;
    for (kind, value) in attributes(body.get(NFGEN_LEN..)?) {
        match kind {
            CTA_TUPLE_ORIG => orig = Some(parse_tuple(value, &mut zone, Zone::Original)?),
            CTA_TUPLE_REPLY => reply = Some(parse_tuple(value, &mut zone, Zone::Reply)?),
            CTA_STATUS => status = be32(value)?,
            CTA_PROTOINFO => (tcp, liberal) = parse_tcp(value),
            CTA_TIMEOUT => timeout = be32(value)?,
            CTA_ID => id = be32(value)?,
            CTA_ZONE => zone = Some(Zone::Both(be16(value)?)),
            _ => {}
        }
    }
    Some(Flow { orig: orig?, reply: reply?, tcp, liberal, status, zone, id, timeout })
}

fn parse_tuple(bytes: &[u8], zone: &mut Option<Zone>, direction: fn(u16) -> Zone) -> Option<Tuple> {
    let mut src = None;
    let mut dst = None;
    let mut protocol = None;
    let mut src_port = 0;
    let mut dst_port = 0;
    for (kind, value) in attributes(bytes) {
        match kind {
            CTA_TUPLE_IP => {
                for (kind, value) in attributes(value) {
                    match kind {
                        CTA_IP_V4_SRC => src = Some(Addr::v4(value.try_into().ok()?)),
                        CTA_IP_V4_DST => dst = Some(Addr::v4(value.try_into().ok()?)),
                        CTA_IP_V6_SRC => src = Some(Addr::v6(value.try_into().ok()?)),
                        CTA_IP_V6_DST => dst = Some(Addr::v6(value.try_into().ok()?)),
                        _ => {}
                    }
                }
            }
            CTA_TUPLE_PROTO => {
                for (kind, value) in attributes(value) {
                    match kind {
                        CTA_PROTO_NUM => protocol = value.first().copied(),
                        CTA_PROTO_SRC_PORT => src_port = be16(value)?,
                        CTA_PROTO_DST_PORT => dst_port = be16(value)?,
                        _ => {}
                    }
                }
            }
            CTA_TUPLE_ZONE => *zone = Some(direction(be16(value)?)),
            _ => {}
        }
    }
    Some(Tuple { src: src?, dst: dst?, src_port, dst_port, protocol: protocol? })
}

/// The TCP state, and whether the reply direction is liberal.
fn parse_tcp(bytes: &[u8]) -> (Option<TcpState>, bool) {
    let mut state = None;
    let mut liberal = false;
    for (_, tcp) in attributes(bytes).filter(|(kind, _)| *kind == CTA_PROTOINFO_TCP) {
        for (kind, value) in attributes(tcp) {
            let first = value.first().copied();
            match kind {
                CTA_PROTOINFO_TCP_STATE => state = first.map(TcpState::from),
                CTA_PROTOINFO_TCP_FLAGS_REPLY => {
                    liberal = first.is_some_and(|flags| flags & TCP_FLAG_BE_LIBERAL != 0);
                }
                _ => {}
            }
        }
    }
    (state, liberal)
}

/// A request for all entries of one family.
pub(super) fn dump_request(family: Family, sequence: u32) -> Vec<u8> {
    let kind = SUBSYS_CTNETLINK | IPCTNL_MSG_CT_GET;
    message(kind, NLM_F_REQUEST | NLM_F_DUMP, family as u8, 0, sequence, |_| {})
}

/// The direction of an entry that a tuple describes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u16)]
pub(super) enum Direction {
    /// Packets as the client sends them.
    Original = CTA_TUPLE_ORIG,
    /// Answers as they arrive.
    Reply = CTA_TUPLE_REPLY,
}

/// A request for the entry of this zone that has this tuple: a lookup of one bucket, no dump. Only the returned entry tells in
/// which direction it has the tuple, and whether its other direction has the zone too.
pub(super) fn lookup_request(tuple: &Tuple, direction: Direction, zone: u16, sequence: u32) -> Vec<u8> {
    let kind = SUBSYS_CTNETLINK | IPCTNL_MSG_CT_GET;
    // The acknowledgement ends the exchange.
    message(kind, NLM_F_REQUEST | NLM_F_ACK, Family::of(tuple.src) as u8, 0, sequence, |out| {
        nest(out, direction as u16, |out| put_tuple(out, tuple));
        // The default zone is not named: a kernel without zones refuses the attribute.
        if zone != 0 {
            put(out, CTA_ZONE, &zone.to_be_bytes());
        }
    })
}

/// A request for this one entry, by its reply direction and zone. The kernel answers by the entry or by an error.
pub(super) fn entry_request(flow: &Flow, sequence: u32) -> Vec<u8> {
    let kind = SUBSYS_CTNETLINK | IPCTNL_MSG_CT_GET;
    message(kind, NLM_F_REQUEST, Family::of(flow.reply.src) as u8, 0, sequence, |out| {
        put_reply(out, flow);
    })
}

/// Adds the attributes that name an entry by its reply direction.
pub(super) fn put_reply(out: &mut Vec<u8>, flow: &Flow) {
    nest(out, CTA_TUPLE_REPLY, |out| {
        put_tuple(out, &flow.reply);
        if let Some(Zone::Reply(id)) = flow.zone {
            put(out, CTA_TUPLE_ZONE, &id.to_be_bytes());
        }
    });
    // A zone of the original direction alone has no part in the lookup by the reply direction.
    if let Some(Zone::Both(id)) = flow.zone {
        put(out, CTA_ZONE, &id.to_be_bytes());
    }
}

/// A request for the counters of each CPU.
pub(super) fn stats_request(sequence: u32) -> Vec<u8> {
    message(CT_STATS_CPU, NLM_F_REQUEST | NLM_F_DUMP, libc::AF_UNSPEC as u8, 0, sequence, |_| {})
}

/// A request that makes an entry; for [`super::probe`] alone.
pub(super) fn create_request(flow: &Flow, sequence: u32) -> Vec<u8> {
    let flags = NLM_F_REQUEST | NLM_F_ACK | NLM_F_CREATE | NLM_F_EXCL;
    message(CT_NEW, flags, Family::of(flow.orig.src) as u8, 0, sequence, |out| {
        nest(out, CTA_TUPLE_ORIG, |out| {
            put_tuple(out, &flow.orig);
            if let Some(Zone::Original(id)) = flow.zone {
                put(out, CTA_TUPLE_ZONE, &id.to_be_bytes());
            }
        });
        nest(out, CTA_TUPLE_REPLY, |out| put_tuple(out, &flow.reply));
        if let Some(Zone::Both(id)) = flow.zone {
            put(out, CTA_ZONE, &id.to_be_bytes());
        }
        put(out, CTA_TIMEOUT, &flow.timeout.to_be_bytes());
    })
}

/// A request that makes the entry of `flow` liberal in the reply direction and changes nothing else. It neither creates nor
/// replaces: without the entry it fails with ENOENT. Only flows of TCP have the flag.
pub(super) fn liberal_request(flow: &Flow, sequence: u32) -> Vec<u8> {
    let family = Family::of(flow.orig.src);
    message(CT_NEW, NLM_F_REQUEST | NLM_F_ACK, family as u8, 0, sequence, |out| {
        nest(out, CTA_TUPLE_ORIG, |out| {
            put_tuple(out, &flow.orig);
            if let Some(Zone::Original(id)) = flow.zone {
                put(out, CTA_TUPLE_ZONE, &id.to_be_bytes());
            }
        });
        if let Some(Zone::Reply(id)) = flow.zone {
            nest(out, CTA_TUPLE_REPLY, |out| {
                put_tuple(out, &flow.reply);
                put(out, CTA_TUPLE_ZONE, &id.to_be_bytes());
            });
        }
        if let Some(Zone::Both(id)) = flow.zone {
            put(out, CTA_ZONE, &id.to_be_bytes());
        }
        put(out, CTA_ID, &flow.id.to_be_bytes());
        nest(out, CTA_PROTOINFO, |out| {
            nest(out, CTA_PROTOINFO_TCP, |out| {
                // struct nf_ct_tcp_flags: value, mask.
                put(out, CTA_PROTOINFO_TCP_FLAGS_REPLY, &[TCP_FLAG_BE_LIBERAL, TCP_FLAG_BE_LIBERAL]);
            });
        });
    })
}

pub(super) fn put_tuple(out: &mut Vec<u8>, tuple: &Tuple) {
    nest(out, CTA_TUPLE_IP, |out| match (tuple.src.as_v4(), tuple.dst.as_v4()) {
        (Some(src), Some(dst)) => {
            put(out, CTA_IP_V4_SRC, &src);
            put(out, CTA_IP_V4_DST, &dst);
        }
        _ => {
            put(out, CTA_IP_V6_SRC, &tuple.src.bytes);
            put(out, CTA_IP_V6_DST, &tuple.dst.bytes);
        }
    });
    nest(out, CTA_TUPLE_PROTO, |out| {
        put(out, CTA_PROTO_NUM, &[tuple.protocol]);
        put(out, CTA_PROTO_SRC_PORT, &tuple.src_port.to_be_bytes());
        put(out, CTA_PROTO_DST_PORT, &tuple.dst_port.to_be_bytes());
    });
}
