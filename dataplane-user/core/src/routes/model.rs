//! Types for the kernel's routing, as far as it decides by which device a packet leaves.
use std::net::IpAddr;

use super::prefix::Prefix;
use crate::Family;

/// Numbers of tables that the kernel makes itself (include/uapi/linux/rtnetlink.h).
pub(super) const TABLE_DEFAULT: u32 = 253;
pub(super) const TABLE_MAIN: u32 = 254;
pub(super) const TABLE_LOCAL: u32 = 255;

/// One next hop.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Hop {
    /// Index of the device; 0 where there is none.
    pub ifindex: u32,
    /// The router, where the address is not on the link.
    pub gateway: Option<IpAddr>,
    /// Whether it is not used because its device is down (`RTNH_F_DEAD`).
    pub dead: bool,
    /// Whether its device has no carrier (`RTNH_F_LINKDOWN`): then a sysctl decides whether it is used.
    pub linkdown: bool,
    /// Packets are changed or wrapped on this way (`lwtunnel_encap_types`, include/uapi/linux/lwtunnel.h).
    pub encap: Option<u16>,
}

/// What becomes of a packet.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Fate {
    /// It leaves.
    Leaves,
    /// It is this machine's.
    Local,
    /// It is refused or dropped (unreachable, prohibit, blackhole).
    Refused,
    /// It goes on to the next rule (throw).
    NextRule,
    /// Unknown here: a type of route (`RTN_*`).
    Unknown(u8),
}

/// A route. Among routes with the same range, those of the lowest metric go first, as the kernel listed them.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Route {
    /// Where to.
    pub to: Prefix,
    /// In which table.
    pub table: u32,
    /// Lower goes first.
    pub metric: u32,
    /// Whether it holds only for some packets: of a type of service, or (IPv6) from some sources.
    pub only_some: bool,
    /// What it does.
    pub fate: Fate,
    /// Its next hops; none where it refuses.
    pub hops: Vec<Hop>,
    /// The nexthop object that has its next hops, where the kernel does not list these in the route
    /// (`net.ipv4.nexthop_compat_mode` 0).
    pub object: Option<u32>,
}

/// A nexthop object.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Object {
    /// One way.
    Hop(Hop),
    /// Drops.
    Blackhole,
    /// Several others, by their numbers.
    Group(Vec<u32>),
}

/// What a rule does with what it matches.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Action {
    /// Looks into a table; where that has no route, the packet goes on to the next rule.
    Table(u32),
    /// Looks into the table of the VRF that the packet is in.
    VrfTable,
    /// Goes on with the rule of this priority.
    Goto(u32),
    /// Nothing.
    Nop,
    /// Refuses or drops.
    Refuse,
}

/// A policy rule.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Rule {
    /// Whose packets.
    pub family: Family,
    /// Lower goes first; rules of one priority go as the kernel lists them.
    pub priority: u32,
    /// The destination; everywhere where there is none.
    pub to: Option<Prefix>,
    /// Whether it also asks for what differs from packet to packet: source, mark, device, user, ports, type of service.
    pub only_some: bool,
    /// Whether it asks for a device that does not exist: no packet can have come by that.
    pub detached: bool,
    /// A condition of it that this matcher does not know.
    pub unknown: Option<String>,
    /// Whether it holds for packets that do *not* match.
    pub inverted: bool,
    /// Whether routes of this length and shorter ones do not count.
    pub suppressed_len: Option<u8>,
    /// Whether routes by a group of devices do not count.
    pub suppresses_group: bool,
    /// What it does.
    pub action: Action,
}

impl Rule {
    /// A rule for all packets.
    pub fn for_all(family: Family, priority: u32, action: Action) -> Self {
        Self {
            family,
            priority,
            to: None,
            only_some: false,
            detached: false,
            unknown: None,
            inverted: false,
            suppressed_len: None,
            suppresses_group: false,
            action,
        }
    }

    /// The kernel's rules where nobody changed them (`fib_default_rules_init`, net/ipv4/fib_rules.c; `fib6_rules_net_init`,
    /// net/ipv6/fib6_rules.c). They also hold where the kernel was built without policy rules.
    pub fn defaults() -> Vec<Self> {
        let of = |family, priority, table| Self::for_all(family, priority, Action::Table(table));
        vec![
            of(Family::V4, 0, TABLE_LOCAL),
            of(Family::V4, 32766, TABLE_MAIN),
            of(Family::V4, 32767, TABLE_DEFAULT),
            of(Family::V6, 0, TABLE_LOCAL),
            of(Family::V6, 32766, TABLE_MAIN),
        ]
    }
}

/// An IPsec policy for packets that leave.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Policy {
    /// Lower goes first.
    pub priority: u32,
    /// Where to.
    pub to: Prefix,
    /// Whether it also asks for what differs from packet to packet: source, protocol, ports, device, user, socket.
    pub only_some: bool,
    /// Whether it asks for a mark.
    pub marked: bool,
    /// Whether it has packets wrapped; otherwise it has them pass as they are, or refuses them.
    pub wraps: bool,
}

impl Policy {
    /// Whether it holds for all packets to its range that no earlier policy took.
    pub fn is_for_all(&self) -> bool {
        !self.only_some && !self.marked
    }
}

/// All IPsec policies for packets that leave.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Policies {
    /// The policies that decide anything.
    pub list: Vec<Policy>,
    /// Why the policies could not be read.
    pub unread: Option<String>,
}

/// Where packets to an address may go.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Ways {
    /// The way (device and router) of a packet that no rule treats apart; where there is none, the first way that some packet may take.
    pub main: Option<(u32, Option<IpAddr>)>,
    /// Every device that some packet may leave by, in order, each once.
    pub devices: Vec<u32>,
    /// Whether the address is this machine's own.
    pub local: bool,
    /// How IPsec wraps packets to the address, and by which policy.
    pub wrapped: Option<String>,
    /// Why not all ways are known.
    pub unknown: Option<String>,
}
