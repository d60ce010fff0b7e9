use std::net::{IpAddr, SocketAddr};

use netlink_packet_core::{NLM_F_ACK, NLM_F_DUMP, NLM_F_REQUEST};

use super::{
    super::{Destination, Family, Netmask, Service, ServiceKey, Tunnel, flags},
    *,
};
use crate::netlink::{message, nest, put, put_text};

/// The commands of the IPVS family that nodefence uses.
#[derive(Clone, Copy, Debug)]
pub(in crate::ipvs) enum Request<'a> {
    NewService(&'a Service),
    SetService(&'a Service),
    DeleteService(&'a ServiceKey),
    /// Lists one service.
    GetService(&'a ServiceKey),
    /// Lists all services.
    Services,
    NewDestination(&'a ServiceKey, &'a Destination),
    SetDestination(&'a ServiceKey, &'a Destination),
    DeleteDestination(&'a ServiceKey, SocketAddr),
    /// Lists all destinations of one service.
    Destinations(&'a ServiceKey),
    /// Every loaded IPVS answers this request.
    GetInfo,
}

impl Request<'_> {
    /// The whole message. `family` is the number that the kernel gave to the family.
    pub(in crate::ipvs) fn encode(&self, family: u16, sequence: u32) -> Vec<u8> {
        let dump = matches!(self, Self::Services | Self::Destinations(_));
        let flags = NLM_F_REQUEST | if dump { NLM_F_DUMP } else { NLM_F_ACK };
        message(family, flags, sequence, |out| {
            out.extend_from_slice(&[self.command(), FAMILY_VERSION, 0, 0]);
            self.body(out);
        })
    }

    /// The command's number (`IPVS_CMD_*`).
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

    fn body(&self, out: &mut Vec<u8>) {
        match *self {
            Self::NewService(service) | Self::SetService(service) => {
                nest(out, SERVICE, |out| whole_service(out, service));
            }
            Self::DeleteService(key) | Self::GetService(key) | Self::Destinations(key) => {
                nest(out, SERVICE, |out| service_key(out, key));
            }
            Self::NewDestination(key, destination) | Self::SetDestination(key, destination) => {
                nest(out, SERVICE, |out| service_key(out, key));
                nest(out, DESTINATION, |out| whole_destination(out, destination));
            }
            Self::DeleteDestination(key, address) => {
                nest(out, SERVICE, |out| service_key(out, key));
                nest(out, DESTINATION, |out| destination_key(out, address));
            }
            Self::Services | Self::GetInfo => {}
        }
    }
}

/// A request for the number that the kernel gave to the IPVS family. [`parse_family_number`] reads the answer.
pub(in crate::ipvs) fn family_request(sequence: u32) -> Vec<u8> {
    message(CONTROLLER, NLM_F_REQUEST | NLM_F_ACK, sequence, |out| {
        out.extend_from_slice(&[GET_FAMILY, 1, 0, 0]);
        put_text(out, CONTROLLER_NAME, FAMILY_NAME);
    })
}

/// An address as IPVS has it: IPv4 in the first four bytes.
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

fn service_key(out: &mut Vec<u8>, key: &ServiceKey) {
    put(out, SERVICE_FAMILY, &(key.family() as u16).to_ne_bytes());
    match key {
        ServiceKey::Address { address, protocol } => {
            put(out, SERVICE_PROTOCOL, &protocol.0.to_ne_bytes());
            put(out, SERVICE_ADDRESS, &address_bytes(address.ip()));
            put(out, SERVICE_PORT, &address.port().to_be_bytes());
        }
        ServiceKey::Mark { mark, .. } => put(out, SERVICE_MARK, &mark.to_ne_bytes()),
    }
}

/// `ip_vs_genl_parse_service` requires all of these attributes but the persistence engine, for a new service and for a change.
fn whole_service(out: &mut Vec<u8>, service: &Service) {
    service_key(out, &service.key);
    put_text(out, SERVICE_SCHEDULER, service.scheduler.as_str());
    if let Some(engine) = &service.persistence_engine {
        put_text(out, SERVICE_PERSISTENCE_ENGINE, engine.as_str());
    }
    let bits = service.flags.bits & !flags::HASHED;
    put(out, SERVICE_FLAGS, &[bits.to_ne_bytes(), service.flags.mask.to_ne_bytes()].concat());
    put(out, SERVICE_TIMEOUT, &service.timeout.to_ne_bytes());
    let netmask = match service.netmask {
        Netmask::V4(mask) => mask.octets(),
        Netmask::V6(bits) => bits.to_ne_bytes(),
    };
    put(out, SERVICE_NETMASK, &netmask);
    put_unknown(out, &service.unknown);
}

/// Writes the attributes that nodefence does not know, as they were read.
fn put_unknown(out: &mut Vec<u8>, unknown: &[(u16, Vec<u8>)]) {
    unknown.iter().for_each(|(kind, value)| put(out, *kind, value));
}

fn destination_key(out: &mut Vec<u8>, address: SocketAddr) {
    put(out, DESTINATION_FAMILY, &(Family::of(address.ip()) as u16).to_ne_bytes());
    put(out, DESTINATION_ADDRESS, &address_bytes(address.ip()));
    put(out, DESTINATION_PORT, &address.port().to_be_bytes());
}

/// `ip_vs_genl_parse_dest` requires the forwarding method, the weight and the thresholds. It takes any other missing attribute
/// as 0.
fn whole_destination(out: &mut Vec<u8>, destination: &Destination) {
    let Tunnel { kind, port, flags } = destination.tunnel;
    destination_key(out, destination.address);
    put(out, DESTINATION_FORWARD, &destination.forward.raw().to_ne_bytes());
    put(out, DESTINATION_WEIGHT, &destination.weight.to_ne_bytes());
    put(out, DESTINATION_TUNNEL_KIND, &[kind]);
    put(out, DESTINATION_TUNNEL_PORT, &port.to_be_bytes());
    put(out, DESTINATION_TUNNEL_FLAGS, &flags.to_ne_bytes());
    put(out, DESTINATION_UPPER, &destination.upper_threshold.to_ne_bytes());
    put(out, DESTINATION_LOWER, &destination.lower_threshold.to_ne_bytes());
    put_unknown(out, &destination.unknown);
}
