//! Decodes messages about rules, routes, nexthop objects and IPsec policies (include/uapi/linux/rtnetlink.h, fib_rules.h,
//! nexthop.h, xfrm.h). An unknown attribute is passed over where it decides nothing, and named where it may decide something.
use nodefence_core::routes::{Action, Family, Fate, Hop, Object, Policy, Prefix, Route, Rule};

use crate::netlink::{address_of, attributes, u16_of, u32_of};

/// `RTM_F_CLONED` marks what the kernel remembers of one address (the MTU of its path), which is no route.
const CLONED: u32 = 0x200;
const RTNH_F_DEAD: u32 = 1;
const RTNH_F_LINKDOWN: u32 = 16;

/// The change that a message of the routing groups reports.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Changed {
    /// A route to this range was added or removed.
    Route(Prefix),
    /// Nothing changed that decides where packets go.
    Nothing,
    /// A device changed, but none was added or removed, or went up or down.
    Device,
    /// Rules, nexthop objects or addresses changed, or a device was added or removed, or went up or down. IPv4 routes vanish with
    /// a device, and no message says which.
    Any,
}

/// The change that a message of this type (`RTM_*`) reports.
pub fn changed(kind: u16, body: &[u8]) -> Changed {
    const RTM_NEWLINK: u16 = 16;
    const RTM_NEWROUTE: u16 = 24;
    const RTM_DELROUTE: u16 = 25;
    /// IFF_UP, IFF_RUNNING, IFF_LOWER_UP in `ifi_change`: all bits are set there for a new device.
    const UP_OR_DOWN: u32 = 0x1 | 0x40 | 0x1_0000;
    match kind {
        RTM_NEWLINK => match body.get(12..).and_then(u32_of) {
            Some(change) if change & UP_OR_DOWN == 0 => Changed::Device,
            _ => Changed::Any,
        },
        RTM_NEWROUTE | RTM_DELROUTE => match destination(body) {
            Some((_, flags)) if flags & CLONED != 0 => Changed::Nothing,
            Some((to, _)) => Changed::Route(to),
            None => Changed::Nothing,
        },
        _ => Changed::Any,
    }
}

/// The range that a route (`struct rtmsg` and attributes) leads to, and the route's flags. Nothing else is read: a full table has
/// a million routes.
fn destination(body: &[u8]) -> Option<(Prefix, u32)> {
    const RTA_DST: u16 = 1;
    let family = Family::from_raw(u16::from(*body.first()?))?;
    let len = *body.get(1)?;
    let flags = u32_of(body.get(8..)?)?;
    if len == 0 {
        return Some((Prefix::all(family), flags));
    }
    let to = attributes(body.get(12..)?).find(|(kind, _)| *kind == RTA_DST)?.1;
    Some((Prefix::new(address_of(to)?, len)?, flags))
}

/// A route whose range `wanted` accepts; `None` for other routes, and for messages that describe no route.
pub fn route(body: &[u8], wanted: impl FnOnce(Prefix) -> bool) -> Option<Route> {
    const RTA_OIF: u16 = 4;
    const RTA_GATEWAY: u16 = 5;
    const RTA_PRIORITY: u16 = 6;
    const RTA_MULTIPATH: u16 = 9;
    const RTA_TABLE: u16 = 15;
    const RTA_VIA: u16 = 18;
    const RTA_ENCAP_TYPE: u16 = 21;
    const RTA_NH_ID: u16 = 30;
    let (to, flags) = destination(body).filter(|(to, flags)| flags & CLONED == 0 && wanted(*to))?;
    let mut route = Route {
        to,
        table: u32::from(*body.get(4)?),
        metric: 0,
        // Bytes 2 and 3: the length of the range of sources, and the type of service.
        only_some: *body.get(2)? != 0 || *body.get(3)? != 0,
        fate: fate(*body.get(7)?),
        hops: Vec::new(),
        object: None,
    };
    let mut hop = hop(flags);
    for (kind, value) in attributes(body.get(12..)?) {
        match kind {
            RTA_OIF => hop.ifindex = u32_of(value)?,
            RTA_GATEWAY => hop.gateway = address_of(value),
            // A router of the other family: `struct rtvia` is the family and the address.
            RTA_VIA => hop.gateway = address_of(value.get(2..)?),
            RTA_PRIORITY => route.metric = u32_of(value)?,
            RTA_TABLE => route.table = u32_of(value)?,
            RTA_ENCAP_TYPE => hop.encap = u16_of(value),
            RTA_NH_ID => route.object = u32_of(value),
            RTA_MULTIPATH => route.hops = hops(value),
            _ => {}
        }
    }
    if hop.ifindex != 0 || hop.encap.is_some() {
        route.hops.push(hop);
    }
    if !route.hops.is_empty() {
        // The message itself has the hops, also all those of a nexthop object with several.
        route.object = None;
    }
    Some(route)
}

