use std::net::{IpAddr, SocketAddr};

use netlink_packet_core::{DefaultNla, NlaBuffer, NlasIterator, Parseable};
use netlink_packet_generic::constants::{CTRL_ATTR_FAMILY_ID, GENL_HDRLEN};

use super::{
    super::{
        Config, Destination, Family, Flags, Forward, Info, Name, Netmask, Protocol, Service, ServiceKey,
        Stats, Tunnel,
    },
    *,
};

/// Attributes with what their types say beside the number; `None` for each that is malformed. The two flags of a type exclude each other
/// (include/uapi/linux/netlink.h).
fn strict(bytes: &[u8]) -> impl Iterator<Item = Option<NlaBuffer<&[u8]>>> {
    NlasIterator::new(bytes).map(|attribute| {
        attribute.ok().filter(|attribute| !(attribute.nested_flag() && attribute.network_byte_order_flag()))
    })
}

/// The attributes of an answer, behind its `struct genlmsghdr`.
fn body(payload: &[u8]) -> Option<&[u8]> {
    payload.get(GENL_HDRLEN..)
}

fn ne16(value: &[u8]) -> Option<u16> {
    value.try_into().ok().map(u16::from_ne_bytes)
}

fn be16(value: &[u8]) -> Option<u16> {
    value.try_into().ok().map(u16::from_be_bytes)
}

fn ne32(value: &[u8]) -> Option<u32> {
    value.try_into().ok().map(u32::from_ne_bytes)
}

/// IPv4 stands in the first four bytes.
fn address(family: Family, bytes: [u8; 16]) -> IpAddr {
    let [a, b, c, d, ..] = bytes;
    match family {
        Family::V4 => [a, b, c, d].into(),
        Family::V6 => bytes.into(),
    }
}

/// The value of the first attribute of a kind.
fn find(bytes: &[u8], kind: u16) -> Option<&[u8]> {
    for attribute in strict(bytes) {
        let attribute = attribute?;
        if attribute.kind() == kind {
            return attribute.into_inner().get(4..usize::from(attribute.length()));
        }
    }
    None
}

/// Number of the family, from the answer to [`family_request`]. `GenlCtrl` would refuse the whole answer for one attribute of a later
/// kernel.
pub(in crate::ipvs) fn parse_family_number(payload: &[u8]) -> Option<u16> {
    ne16(find(body(payload)?, CTRL_ATTR_FAMILY_ID)?)
}

/// A service from an answer's payload.
pub(in crate::ipvs) fn parse_service(payload: &[u8]) -> Option<Service> {
    let (mut family, mut protocol, mut raw_address, mut port, mut mark) = (None, None, None, None, None);
    let (mut scheduler, mut bits, mut timeout, mut raw_netmask) = (None, None, None, None);
    let (mut persistence_engine, mut stats, mut unknown) = (None, Stats::default(), Vec::new());
    for attribute in strict(find(body(payload)?, SERVICE)?) {
        let attribute = attribute?;
        let value = attribute.value();
        match attribute.kind() {
            SERVICE_FAMILY => family = Some(Family::from_raw(ne16(value)?)?),
            SERVICE_PROTOCOL => protocol = Some(Protocol(ne16(value)?)),
            SERVICE_ADDRESS => raw_address = Some(<[u8; 16]>::try_from(value).ok()?),
            SERVICE_PORT => port = Some(be16(value)?),
            SERVICE_MARK => mark = Some(ne32(value)?),
            SERVICE_SCHEDULER => scheduler = Some(Name::from_attribute(value)?),
            SERVICE_FLAGS => {
                let (bits_half, mask_half) = value.split_at_checked(4)?;
                bits = Some(Flags { bits: ne32(bits_half)?, mask: ne32(mask_half)? });
            }
            SERVICE_TIMEOUT => timeout = Some(ne32(value)?),
            SERVICE_NETMASK => raw_netmask = Some(<[u8; 4]>::try_from(value).ok()?),
            SERVICE_PERSISTENCE_ENGINE => persistence_engine = Some(Name::from_attribute(value)?),
            SERVICE_STATS64 => stats = parse_stats(value)?,
            SERVICE_STATS => {}
            _ => unknown.push(DefaultNla::parse(&attribute).ok()?),
        }
    }
    let family = family?;
    let key = match mark {
        Some(mark) => ServiceKey::Mark { family, mark },
        None => {
            let address = SocketAddr::new(address(family, raw_address?), port?);
            ServiceKey::Address { address, protocol: protocol? }
        }
    };
    let netmask = match (family, raw_netmask?) {
        (Family::V4, bytes) => Netmask::V4(bytes.into()),
        (Family::V6, bytes) => Netmask::V6(u32::from_ne_bytes(bytes)),
    };
    Some(Service {
        key,
        scheduler: scheduler?,
        flags: bits?,
        timeout: timeout?,
        netmask,
        persistence_engine,
        stats,
        unknown,
    })
}

