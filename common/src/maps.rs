use crate::{
    Addr,
    verdict::{ActionField, VerdictField},
};

/// Bits of [`BackendEntry::flags`].
pub mod backend_flags {
    /// A host-network backend: it shares its address with its node, so only the ports in `ports` are its own.
    pub const PORT_SCOPED: u32 = 1;
    /// The backend is on this machine: the kubelet's probes, and all else that sockets of the machine send to it without translation, pass.
    pub const OWN: u32 = 2;
}

/// Bits of a value of `ports`.
pub mod port_flags {
    /// Packets to this address, port and protocol are subject to the node's verdict. Under a key of [`super::port_kinds::EXEMPT`]: they are
    /// so although the address is exempt.
    pub const CUT: u32 = 1;
    /// Packets to this address, port and protocol pass whatever the node's verdict says. Only under a key of
    /// [`super::port_kinds::EXEMPT`]. Under the key of a whole address, all packets to it pass but those to ports that a key cuts.
    pub const EXEMPT: u32 = 2;
}

/// Values of [`PortKey::kind`]. Exemptions have keys of their own: they change with flags, endpoints change with the cluster. So the two
/// writers never share a value.
pub mod port_kinds {
    /// A host-network endpoint.
    pub const ENDPOINT: u8 = 0;
    /// An exempt port of any backend. Under port 0 and protocol 0: an exempt address. Also a port of such an address that is cut all the same.
    pub const EXEMPT: u8 = 1;
}

/// Bits of [`Config::flags`].
pub mod config_flags {
    /// Hand every packet that would be answered in place to user space instead: this kernel does not translate a
    /// redirected answer back (missing fix de2c211868b9, "ipvs: Always clear ipvs_property flag in skb_scrub_packet()").
    pub const INJECT: u32 = 1;
}

/// Value of `backends` (key: [`Addr`]).
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BackendEntry {
    /// Index into `nodes`.
    pub node: u32,
    /// The generation that the node's entry had when this was written; another one in `nodes` means that the index
    /// has a new owner, and the packet passes.
    pub generation: u32,
    /// [`backend_flags`].
    pub flags: u32,
}

/// Key of `ports`: one host-network endpoint, or one port or address that is exempt. Value: [`port_flags`] as `u32`.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct PortKey {
    /// The backend's address.
    pub addr: Addr,
    /// Port in host byte order.
    pub port: u16,
    /// IP protocol number: 6 TCP, 17 UDP, 132 SCTP.
    pub protocol: u8,
    /// One of [`port_kinds`].
    pub kind: u8,
}

impl PortKey {
    /// Of a host-network endpoint.
    #[inline(always)]
    pub const fn endpoint(addr: Addr, port: u16, protocol: u8) -> Self {
        Self { addr, port, protocol, kind: port_kinds::ENDPOINT }
    }

    /// Of a port that is exempt, or that is cut although its address is exempt.
    #[inline(always)]
    pub const fn exempt(addr: Addr, port: u16, protocol: u8) -> Self {
        Self { addr, port, protocol, kind: port_kinds::EXEMPT }
    }

    /// Of an address that is a backend as a whole and is exempt, but for the ports that keys of their own cut.
    #[inline(always)]
    pub const fn exempt_address(addr: Addr) -> Self {
        Self::exempt(addr, 0, 0)
    }
}

/// Value of `nodes` (key: node index). Written by the agent only.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NodeEntry {
    /// A [`crate::Verdict`].
    pub verdict: VerdictField,
    /// An [`crate::Action`].
    pub action: ActionField,
    /// CLOCK_MONOTONIC nanoseconds up to which the verdict holds.
    pub until: u64,
    /// Grows each time the index gets a new owner.
    pub generation: u32,
    /// The node's name, filled with zeros, for whoever reads the map. One of more than 28 bytes stands as its first 8 bytes, `~`,
    /// eight hex digits of its hash, `~`, and its last 10 bytes.
    pub name: [u8; 28],
}

/// The only value of `config` (index 0).
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Config {
    /// [`config_flags`].
    pub flags: u32,
    /// ICMP answers a second, of the whole machine.
    pub icmp_per_second: u32,
    /// Sampled cuts a second and CPU that reach the ring buffer.
    pub samples_per_second: u32,
    /// Always zero.
    pub zero: u32,
}