fn fate(kind: u8) -> Fate {
    match kind {
        // RTN_UNICAST, RTN_BROADCAST, RTN_MULTICAST.
        1 | 3 | 5 => Fate::Leaves,
        // RTN_LOCAL, RTN_ANYCAST.
        2 | 4 => Fate::Local,
        // RTN_BLACKHOLE, RTN_UNREACHABLE, RTN_PROHIBIT.
        6..=8 => Fate::Refused,
        // RTN_THROW.
        9 => Fate::NextRule,
        other => Fate::Unknown(other),
    }
}

fn hop(flags: u32) -> Hop {
    Hop {
        ifindex: 0,
        gateway: None,
        dead: flags & RTNH_F_DEAD != 0,
        linkdown: flags & RTNH_F_LINKDOWN != 0,
        encap: None,
    }
}

/// The hops in `RTA_MULTIPATH`: for each hop a `struct rtnexthop` (length, flags, hops, ifindex), and attributes as a route has
/// them.
fn hops(mut bytes: &[u8]) -> Vec<Hop> {
    let mut hops = Vec::new();
    while let Some((len, this)) =
        u16_of(bytes).map(usize::from).and_then(|len| Some((len, bytes.get(..len)?)))
    {
        let (Some(flags), Some(ifindex), Some(rest)) =
            (this.get(2), this.get(4..).and_then(u32_of), this.get(8..))
        else {
            break;
        };
        let mut hop = Hop { ifindex, ..hop(u32::from(*flags)) };
        for (kind, value) in attributes(rest) {
            match kind {
                5 => hop.gateway = address_of(value),
                18 => hop.gateway = value.get(2..).and_then(address_of),
                21 => hop.encap = u16_of(value),
                _ => {}
            }
        }
        hops.push(hop);
        bytes = bytes.get(len.next_multiple_of(4)..).unwrap_or_default();
    }
    hops
}

/// A nexthop object (`struct nhmsg` and attributes) and its number.
pub fn object(body: &[u8]) -> Option<(u32, Object)> {
    const NHA_ID: u16 = 1;
    const NHA_GROUP: u16 = 2;
    const NHA_BLACKHOLE: u16 = 4;
    const NHA_OIF: u16 = 5;
    const NHA_GATEWAY: u16 = 6;
    const NHA_ENCAP_TYPE: u16 = 7;
    /// Length of `struct nexthop_grp`, which begins with the number.
    const MEMBER: usize = 8;
    let mut hop = hop(u32_of(body.get(4..)?)?);
    let mut number = None;
    let mut other = None;
    for (kind, value) in attributes(body.get(8..)?) {
        match kind {
            NHA_ID => number = u32_of(value),
            NHA_GROUP => {
                other = Some(Object::Group(
                    value.as_chunks::<MEMBER>().0.iter().filter_map(|member| u32_of(member)).collect(),
                ));
            }
            NHA_BLACKHOLE => other = Some(Object::Blackhole),
            NHA_OIF => hop.ifindex = u32_of(value)?,
            NHA_GATEWAY => hop.gateway = address_of(value),
            NHA_ENCAP_TYPE => hop.encap = u16_of(value),
            _ => {}
        }
    }
    Some((number?, other.unwrap_or(Object::Hop(hop))))
}

