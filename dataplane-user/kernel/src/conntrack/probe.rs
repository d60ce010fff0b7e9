//! Finds out whether this kernel deletes by filter, and whether it deletes the right entries. The probe does so with entries that
//! it makes itself, in a network namespace of its own, since a kernel that accepts the filter may apply it wrongly. From 5.8 to at
//! least 6.18 `ctnetlink_filter_match_tuple` passes over the IPv6 addresses that are *equal* (nf_conntrack_netlink.c), so that a
//! request for one backend's entries would delete those of all others.
use nodefence_common::{Addr, PortKey};

use super::{
    ByFilter, Conntrack, Family, Flow, TCP, Tuple, UDP, Zone, codec::create_request, delete::Filter,
};

/// The sources of a family's entries: documentation addresses (RFC 5737, RFC 3849); nothing is ever sent.
const SOURCES: [(Family, [Addr; 2]); 2] =
    [(Family::V4, [Addr::v4([192, 0, 2, 1]), Addr::v4([192, 0, 2, 2])]), (Family::V6, [v6(1), v6(2)])];

const fn v6(last: u8) -> Addr {
    Addr::v6([0x20, 1, 0x0d, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, last])
}

const ZONE: u16 = 7;

/// Finds out where this kernel deletes exactly by filter. Call this in a network namespace that is the calling thread's own and
/// empty: entries in its conntrack table may be gone afterwards.
///
/// # Errors
/// The reason, in words, why nothing was found out.
pub fn by_filter() -> Result<ByFilter, String> {
    let mut conntrack = Conntrack::open_all_zones().map_err(|error| error.to_string())?;
    let mut exact = |(family, sources)| exact(&mut conntrack, family, sources);
    Ok(ByFilter { v4: exact(SOURCES[0])?, v6: exact(SOURCES[1])? })
}

/// Whether each of two requests, the second one wider, deletes exactly the entries that it is meant to delete.
fn exact(conntrack: &mut Conntrack, family: Family, [ours, other]: [Addr; 2]) -> Result<bool, String> {
    let entries = [
        entry(ours, UDP, 53, None),
        entry(ours, UDP, 54, None),
        entry(ours, UDP, 53, Some(Zone::Both(ZONE))),
        entry(ours, UDP, 55, Some(Zone::Original(ZONE))),
        entry(ours, TCP, 53, None),
        entry(other, UDP, 53, None),
        entry(other, TCP, 53, None),
    ];
    for entry in &entries {
        conntrack.create(entry)?;
    }
    let key = PortKey::endpoint(ours, 53, UDP);
    let port = Filter::port(&key).ok_or("there is no filter for a port of UDP")?;
    for (filter, taken) in [(port, 1), (Filter::protocol(ours, UDP), 2)] {
        let done = conntrack.delete_filtered(&[filter]).map_err(|error| error.to_string())?;
        let left = conntrack.dump(family, |_| true).map_err(|error| error.to_string())?;
        let mut left: Vec<Tuple> = left.flows.iter().map(|flow| flow.reply).collect();
        let mut wanted: Vec<Tuple> = entries[taken..].iter().map(|entry| entry.reply).collect();
        left.sort();
        wanted.sort();
        if done.filtered != 1 || left != wanted {
            return Ok(false);
        }
    }
    Ok(true)
}

/// An entry whose answers come from `source`.
fn entry(source: Addr, protocol: u8, port: u16, zone: Option<Zone>) -> Flow {
    let client = if source.as_v4().is_some() { Addr::v4([198, 51, 100, 1]) } else { v6(9) };
    let orig = Tuple { src: client, dst: source, src_port: 40_000, dst_port: port, protocol };
    let reply = Tuple { src: source, dst: client, src_port: port, dst_port: 40_000, protocol };
    Flow { orig, reply, tcp: None, liberal: false, status: 0, zone, id: 0, timeout: 60 }
}

impl Conntrack {
    fn create(&mut self, flow: &Flow) -> Result<(), String> {
        let mut answer = 0;
        let request = create_request(flow, self.channel.next_sequence());
        self.channel
            .pipeline(&request, 1, |_, errno| answer = errno)
            .map_err(|error| format!("make a conntrack entry: {error}"))?;
        match answer {
            0 => Ok(()),
            errno => Err(format!("make a conntrack entry: {}", std::io::Error::from_raw_os_error(errno))),
        }
    }
}
