use std::{
    fmt,
    net::{Ipv4Addr, SocketAddr},
};

use super::Name;
use crate::Family;

/// Bits of [`Flags::bits`] (`IP_VS_SVC_F_*`, ip_vs.h).
pub mod flags {
    /// A client stays with its destination for the service's timeout.
    pub const PERSISTENT: u32 = 1;
    /// The service is in the kernel's table. The kernel's own: never written, as a new service with it would never be found
    /// (`ip_vs_svc_hash`, ip_vs_ctl.c).
    pub const HASHED: u32 = 1 << 1;
    /// `sh`: fall back to another destination; `mh`: likewise.
    pub const SCHEDULER_1: u32 = 1 << 3;
}

/// IP protocol of a service, by its number. IPVS balances TCP, UDP and SCTP; others can stand in its table.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Protocol(pub u16);

impl Protocol {
    /// TCP.
    pub const TCP: Self = Self(6);
    /// UDP.
    pub const UDP: Self = Self(17);
    /// SCTP.
    pub const SCTP: Self = Self(132);
}

impl fmt::Display for Protocol {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::TCP => f.write_str("TCP"),
            Self::UDP => f.write_str("UDP"),
            Self::SCTP => f.write_str("SCTP"),
            Self(number) => write!(f, "protocol {number}"),
        }
    }
}

impl fmt::Debug for Protocol {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// The identity of a virtual service.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub enum ServiceKey {
    /// Packets to this address, port and protocol; port 0 is every port (persistent services only).
    Address {
        /// Virtual address and port.
        address: SocketAddr,
        /// Protocol.
        protocol: Protocol,
    },
    /// Packets of this family that a firewall rule marked; the mark is never 0.
    Mark {
        /// Family of the packets.
        family: Family,
        /// The mark.
        mark: u32,
    },
}

impl ServiceKey {
    /// Family of the service's packets. Its destinations have the same one, but for those that are reached through a tunnel.
    pub fn family(&self) -> Family {
        match self {
            Self::Address { address, .. } => Family::of(address.ip()),
            Self::Mark { family, .. } => *family,
        }
    }
}

impl fmt::Display for ServiceKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Address { address, protocol } => write!(f, "{protocol} {address}"),
            Self::Mark { family: Family::V4, mark } => write!(f, "mark {mark}"),
            Self::Mark { family: Family::V6, mark } => write!(f, "mark {mark} IPv6"),
        }
    }
}

/// A service's flags as they are read and written (`struct ip_vs_flags`).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Flags {
    /// See [`flags`].
    pub bits: u32,
    /// Which bits a change writes; the others stay as they are. The kernel reports all bits.
    pub mask: u32,
}

/// Which clients count as one for persistence.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Netmask {
    /// IPv4 netmask.
    V4(Ipv4Addr),
    /// IPv6 prefix length, in bits.
    V6(u32),
}

impl Netmask {
    /// Each client by itself.
    pub fn full(family: Family) -> Self {
        match family {
            Family::V4 => Self::V4(Ipv4Addr::BROADCAST),
            Family::V6 => Self::V6(128),
        }
    }
}

/// A virtual service without its destinations.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Service {
    /// The service's identity.
    pub key: ServiceKey,
    /// Scheduler.
    pub scheduler: Name,
    /// Flags.
    pub flags: Flags,
    /// Seconds that a client stays with its destination; 0 without persistence.
    pub timeout: u32,
    /// Which clients count as one for persistence; of the service's family.
    pub netmask: Netmask,
    /// Persistence engine.
    pub persistence_engine: Option<Name>,
    /// Attributes unknown here, by their types with the flags in them: written back as they were read.
    pub unknown: Vec<(u16, Vec<u8>)>,
}

impl Service {
    /// A service without persistence, as kube-proxy makes them without session affinity.
    pub fn new(key: ServiceKey, scheduler: Name) -> Self {
        Self {
            key,
            scheduler,
            flags: Flags { bits: 0, mask: u32::MAX },
            timeout: 0,
            netmask: Netmask::full(key.family()),
            persistence_engine: None,
            unknown: Vec::new(),
        }
    }
}

/// How packets get to a destination (`IP_VS_CONN_F_*`).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Forward {
    /// The destination address is translated.
    Masquerade,
    /// Delivered to this machine.
    Local,
    /// Encapsulated.
    Tunnel,
    /// Sent to the destination's MAC address.
    Route,
    /// Cache bypass.
    Bypass,
    /// Another number of a later kernel.
    Other(u32),
}

impl Forward {
    /// By its number (`IP_VS_CONN_F_FWD_MASK`).
    pub fn from_raw(raw: u32) -> Self {
        match raw {
            0 => Self::Masquerade,
            1 => Self::Local,
            2 => Self::Tunnel,
            3 => Self::Route,
            4 => Self::Bypass,
            other => Self::Other(other),
        }
    }

    /// Its number.
    pub fn raw(self) -> u32 {
        match self {
            Self::Masquerade => 0,
            Self::Local => 1,
            Self::Tunnel => 2,
            Self::Route => 3,
            Self::Bypass => 4,
            Self::Other(other) => other,
        }
    }
}

/// Encapsulation of a tunnelled destination; all 0 for the others.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Tunnel {
    /// 0 is IPIP, 1 GUE, 2 GRE (`IP_VS_CONN_F_TUNNEL_TYPE_*`).
    pub kind: u8,
    /// UDP port of GUE.
    pub port: u16,
    /// Checksums (`IP_VS_TUNNEL_ENCAP_FLAG_*`).
    pub flags: u16,
}

/// A destination (real server) of a service. Its own traffic counts are not kept: nothing needs them, and there may be a hundred thousand.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Destination {
    /// Address and port: the identity among a service's destinations. A tunnel's end may be of another family than the service.
    pub address: SocketAddr,
    /// How packets get there.
    pub forward: Forward,
    /// Share of new connections; 0 is none at all. Above 2^31-1 the kernel refuses it.
    pub weight: u32,
    /// From this many connections on it counts as overloaded; 0 is never.
    pub upper_threshold: u32,
    /// Below this many connections it is no longer overloaded; 0 is three quarters of the upper one.
    pub lower_threshold: u32,
    /// Encapsulation.
    pub tunnel: Tunnel,
    /// Connections that carry traffic (TCP: established). Read only.
    pub active: u32,
    /// All other connections. Read only.
    pub inactive: u32,
    /// Persistence templates. Read only.
    pub persistent: u32,
    /// Attributes unknown here, by their types with the flags in them: written back as they were read.
    pub unknown: Vec<(u16, Vec<u8>)>,
}

impl Destination {
    /// A destination behind NAT without thresholds, as kube-proxy makes them.
    pub fn new(address: SocketAddr, weight: u32) -> Self {
        Self {
            address,
            forward: Forward::Masquerade,
            weight,
            upper_threshold: 0,
            lower_threshold: 0,
            tunnel: Tunnel::default(),
            active: 0,
            inactive: 0,
            persistent: 0,
            unknown: Vec::new(),
        }
    }

    /// Whether connections still refer to the destination, closed ones included.
    pub fn has_connections(&self) -> bool {
        self.active > 0 || self.inactive > 0
    }

    /// Whether connections or persistence templates still refer to the destination.
    pub fn is_used(&self) -> bool {
        self.has_connections() || self.persistent > 0
    }
}
