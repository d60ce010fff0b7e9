//! Requests that delete entries. The kernel takes a DELETE without a tuple for a flush of the whole table
//! (`ctnetlink_del_conntrack`, nf_conntrack_netlink.c), so the one function that writes the message type takes the tuple as its argument.
use netlink_packet_core::{NLM_F_ACK, NLM_F_REQUEST};
use nodefence_common::{Addr, PortKey};

use super::{
    Family, Flow, TCP, UDP,
    codec::{
        CTA_ID, CTA_IP_V4_SRC, CTA_IP_V6_SRC, CTA_PROTO_NUM, CTA_PROTO_SRC_PORT, CTA_TUPLE_IP,
        CTA_TUPLE_PROTO, CTA_TUPLE_REPLY, CTA_ZONE, SUBSYS_CTNETLINK, put_reply,
    },
};
use crate::{
    netlink::{nest, put},
    nfnetlink::message,
};

const IPCTNL_MSG_CT_DELETE: u16 = 2;
const CTA_FILTER: u16 = 25;
const CTA_FILTER_REPLY_FLAGS: u16 = 2;
/// Which parts of the reply tuple must be equal (`CTA_FILTER_F_*`, net/netfilter/nf_internals.h).
const F_IP_SRC: u32 = 1 << 0;
const F_PROTO_NUM: u32 = 1 << 3;
const F_PROTO_SRC_PORT: u32 = 1 << 4;

/// Which entries one request deletes: those of the default zone whose answers come from this address over this protocol.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) struct Filter {
    source: Addr,
    protocol: u8,
    /// Set only for a protocol whose ports the kernel compares.
    port: Option<u16>,
}

impl Filter {
    /// All entries that this address answers over this IP protocol.
    pub(super) const fn protocol(source: Addr, protocol: u8) -> Self {
        Self { source, protocol, port: None }
    }

    /// All entries that this address answers from this port. `None` where every port of that protocol would match: the kernel
    /// compares ports of TCP and UDP alone (`ctnetlink_filter_match_tuple`, nf_conntrack_netlink.c, up to 6.18).
    pub(super) fn port(key: &PortKey) -> Option<Self> {
        matches!(key.protocol, TCP | UDP).then_some(Self {
            source: key.addr,
            protocol: key.protocol,
            port: Some(key.port),
        })
    }
}

/// The tuple that a DELETE must have.
enum Subject<'a> {
    /// The one entry with this reply direction.
    Entry(&'a Flow),
    /// All entries with this source in the reply direction.
    All(&'a Filter),
}

fn delete(subject: &Subject<'_>, sequence: u32) -> Vec<u8> {
    let kind = SUBSYS_CTNETLINK | IPCTNL_MSG_CT_DELETE;
    let family = match subject {
        Subject::Entry(flow) => Family::of(flow.reply.src),
        Subject::All(filter) => Family::of(filter.source),
    };
    message(kind, NLM_F_REQUEST | NLM_F_ACK, family as u8, 0, sequence, |out| match subject {
        Subject::Entry(flow) => put_entry(out, flow),
        Subject::All(filter) => put_filter(out, filter),
    })
}

fn put_entry(out: &mut Vec<u8>, flow: &Flow) {
    put_reply(out, flow);
    put(out, CTA_ID, &flow.id.to_be_bytes());
}

fn put_filter(out: &mut Vec<u8>, filter: &Filter) {
    let Filter { source, protocol, port } = *filter;
    nest(out, CTA_TUPLE_REPLY, |out| {
        nest(out, CTA_TUPLE_IP, |out| match source.as_v4() {
            Some(v4) => put(out, CTA_IP_V4_SRC, &v4),
            None => put(out, CTA_IP_V6_SRC, &source.bytes),
        });
        nest(out, CTA_TUPLE_PROTO, |out| {
            put(out, CTA_PROTO_NUM, &[protocol]);
            if let Some(port) = port {
                put(out, CTA_PROTO_SRC_PORT, &port.to_be_bytes());
            }
        });
    });
    // Without this attribute the entries of all zones would be deleted. Only the default zone is meant: for another zone the kernel
    // also deletes entries that have the zone in one direction only (`nf_ct_zone_equal_any`, `ctnetlink_filter_match`, 6.8).
    put(out, CTA_ZONE, &0_u16.to_be_bytes());
    let flags = F_IP_SRC | F_PROTO_NUM | if port.is_some() { F_PROTO_SRC_PORT } else { 0 };
    nest(out, CTA_FILTER, |out| put(out, CTA_FILTER_REPLY_FLAGS, &flags.to_ne_bytes()));
}

/// A request that deletes this one entry, by its reply direction, zone and id. The kernel answers ENOENT where the entry is gone.
///
/// The original direction would not do: a flow that has found another backend meanwhile has the same one. The id may be the same
/// too: it is a hash of that direction and of the entry's place in memory (`nf_ct_get_id`, nf_conntrack_core.c), and the kernel
/// uses that place again at once.
pub(super) fn entry_request(flow: &Flow, sequence: u32) -> Vec<u8> {
    delete(&Subject::Entry(flow), sequence)
}

/// A request that deletes all entries that the filter matches, on kernels that know such a filter (1ef7f50ccc6e, 6.12). Older
/// kernels look for one entry, and refuse the request since its tuple is not whole (EINVAL, `ctnetlink_parse_tuple_ip`). Newer
/// kernels may delete wrong entries: see [`super::probe`].
pub(super) fn filter_request(filter: &Filter, sequence: u32) -> Vec<u8> {
    delete(&Subject::All(filter), sequence)
}

#[cfg(test)]
mod tests;
