//! Reads what the kernel decides by where packets go: policy rules, nexthop objects and the routes that matter.
use std::collections::HashMap;

use netlink_packet_core::{NLM_F_DUMP, NLM_F_REQUEST};
use netlink_sys::protocols::NETLINK_ROUTE;

use super::{error::Error, interfaces::Interface};
use crate::{
    netlink::{Broken, Channel},
    routes::{self, Blocks, Dump, RouteMap, Rule},
};

const RTM_NEWROUTE: u16 = 24;
const RTM_GETROUTE: u16 = 26;
const RTM_NEWRULE: u16 = 32;
const RTM_GETRULE: u16 = 34;
const RTM_NEWNEXTHOP: u16 = 104;
const RTM_GETNEXTHOP: u16 = 106;

/// How often a list is begun anew that changed while it was read.
const TRIES: usize = 10;

/// Reads all of it once, in the calling thread's network namespace. Of routes those are kept that have to do with `blocks`; the others are gone
/// as soon as they were seen, however many there are.
///
/// The kernel does not say where a list of routes changed while it was read: whoever needs it true listens to changes before ([`super::route::Changes`]) and
/// reads again after one.
///
/// # Errors
/// Where the kernel cannot be asked, or rules kept changing.
pub fn read(blocks: &Blocks, devices: &[Interface]) -> Result<RouteMap, Error> {
    let mut channel = Channel::open(NETLINK_ROUTE).map_err(Error::call("open a route netlink socket"))?;
    // Otherwise what is remembered of single addresses is listed as well, which may be much; kernels before 4.20 do not know it.
    let _known = channel.set_strict();
    let mut dump = Dump::default();
    for family in [libc::AF_INET, libc::AF_INET6] {
        // `struct fib_rule_hdr` and `struct rtmsg`: the family, and nothing else asked for.
        let mut header = [0; 12];
        header[0] = family as u8;
        dump.rules.extend(list(&mut channel, RTM_GETRULE, &header, RTM_NEWRULE, routes::rule)?);
        dump.routes.extend(list(&mut channel, RTM_GETROUTE, &header, RTM_NEWROUTE, |body| {
            routes::route(body, |range| blocks.touch(range))
        })?);
    }
    if dump.rules.is_empty() {
        dump.rules = Rule::defaults();
    }
    // `struct nhmsg`.
    let objects = list(&mut channel, RTM_GETNEXTHOP, &[0; 8], RTM_NEWNEXTHOP, routes::object)?;
    dump.objects = objects.into_iter().collect::<HashMap<_, _>>();
    dump.vrfs = devices.iter().filter_map(|device| device.vrf).collect();
    Ok(RouteMap::new(dump))
}

/// What one list has that `parse` makes something of. Nothing where the kernel was built without it.
fn list<T>(
    channel: &mut Channel,
    kind: u16,
    header: &[u8],
    answer: u16,
    parse: impl Fn(&[u8]) -> Option<T>,
) -> Result<Vec<T>, Error> {
    let what = || format!("list what decides where packets go (rtnetlink {kind})");
    for _ in 0..TRIES {
        let mut found = Vec::new();
        let request = request(channel, kind, header);
        let exchanged = channel.exchange(&request, |kind, body| {
            if kind == answer {
                found.extend(parse(body));
            }
        });
        match exchanged {
            Ok(_datagrams) => return Ok(found),
            Err(Broken::Retry) => {}
            Err(Broken::Refused(libc::EOPNOTSUPP | libc::EAFNOSUPPORT)) => return Ok(Vec::new()),
            Err(Broken::Refused(errno)) => {
                return Err(Error::call(what())(std::io::Error::from_raw_os_error(errno)));
            }
            Err(Broken::Io(error)) => return Err(Error::call(what())(error)),
        }
    }
    Err(Error::call(what())(std::io::Error::from_raw_os_error(libc::EINTR)))
}

/// `struct nlmsghdr` and the family's own header.
fn request(channel: &mut Channel, kind: u16, header: &[u8]) -> Vec<u8> {
    let len = 16 + header.len() as u32;
    let mut bytes = len.to_ne_bytes().to_vec();
    bytes.extend(kind.to_ne_bytes());
    bytes.extend((NLM_F_REQUEST | NLM_F_DUMP).to_ne_bytes());
    bytes.extend(channel.next_sequence().to_ne_bytes());
    bytes.extend([0; 4]);
    bytes.extend(header);
    bytes
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;

    use super::*;
    use crate::dataplane::{interfaces, route::Lookup};

    #[test]
    fn this_machine_s_routes_are_those_that_the_kernel_answers_by() {
        let addresses = ["127.0.0.1", "::1", "192.0.2.1", "10.0.0.1", "2001:db8::1", "8.8.8.8"];
        let addresses = addresses.map(|address| address.parse::<IpAddr>().unwrap());
        let mut blocks = Blocks::default();
        for address in addresses {
            blocks.add(address);
        }
        let map = read(&blocks, &interfaces::list().unwrap()).unwrap();
        assert!(map.routes() > 0);
        let mut lookup = Lookup::open().unwrap();
        for address in addresses {
            let ways = map.ways(address);
            match lookup.route(address).unwrap() {
                Some(route) if route.local => assert!(ways.local, "{address}: {ways:?}"),
                Some(route) => {
                    assert!(ways.devices.contains(&route.ifindex), "{address}: {route:?}, {ways:?}");
                }
                None => assert!(!ways.local, "{address}: {ways:?}"),
            }
        }
    }
}
