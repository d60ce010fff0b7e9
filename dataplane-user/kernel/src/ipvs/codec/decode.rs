use std::net::{IpAddr, SocketAddr};

use netlink_packet_core::{NLA_F_NESTED, NLA_F_NET_BYTEORDER, NLA_TYPE_MASK};

use super::{
    super::{Destination, Family, Flags, Forward, Name, Netmask, Protocol, Service, ServiceKey, Tunnel},
    *,
};
use crate::netlink::split_attribute;

/// An attribute as the kernel wrote it.
#[derive(Clone, Copy)]
struct Raw<'a> {
    /// The type with its flags.
    kind: u16,
    value: &'a [u8],
}

impl Raw<'_> {
    /// The type without its flags.
    fn kind(&self) -> u16 {
        self.kind & NLA_TYPE_MASK
    }

    /// The type with its flags, and the value, as a request writes them back.
    fn kept(&self) -> (u16, Vec<u8>) {
        (self.kind, self.value.to_vec())
    }
}

/// The first attribute and the bytes after it; `None` where the attribute is malformed. The two flags of a type exclude each
/// other (include/uapi/linux/netlink.h).
fn split(bytes: &[u8]) -> Option<(Raw<'_>, &[u8])> {
    const BOTH: u16 = NLA_F_NESTED | NLA_F_NET_BYTEORDER;
    let (kind, value, rest) = split_attribute(bytes)?;
    (kind & BOTH != BOTH).then_some((Raw { kind, value }, rest))
}

/// All attributes. The first malformed one is `None` and ends the list.
fn strict(mut rest: &[u8]) -> impl Iterator<Item = Option<Raw<'_>>> {
    std::iter::from_fn(move || {
        if rest.is_empty() {
            return None;
        }
        let next = split(rest);
        rest = next.map_or(&[], |(_, rest)| rest);
        Some(next.map(|(attribute, _)| attribute))
    })
}

/// The attributes of an answer, behind its `struct genlmsghdr`.
fn body(payload: &[u8]) -> Option<&[u8]> {
    payload.get(HEADER_LEN..)
}

fn one(value: &[u8]) -> Option<u8> {
    let [byte] = value.try_into().ok()?;
    Some(byte)
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

/// The address in an attribute. An IPv4 address is in the first four bytes.
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
            return Some(attribute.value);
        }
    }
    None
}

/// The number of the IPVS family, from the answer to [`family_request`].
pub(in crate::ipvs) fn parse_family_number(payload: &[u8]) -> Option<u16> {
    ne16(find(body(payload)?, CONTROLLER_ID)?)
}

/// The attributes that identify a service.
#[derive(Default)]
struct KeyParts {
    family: Option<Family>,
    protocol: Option<Protocol>,
    address: Option<[u8; 16]>,
    port: Option<u16>,
    mark: Option<u32>,
}

impl KeyParts {
    /// Takes the attribute if it is part of the key, and returns whether it is. `None` where the attribute is malformed.
    fn take(&mut self, attribute: Raw<'_>) -> Option<bool> {
        let value = attribute.value;
        match attribute.kind() {
            SERVICE_FAMILY => self.family = Some(Family::from_raw(ne16(value)?)?),
            SERVICE_PROTOCOL => self.protocol = Some(Protocol(ne16(value)?)),
            SERVICE_ADDRESS => self.address = Some(<[u8; 16]>::try_from(value).ok()?),
            SERVICE_PORT => self.port = Some(be16(value)?),
            SERVICE_MARK => self.mark = Some(ne32(value)?),
            _ => return Some(false),
        }
        Some(true)
    }

    /// The key; `None` where a part is missing.
    fn key(&self) -> Option<ServiceKey> {
        let family = self.family?;
        if let Some(mark) = self.mark {
            return Some(ServiceKey::Mark { family, mark });
        }
        let address = SocketAddr::new(address(family, self.address?), self.port?);
        Some(ServiceKey::Address { address, protocol: self.protocol? })
    }
}

/// The key of a service from an answer's payload: the one that [`parse_service`] gives. Attributes after the key are not read.
pub(in crate::ipvs) fn parse_service_key(payload: &[u8]) -> Option<ServiceKey> {
    let mut parts = KeyParts::default();
    for attribute in strict(find(body(payload)?, SERVICE)?) {
        if !parts.take(attribute?)? {
            continue;
        }
        if let Some(key) = parts.key() {
            return Some(key);
        }
    }
    None
}

