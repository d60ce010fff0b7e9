//! Reads what decides where the kernel sends packets: policy rules, nexthop objects and the routes that matter.
use std::collections::HashMap;

use super::{
    error::Error,
    interfaces::Interface,
    netlink::{Netlink, RTM_GETROUTE, Request},
};
use crate::routes::{self, Blocks, Dump, Policies, RouteMap, Rule};

const RTM_NEWROUTE: u16 = 24;
const RTM_NEWRULE: u16 = 32;
const RTM_GETRULE: u16 = 34;
const RTM_NEWNEXTHOP: u16 = 104;
const RTM_GETNEXTHOP: u16 = 106;

/// Reads all of this once, in the calling thread's network namespace. Only routes that concern `blocks` are stored. All others are dropped
/// as they are read, however many there are. `policies` are the IPsec policies as they were read before ([`super::policies`]).
///
/// The kernel does not say whether a list of routes changed while it was read. A caller that needs a consistent result listens to changes
/// before ([`super::route::Changes`]), and reads again after a change.
///
/// # Errors
/// Fails if the kernel refuses a request, or if the rules kept changing.
pub fn read(blocks: &Blocks, devices: &[Interface], policies: Policies) -> Result<RouteMap, Error> {
    let mut netlink = Netlink::open()?;
    netlink.set_strict();
    let mut dump = Dump { policies, ..Dump::default() };
    for family in [libc::AF_INET, libc::AF_INET6] {
        // `struct fib_rule_hdr` and `struct rtmsg`, of which only the family is set.
        let mut header = [0; 12];
        header[0] = family as u8;
        dump.rules.extend(list(&mut netlink, RTM_GETRULE, &header, RTM_NEWRULE, routes::rule)?);
        dump.routes.extend(list(&mut netlink, RTM_GETROUTE, &header, RTM_NEWROUTE, |body| {
            routes::route(body, |range| blocks.touch(range))
        })?);
    }
    if dump.rules.is_empty() {
        dump.rules = Rule::defaults();
    }
    // `struct nhmsg`.
    let objects = list(&mut netlink, RTM_GETNEXTHOP, &[0; 8], RTM_NEWNEXTHOP, routes::object)?;
    dump.objects = objects.into_iter().collect::<HashMap<_, _>>();
    dump.vrfs = devices.iter().filter_map(|device| device.vrf).collect();
    Ok(RouteMap::new(dump))
}

/// What `parse` makes of the answers of one list. Empty if the kernel was built without that list.
fn list<T>(
    netlink: &mut Netlink,
    kind: u16,
    header: &[u8],
    answer: u16,
    parse: impl Fn(&[u8]) -> Option<T>,
) -> Result<Vec<T>, Error> {
    let parse = |kind, body: &[u8]| if kind == answer { parse(body) } else { None };
    match netlink.ask_for(&Request::list(kind, header), parse) {
        Err(refusal) if [libc::EOPNOTSUPP, libc::EAFNOSUPPORT].contains(&refusal.errno) => Ok(Vec::new()),
        other => other.map_err(|refusal| {
            refusal.into_error(format!("list what decides where packets go (rtnetlink {kind})"))
        }),
    }
}