/// `IPVS_STATS_ATTR_*`, all of 64 bits.
fn parse_stats(bytes: &[u8]) -> Option<Stats> {
    let mut all = [0_u64; 11];
    for attribute in strict(bytes) {
        let attribute = attribute?;
        if let Some(place) = all.get_mut(usize::from(attribute.kind()))
            && let Ok(value) = <[u8; 8]>::try_from(attribute.value())
        {
            *place = u64::from_ne_bytes(value);
        }
    }
    Some(Stats {
        connections: all[1],
        in_packets: all[2],
        out_packets: all[3],
        in_bytes: all[4],
        out_bytes: all[5],
        connection_rate: all[6],
        in_packet_rate: all[7],
        out_packet_rate: all[8],
        in_byte_rate: all[9],
        out_byte_rate: all[10],
    })
}

/// A destination from an answer's payload. `family` is that of its service, and holds where the answer names none.
pub(in crate::ipvs) fn parse_destination(payload: &[u8], family: Family) -> Option<Destination> {
    let (mut family, mut raw_address, mut port) = (family, None, None);
    let (mut forward, mut weight, mut tunnel) = (None, None, Tunnel::default());
    let (mut upper, mut lower) = (None, None);
    let (mut active, mut inactive, mut persistent, mut unknown) = (0, 0, 0, Vec::new());
    for attribute in strict(find(body(payload)?, DESTINATION)?) {
        let attribute = attribute?;
        let value = attribute.value();
        match attribute.kind() {
            DESTINATION_FAMILY => family = Family::from_raw(ne16(value)?)?,
            DESTINATION_ADDRESS => raw_address = Some(<[u8; 16]>::try_from(value).ok()?),
            DESTINATION_PORT => port = Some(be16(value)?),
            DESTINATION_FORWARD => forward = Some(Forward::from_raw(ne32(value)?)),
            DESTINATION_WEIGHT => weight = Some(ne32(value)?),
            DESTINATION_UPPER => upper = Some(ne32(value)?),
            DESTINATION_LOWER => lower = Some(ne32(value)?),
            DESTINATION_TUNNEL_KIND => [tunnel.kind] = value.try_into().ok()?,
            DESTINATION_TUNNEL_PORT => tunnel.port = be16(value)?,
            DESTINATION_TUNNEL_FLAGS => tunnel.flags = ne16(value)?,
            DESTINATION_ACTIVE => active = ne32(value)?,
            DESTINATION_INACTIVE => inactive = ne32(value)?,
            DESTINATION_PERSISTENT => persistent = ne32(value)?,
            DESTINATION_STATS | DESTINATION_STATS64 => {}
            _ => unknown.push(DefaultNla::parse(&attribute).ok()?),
        }
    }
    Some(Destination {
        address: SocketAddr::new(address(family, raw_address?), port?),
        forward: forward?,
        weight: weight?,
        upper_threshold: upper?,
        lower_threshold: lower?,
        tunnel,
        active,
        inactive,
        persistent,
        unknown,
    })
}

/// The timeouts from an answer's payload; 0 for a protocol that the kernel was built without.
pub(in crate::ipvs) fn parse_config(payload: &[u8]) -> Option<Config> {
    let mut config = Config::default();
    for attribute in strict(body(payload)?) {
        let attribute = attribute?;
        match attribute.kind() {
            TIMEOUT_TCP => config.tcp = ne32(attribute.value())?,
            TIMEOUT_TCP_FIN => config.tcp_fin = ne32(attribute.value())?,
            TIMEOUT_UDP => config.udp = ne32(attribute.value())?,
            _ => {}
        }
    }
    Some(config)
}

/// Version and table size from an answer's payload.
pub(in crate::ipvs) fn parse_info(payload: &[u8]) -> Option<Info> {
    let attributes = body(payload)?;
    let [_, major, minor, patch] = ne32(find(attributes, INFO_VERSION)?)?.to_be_bytes();
    let connection_buckets = ne32(find(attributes, INFO_BUCKETS)?)?;
    Some(Info { version: (major, minor, patch), connection_buckets })
}