/// A service from an answer's payload.
pub(in crate::ipvs) fn parse_service(payload: &[u8]) -> Option<Service> {
    let mut parts = KeyParts::default();
    let mut scheduler = None;
    let mut bits = None;
    let mut timeout = None;
    let mut raw_netmask = None;
    let mut persistence_engine = None;
    let mut unknown = Vec::new();
    for attribute in strict(find(body(payload)?, SERVICE)?) {
        let attribute = attribute?;
        if parts.take(attribute)? {
            continue;
        }
        let value = attribute.value;
        match attribute.kind() {
            SERVICE_SCHEDULER => scheduler = Some(Name::from_attribute(value)?),
            SERVICE_FLAGS => {
                let (bits_half, mask_half) = value.split_at_checked(4)?;
                bits = Some(Flags { bits: ne32(bits_half)?, mask: ne32(mask_half)? });
            }
            SERVICE_TIMEOUT => timeout = Some(ne32(value)?),
            SERVICE_NETMASK => raw_netmask = Some(<[u8; 4]>::try_from(value).ok()?),
            SERVICE_PERSISTENCE_ENGINE => persistence_engine = Some(Name::from_attribute(value)?),
            SERVICE_STATS | SERVICE_STATS64 => {}
            _ => unknown.push(attribute.kept()),
        }
    }
    let key = parts.key()?;
    let netmask = match (key.family(), raw_netmask?) {
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
        unknown,
    })
}

/// A destination from an answer's payload. `family` is the service's family; it applies where the answer names no family.
///
/// There may be a hundred thousand destinations. So attributes are first put into an array by their type, without a branch
/// for each type.
pub(in crate::ipvs) fn parse_destination(payload: &[u8], family: Family) -> Option<Destination> {
    const PLACES: usize = DESTINATION_TUNNEL_FLAGS as usize + 1;
    let mut found = [None; PLACES];
    let mut unknown = Vec::new();
    let mut rest = find(body(payload)?, DESTINATION)?;
    while !rest.is_empty() {
        let (attribute, after) = split(rest)?;
        rest = after;
        match found.get_mut(usize::from(attribute.kind())) {
            Some(place) if attribute.kind() > 0 => *place = Some(attribute.value),
            _ => unknown.push(attribute.kept()),
        }
    }
    let at = |kind: u16| -> Option<&[u8]> { found[usize::from(kind)] };
    let counter = |kind: u16| at(kind).map_or(Some(0), ne32);
    let family = at(DESTINATION_FAMILY).map_or(Some(family), |value| Family::from_raw(ne16(value)?))?;
    let raw_address = <[u8; 16]>::try_from(at(DESTINATION_ADDRESS)?).ok()?;
    Some(Destination {
        address: SocketAddr::new(address(family, raw_address), be16(at(DESTINATION_PORT)?)?),
        forward: Forward::from_raw(ne32(at(DESTINATION_FORWARD)?)?),
        weight: ne32(at(DESTINATION_WEIGHT)?)?,
        upper_threshold: ne32(at(DESTINATION_UPPER)?)?,
        lower_threshold: ne32(at(DESTINATION_LOWER)?)?,
        tunnel: Tunnel {
            kind: at(DESTINATION_TUNNEL_KIND).map_or(Some(0), one)?,
            port: at(DESTINATION_TUNNEL_PORT).map_or(Some(0), be16)?,
            flags: at(DESTINATION_TUNNEL_FLAGS).map_or(Some(0), ne16)?,
        },
        active: counter(DESTINATION_ACTIVE)?,
        inactive: counter(DESTINATION_INACTIVE)?,
        persistent: counter(DESTINATION_PERSISTENT)?,
        unknown,
    })
}

/// Address and port of a destination: those that [`parse_destination`] gives. Attributes after them are read only where the
/// destination is a tunnel's end: only a tunnel's end may be of another family than its service (`ip_vs_genl_set_cmd`,
/// ip_vs_ctl.c, Linux 3.18), and the attribute with the family comes late.
pub(in crate::ipvs) fn parse_destination_address(payload: &[u8], family: Family) -> Option<SocketAddr> {
    let mut own_family = None;
    let mut raw_address = None;
    let mut port = None;
    let mut forward = None;
    let mut rest = find(body(payload)?, DESTINATION)?;
    while !rest.is_empty() {
        let (attribute, after) = split(rest)?;
        rest = after;
        match attribute.kind() {
            DESTINATION_ADDRESS => raw_address = Some(<[u8; 16]>::try_from(attribute.value).ok()?),
            DESTINATION_PORT => port = Some(be16(attribute.value)?),
            DESTINATION_FORWARD => forward = Some(Forward::from_raw(ne32(attribute.value)?)),
            DESTINATION_FAMILY => own_family = Some(Family::from_raw(ne16(attribute.value)?)?),
            _ => continue,
        }
        if let (Some(raw_address), Some(port), Some(forward)) = (raw_address, port, forward)
            && forward != Forward::Tunnel
        {
            return Some(SocketAddr::new(address(own_family.unwrap_or(family), raw_address), port));
        }
    }
    Some(SocketAddr::new(address(own_family.unwrap_or(family), raw_address?), port?))
}