/// The only value of `limits` (index 0, per CPU): what this CPU spent of its budget of samples in the current second.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Limits {
    /// CLOCK_MONOTONIC second that the count belongs to.
    pub second: u64,
    /// Samples in that second.
    pub samples: u32,
    /// Always zero.
    pub zero: u32,
}

/// The only value of `icmp_budget` and of `answer_budget` (index 0 of each): what all CPUs spent of that budget in the current second.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Budget {
    /// CLOCK_MONOTONIC second that the count belongs to.
    pub second: u64,
    /// Answers in that second.
    pub spent: u64,
}

/// Value of `devices` (key: ifindex as `u32`): what the XDP program must know of the device it runs on.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Device {
    /// The device's own MAC address.
    pub mac: [u8; 6],
    /// 1 where VLAN devices stand on it, else 0: a frame without a tag may then have lost it before XDP.
    pub vlans: u8,
    /// 1 where XDP is attached generically, else 0: a frame is an skb then, whose checksum may be left to the device.
    pub generic: u8,
}

/// Key of `macs`: a MAC address of a device of this network namespace. Value: always 1. Value of `route_vlans`: see [`RouteVlan`].
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct MacKey {
    /// The address.
    pub mac: [u8; 6],
    /// Zero, but for [`MacKey::NONE`].
    pub zero: [u8; 2],
}

impl MacKey {
    /// Of this address.
    pub const fn new(mac: [u8; 6]) -> Self {
        Self { mac, zero: [0; 2] }
    }

    /// No address; no frame's is equal to it.
    pub const NONE: Self = Self { mac: [0xff; 6], zero: [0xff; 2] };
}

/// Key of `route_vlans`: the VLAN by which packets of a route to a backend leave a device. Value: the MAC address that they usually bear, that of the device
/// which the route names; [`MacKey::NONE`] where that device has none. A packet with this address needs no lookup in `macs`.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct RouteVlan {
    /// The device.
    pub ifindex: u32,
    /// VLAN id of the outer tag, which a device may keep beside the frame; 0 where there is none.
    pub outer: u16,
    /// VLAN id of the tag behind it; 0 where there is none.
    pub inner: u16,
}

const _: () = assert!(size_of::<BackendEntry>() == 12);
const _: () = assert!(size_of::<PortKey>() == 20);
const _: () = assert!(size_of::<NodeEntry>() == 48 && align_of::<NodeEntry>() == 8);
const _: () = assert!(size_of::<Config>() == 16);
const _: () = assert!(size_of::<Limits>() == 16);
const _: () = assert!(size_of::<Budget>() == 16);
const _: () = assert!(size_of::<Device>() == 8);
const _: () = assert!(size_of::<MacKey>() == 8);
const _: () = assert!(size_of::<RouteVlan>() == 8);

#[cfg(feature = "user")]
mod pod {
    #![expect(unsafe_code, reason = "aya::Pod is an unsafe trait")]
    use super::{BackendEntry, Budget, Config, Device, Limits, MacKey, NodeEntry, PortKey, RouteVlan};
    use crate::{Addr, Counter};

    // SAFETY: this and all below are repr(C), every bit pattern valid, no padding: the sum of the field sizes is the asserted size.
    unsafe impl aya::Pod for Addr {}
    // SAFETY: see above.
    unsafe impl aya::Pod for BackendEntry {}
    // SAFETY: see above.
    unsafe impl aya::Pod for PortKey {}
    // SAFETY: see above.
    unsafe impl aya::Pod for NodeEntry {}
    // SAFETY: see above.
    unsafe impl aya::Pod for Config {}
    // SAFETY: see above.
    unsafe impl aya::Pod for Limits {}
    // SAFETY: see above.
    unsafe impl aya::Pod for Budget {}
    // SAFETY: see above.
    unsafe impl aya::Pod for Device {}
    // SAFETY: see above.
    unsafe impl aya::Pod for MacKey {}
    // SAFETY: see above.
    unsafe impl aya::Pod for RouteVlan {}
    // SAFETY: see above.
    unsafe impl aya::Pod for Counter {}
}