/// A policy rule (`struct fib_rule_hdr` and attributes).
pub fn rule(body: &[u8]) -> Option<Rule> {
    let family = Family::from_raw(u16::from(*body.first()?))?;
    let to_len = *body.get(1)?;
    // Bytes 2 and 3: the length of the range of sources, and the type of service.
    let only_some = *body.get(2)? != 0 || *body.get(3)? != 0;
    let flags = u32_of(body.get(8..)?)?;
    let mut rule = Rule { only_some, ..Rule::for_all(family, 0, Action::Nop) };
    let mut table = u32::from(*body.get(4)?);
    let mut target = None;
    let mut mark = None;
    let mut mask = None;
    let mut vrf = false;
    for (kind, value) in attributes(body.get(12..)?) {
        match kind {
            // FRA_DST.
            1 => rule.to = Some(Prefix::new(address_of(value)?, to_len)?),
            // FRA_IIFNAME, FRA_OIFNAME.
            3 | 17 => rule.only_some = true,
            // FRA_GOTO.
            4 => target = u32_of(value),
            // FRA_PRIORITY.
            6 => rule.priority = u32_of(value)?,
            // FRA_FWMARK, FRA_FWMASK.
            10 => mark = u32_of(value),
            16 => mask = u32_of(value),
            // FRA_SUPPRESS_IFGROUP, FRA_SUPPRESS_PREFIXLEN: all bits are set where the rule suppresses nothing.
            13 => rule.suppresses_group = u32_of(value)? != u32::MAX,
            14 => rule.suppressed_len = u32_of(value).and_then(|len| u8::try_from(len).ok()),
            // FRA_TABLE.
            15 => table = u32_of(value)?,
            // FRA_L3MDEV.
            19 => vrf = value.first() == Some(&1),
            // FRA_UID_RANGE: the first and the last user.
            20 => rule.only_some |= value != [[0; 4], [0xff; 4]].concat(),
            // FRA_IP_PROTO, FRA_SPORT_RANGE, FRA_DPORT_RANGE, FRA_DSCP, FRA_FLOWLABEL, FRA_FLOWLABEL_MASK, FRA_SPORT_MASK,
            // FRA_DPORT_MASK, FRA_DSCP_MASK.
            22..=30 => rule.only_some = true,
            // FRA_SRC is known by its length. FRA_FLOW marks the route that the rule finds, FRA_PAD pads, and FRA_PROTOCOL says who
            // made the rule.
            2 | 11 | 18 | 21 => {}
            // FRA_TUN_ID.
            12 => rule.unknown = Some("a tunnel's key".to_owned()),
            other => rule.unknown = Some(format!("what nodefence does not know (FRA_ {other})")),
        }
    }
    // A mark without a mask is compared as a whole (`fib_nl2rule`). A rule that compares no bit of the mark is for all marks.
    rule.only_some |= mask.or(mark.filter(|mark| *mark != 0)).is_some_and(|mask| mask != 0);
    rule.inverted = flags & 2 != 0;
    // FIB_RULE_IIF_DETACHED, FIB_RULE_OIF_DETACHED.
    rule.detached = flags & 0x18 != 0;
    // FR_ACT_*. The kernel drops packets by an action that it does not know.
    rule.action = match *body.get(7)? {
        1 if vrf => Action::VrfTable,
        1 => Action::Table(table),
        2 => Action::Goto(target?),
        3 => Action::Nop,
        _ => Action::Refuse,
    };
    Some(rule)
}

/// An IPsec policy (`struct xfrm_userpolicy_info` and attributes) that decides whether packets leave unchanged.
pub fn policy(body: &[u8]) -> Option<Policy> {
    const XFRMA_TMPL: u16 = 5;
    const XFRMA_SEC_CTX: u16 = 8;
    const XFRMA_POLICY_TYPE: u16 = 16;
    const XFRMA_MARK: u16 = 21;
    const XFRMA_IF_ID: u16 = 31;
    /// XFRM_POLICY_OUT, and the direction of a socket's own policy (`xfrm_sk_policy_insert`, net/xfrm/xfrm_policy.c).
    const OUT: u8 = 1;
    const OF_SOCKET: u8 = 4;
    const ALLOW: u8 = 0;
    /// Length of `struct xfrm_user_tmpl`.
    const TEMPLATE: usize = 64;
    let direction = *body.get(160)?;
    let family = Family::from_raw(u16_of(body.get(40..)?)?)?;
    let address = body.get(..usize::from(family.bits() / 8))?;
    // The masks of both ports, the length of the range of sources, the protocol, the device and the user.
    let selectors = [body.get(34..36)?, body.get(38..40)?, body.get(43..45)?, body.get(48..56)?];
    let mut policy = Policy {
        priority: u32_of(body.get(152..)?)?,
        to: Prefix::new(address_of(address)?, *body.get(42)?)?,
        only_some: direction == OF_SOCKET || selectors.concat().iter().any(|byte| *byte != 0),
        marked: false,
        wraps: false,
    };
    let allows = *body.get(161)? == ALLOW;
    for (kind, value) in attributes(body.get(168..)?) {
        match kind {
            XFRMA_TMPL => policy.wraps = allows && value.len() >= TEMPLATE,
            XFRMA_SEC_CTX => policy.only_some = true,
            // Beside a policy of the type `sub` the kernel looks at the main policy too (`xfrm_expand_policies`).
            XFRMA_POLICY_TYPE => policy.only_some |= value.first() != Some(&0),
            XFRMA_MARK => policy.marked = true,
            // Such a policy is only for packets that are routed to an XFRM device, where the programs see them unchanged.
            XFRMA_IF_ID if u32_of(value)? != 0 => return None,
            _ => {}
        }
    }
    let decides = policy.wraps || policy.is_for_all();
    (decides && matches!(direction, OUT | OF_SOCKET)).then_some(policy)
}

#[cfg(test)]
mod tests;
