use std::net::{IpAddr, SocketAddr};

use netlink_packet_core::{
    NLM_F_ACK, NLM_F_DUMP, NLM_F_REQUEST, NetlinkHeader, NetlinkMessage, NetlinkPayload,
};
use netlink_packet_generic::{
    GenlMessage,
    ctrl::{GenlCtrl, GenlCtrlCmd, nlas::GenlCtrlAttrs},
};

use super::{
    super::{Destination, Family, Netmask, Service, ServiceKey, Tunnel, attribute::Attribute, flags},
    *,
};

/// Few requests are longer.
const ROOM: usize = 256;
/// Few services are written with more attributes.
const SERVICE_ATTRIBUTES: usize = 10;

/// The commands of the family that are used.
#[derive(Clone, Copy, Debug)]
pub(in crate::ipvs) enum Request<'a> {
    NewService(&'a Service),
    SetService(&'a Service),
    DeleteService(&'a ServiceKey),
    /// One.
    GetService(&'a ServiceKey),
    /// All.
    Services,
    NewDestination(&'a ServiceKey, &'a Destination),
    SetDestination(&'a ServiceKey, &'a Destination),
    DeleteDestination(&'a ServiceKey, SocketAddr),
    /// All of one service.
    Destinations(&'a ServiceKey),
    /// Answered by an IPVS that is there.
    GetInfo,
}

impl<'a> Request<'a> {
    /// The whole message. `family` is the number that the kernel gave to the family.
    pub(in crate::ipvs) fn encode(&self, family: u16, sequence: u32) -> Vec<u8> {
        let dump = matches!(self, Self::Services | Self::Destinations(_));
        let flags = NLM_F_REQUEST | if dump { NLM_F_DUMP } else { NLM_F_ACK };
        let mut out = Vec::with_capacity(ROOM);
        // struct nlmsghdr, whose length is not known yet, and struct genlmsghdr.
        out.extend_from_slice(&[0; 4]);
        out.extend_from_slice(&family.to_ne_bytes());
        out.extend_from_slice(&flags.to_ne_bytes());
        out.extend_from_slice(&sequence.to_ne_bytes());
        out.extend_from_slice(&[0; 4]);
        out.extend_from_slice(&[self.command(), FAMILY_VERSION, 0, 0]);
        self.body().iter().for_each(|attribute| attribute.append(&mut out));
        let len = out.len() as u32;
        out[..4].copy_from_slice(&len.to_ne_bytes());
        out
    }

    /// `IPVS_CMD_*`.
    fn command(&self) -> u8 {
        match self {
            Self::NewService(_) => 1,
            Self::SetService(_) => 2,
            Self::DeleteService(_) => 3,
            Self::GetService(_) | Self::Services => 4,
            Self::NewDestination(..) => 5,
            Self::SetDestination(..) => 6,
            Self::DeleteDestination(..) => 7,
            Self::Destinations(_) => 8,
            Self::GetInfo => 15,
        }
    }

    fn body(&self) -> Vec<Attribute<'a>> {
        let of = |key| Attribute::nest(SERVICE, service_key(key));
        match *self {
            Self::NewService(service) | Self::SetService(service) => {
                vec![Attribute::nest(SERVICE, whole_service(service))]
            }
            Self::DeleteService(key) | Self::GetService(key) | Self::Destinations(key) => vec![of(key)],
            Self::NewDestination(key, destination) | Self::SetDestination(key, destination) => {
                vec![of(key), Attribute::nest(DESTINATION, whole_destination(destination))]
            }
            Self::DeleteDestination(key, address) => {
                vec![of(key), Attribute::nest(DESTINATION, destination_key(address))]
            }
            Self::Services | Self::GetInfo => Vec::new(),
        }
    }
}

/// Asks the kernel for the number that it gave to the family; read by [`parse_family_number`].
pub(in crate::ipvs) fn family_request(sequence: u32) -> Vec<u8> {
    let body = vec![GenlCtrlAttrs::FamilyName(FAMILY_NAME.to_owned())];
    let message = GenlMessage::from_payload(GenlCtrl { cmd: GenlCtrlCmd::GetFamily, nlas: body });
    let mut header = NetlinkHeader::default();
    (header.flags, header.sequence_number) = (NLM_F_REQUEST | NLM_F_ACK, sequence);
    let mut message = NetlinkMessage::new(header, NetlinkPayload::InnerMessage(message));
    message.finalize();
    let mut out = vec![0; message.buffer_len()];
    message.serialize(&mut out);
    out
}

/// IPv4 in the first four bytes.
fn address_bytes(address: IpAddr) -> [u8; 16] {
    match address {
        IpAddr::V4(v4) => {
            let mut bytes = [0; 16];
            bytes[..4].copy_from_slice(&v4.octets());
            bytes
        }
        IpAddr::V6(v6) => v6.octets(),
    }
}

fn service_key<'a>(key: &ServiceKey) -> Vec<Attribute<'a>> {
    let mut out = Vec::with_capacity(SERVICE_ATTRIBUTES);
    out.push(Attribute::bytes(SERVICE_FAMILY, (key.family() as u16).to_ne_bytes()));
    match key {
        ServiceKey::Address { address, protocol } => out.extend([
            Attribute::bytes(SERVICE_PROTOCOL, protocol.0.to_ne_bytes()),
            Attribute::bytes(SERVICE_ADDRESS, address_bytes(address.ip())),
            Attribute::bytes(SERVICE_PORT, address.port().to_be_bytes()),
        ]),
        ServiceKey::Mark { mark, .. } => out.push(Attribute::u32(SERVICE_MARK, *mark)),
    }
    out
}

/// `ip_vs_genl_parse_service` wants all but the engine, for a new one and for a change.
fn whole_service(service: &Service) -> Vec<Attribute<'_>> {
    let mut out = service_key(&service.key);
    out.push(Attribute::text(SERVICE_SCHEDULER, service.scheduler.as_str()));
    out.extend(
        service
            .persistence_engine
            .as_ref()
            .map(|name| Attribute::text(SERVICE_PERSISTENCE_ENGINE, name.as_str())),
    );
    let mut both = [0; 8];
    both[..4].copy_from_slice(&(service.flags.bits & !flags::HASHED).to_ne_bytes());
    both[4..].copy_from_slice(&service.flags.mask.to_ne_bytes());
    let netmask = match service.netmask {
        Netmask::V4(mask) => mask.octets(),
        Netmask::V6(bits) => bits.to_ne_bytes(),
    };
    out.extend([
        Attribute::bytes(SERVICE_FLAGS, both),
        Attribute::u32(SERVICE_TIMEOUT, service.timeout),
        Attribute::bytes(SERVICE_NETMASK, netmask),
    ]);
    out.extend(service.unknown.iter().map(Attribute::kept));
    out
}

fn destination_key<'a>(address: SocketAddr) -> Vec<Attribute<'a>> {
    vec![
        Attribute::bytes(DESTINATION_FAMILY, (Family::of(address.ip()) as u16).to_ne_bytes()),
        Attribute::bytes(DESTINATION_ADDRESS, address_bytes(address.ip())),
        Attribute::bytes(DESTINATION_PORT, address.port().to_be_bytes()),
    ]
}

/// `ip_vs_genl_parse_dest` wants method, weight and thresholds, and takes what else is missing for 0.
fn whole_destination(destination: &Destination) -> Vec<Attribute<'_>> {
    let Tunnel { kind, port, flags } = destination.tunnel;
    let mut out = destination_key(destination.address);
    out.extend([
        Attribute::u32(DESTINATION_FORWARD, destination.forward.raw()),
        Attribute::u32(DESTINATION_WEIGHT, destination.weight),
        Attribute::bytes(DESTINATION_TUNNEL_KIND, [kind]),
        Attribute::bytes(DESTINATION_TUNNEL_PORT, port.to_be_bytes()),
        Attribute::bytes(DESTINATION_TUNNEL_FLAGS, flags.to_ne_bytes()),
        Attribute::u32(DESTINATION_UPPER, destination.upper_threshold),
        Attribute::u32(DESTINATION_LOWER, destination.lower_threshold),
    ]);
    out.extend(destination.unknown.iter().map(Attribute::kept));
    out
}
