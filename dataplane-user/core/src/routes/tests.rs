use std::{collections::HashMap, net::IpAddr};

use super::*;

const ETH0: u32 = 2;
const ETH1: u32 = 3;
const WG: u32 = 4;

fn prefix(text: &str) -> Prefix {
    let (address, len) = text.split_once('/').unwrap();
    Prefix::new(address.parse().unwrap(), len.parse().unwrap()).unwrap()
}

fn hop(ifindex: u32) -> Hop {
    Hop { ifindex, gateway: None, dead: false, linkdown: false, encap: None }
}

fn to(table: u32, range: &str, devices: &[u32]) -> Route {
    Route {
        to: prefix(range),
        table,
        metric: 0,
        only_some: false,
        fate: Fate::Leaves,
        hops: devices.iter().copied().map(hop).collect(),
        object: None,
    }
}

fn fate(table: u32, range: &str, fate: Fate) -> Route {
    Route { fate, ..to(table, range, &[]) }
}

fn rule(priority: u32, action: Action) -> Rule {
    Rule::for_all(Family::V4, priority, action)
}

/// A rule that holds for some packets.
fn some(priority: u32, action: Action) -> Rule {
    Rule { only_some: true, ..rule(priority, action) }
}

fn with(rules: Vec<Rule>) -> Vec<Rule> {
    Rule::defaults().into_iter().chain(rules).collect()
}

fn map(rules: Vec<Rule>, routes: Vec<Route>) -> RouteMap {
    RouteMap::new(Dump { rules, routes, ..Dump::default() })
}

fn ways(map: &RouteMap, address: &str) -> Ways {
    Ways::clone(map.ways(address.parse().unwrap()))
}

/// The main device and all.
fn devices(map: &RouteMap, address: &str) -> (Option<u32>, Vec<u32>) {
    let ways = ways(map, address);
    assert_eq!(ways.unknown, None);
    (ways.main.map(|(ifindex, _)| ifindex), ways.devices)
}

#[test]
fn the_longest_range_of_the_first_table_that_has_one_decides() {
    let routes = vec![
        to(254, "0.0.0.0/0", &[ETH0]),
        to(254, "10.1.0.0/16", &[ETH1]),
        Route { metric: 5, ..to(254, "10.1.0.0/16", &[WG]) },
        fate(254, "10.2.0.0/16", Fate::Refused),
        fate(254, "10.3.0.0/16", Fate::NextRule),
        to(253, "10.3.3.0/24", &[WG]),
        fate(255, "10.9.9.9/32", Fate::Local),
        to(254, "::/0", &[WG]),
    ];
    let map = map(Rule::defaults(), routes);
    assert_eq!(devices(&map, "8.8.8.8"), (Some(ETH0), vec![ETH0]));
    assert_eq!(devices(&map, "10.1.255.255"), (Some(ETH1), vec![ETH1]));
    assert_eq!(devices(&map, "10.2.0.0"), (None, vec![]));
    assert_eq!(devices(&map, "10.3.0.1"), (None, vec![]));
    assert_eq!(devices(&map, "10.3.3.1"), (Some(WG), vec![WG]));
    assert!(ways(&map, "10.9.9.9").local && !ways(&map, "10.9.9.8").local);
    assert_eq!(devices(&map, "2001:db8::1"), (Some(WG), vec![WG]));
    assert_eq!(map.routes(), 8);
}

#[test]
fn every_table_that_a_rule_may_lead_to_counts() {
    // The second interface of a cloud's network plugin: pods with its addresses as source leave by it.
    let routes =
        vec![to(254, "10.0.0.0/16", &[ETH0]), to(2, "0.0.0.0/0", &[ETH1]), to(254, "0.0.0.0/0", &[ETH0])];
    let both = map(with(vec![some(1536, Action::Table(2))]), routes.clone());
    assert_eq!(devices(&both, "10.0.7.7"), (Some(ETH0), vec![ETH0, ETH1]));
    // A rule that holds for all packets to a range leaves none to the rules behind it.
    let ruled = Rule { to: Some(prefix("10.0.7.0/24")), ..rule(1000, Action::Table(2)) };
    let only = map(with(vec![ruled.clone()]), routes.clone());
    assert_eq!(devices(&only, "10.0.7.7"), (Some(ETH1), vec![ETH1]));
    assert_eq!(devices(&only, "10.0.8.7"), (Some(ETH0), vec![ETH0]));
    // Inverted, it holds for all others.
    let others = map(with(vec![Rule { inverted: true, ..ruled }]), routes.clone());
    assert_eq!(devices(&others, "10.0.7.7"), (Some(ETH0), vec![ETH0]));
    assert_eq!(devices(&others, "10.0.8.7"), (Some(ETH1), vec![ETH1]));
    // No packet comes by a device that does not exist, and all do not.
    let gone = Rule { detached: true, ..some(1000, Action::Table(2)) };
    let none = map(with(vec![gone.clone()]), routes.clone());
    assert_eq!(devices(&none, "10.0.7.7"), (Some(ETH0), vec![ETH0]));
    let all = map(with(vec![Rule { inverted: true, ..gone }]), routes.clone());
    assert_eq!(devices(&all, "10.0.7.7"), (Some(ETH1), vec![ETH1]));
    // Only packets for which the rule holds are refused.
    let refuses = map(with(vec![some(1000, Action::Refuse)]), routes.clone());
    assert_eq!(devices(&refuses, "10.0.7.7"), (Some(ETH0), vec![ETH0]));
    let refuses = map(with(vec![rule(1000, Action::Refuse)]), routes);
    assert_eq!(devices(&refuses, "10.0.7.7"), (None, vec![]));
}

#[test]
fn wireguard_s_rules_lead_by_both_devices() {
    let rules = vec![
        Rule { suppressed_len: Some(0), ..rule(32764, Action::Table(254)) },
        Rule { inverted: true, ..some(32765, Action::Table(51820)) },
    ];
    let routes = vec![
        to(51820, "0.0.0.0/0", &[WG]),
        to(254, "0.0.0.0/0", &[ETH0]),
        to(254, "192.168.0.0/24", &[ETH1]),
    ];
    let map = map(with(rules), routes);
    assert_eq!(devices(&map, "192.168.0.7"), (Some(ETH1), vec![ETH1]));
    // WireGuard's own packets go by the other table, and cannot be told apart here.
    assert_eq!(devices(&map, "10.0.0.1").1, [ETH0, WG]);
}

#[test]
fn a_jump_passes_over_rules() {
    let routes =
        vec![to(10, "0.0.0.0/0", &[ETH0]), to(20, "0.0.0.0/0", &[ETH1]), to(254, "0.0.0.0/0", &[WG])];
    let rules = |first: Rule| {
        with(vec![first, rule(110, Action::Table(10)), rule(120, Action::Nop), rule(130, Action::Table(20))])
    };
    let jumps = map(rules(rule(100, Action::Goto(120))), routes.clone());
    assert_eq!(devices(&jumps, "1.1.1.1"), (Some(ETH1), vec![ETH1]));
    let some_jump = map(rules(some(100, Action::Goto(120))), routes.clone());
    assert_eq!(devices(&some_jump, "1.1.1.1"), (Some(ETH0), vec![ETH0, ETH1]));
    let nowhere = map(rules(rule(100, Action::Goto(119))), routes);
    assert_eq!(devices(&nowhere, "1.1.1.1"), (Some(ETH0), vec![ETH0]));
}

#[test]
fn what_is_down_leaves_the_way_to_what_is_behind() {
    let hops = |range: &str, hops: Vec<Hop>| Route { hops, ..to(254, range, &[]) };
    let dead = |ifindex| Hop { dead: true, ..hop(ifindex) };
    let down = |ifindex| Hop { linkdown: true, ..hop(ifindex) };
    let routes = vec![
        to(254, "0.0.0.0/0", &[WG]),
        hops("10.1.0.0/16", vec![dead(ETH0)]),
        hops("10.2.0.0/16", vec![down(ETH0)]),
        hops("10.3.0.0/16", vec![dead(ETH0), hop(ETH1)]),
    ];
    let map = map(Rule::defaults(), routes);
    assert_eq!(devices(&map, "10.1.0.1"), (Some(WG), vec![WG]));
    // A sysctl decides.
    assert_eq!(devices(&map, "10.2.0.1").1, [ETH0, WG]);
    assert_eq!(devices(&map, "10.3.0.1"), (Some(ETH1), vec![ETH0, ETH1]));
}

#[test]
fn a_route_for_some_packets_leaves_the_others_to_the_next() {
    let tos = Route { only_some: true, ..to(254, "10.1.0.0/16", &[ETH1]) };
    let map = map(Rule::defaults(), vec![to(254, "10.1.0.0/16", &[ETH0]), tos]);
    assert_eq!(devices(&map, "10.1.0.1"), (Some(ETH0), vec![ETH0, ETH1]));
}

#[test]
fn ipv6_takes_any_route_of_the_lowest_metric() {
    let at = |metric, device| Route { metric, ..to(254, "fd00::/64", &[device]) };
    let map = map(Rule::defaults(), vec![at(10, ETH0), at(10, ETH1), at(20, WG)]);
    assert_eq!(devices(&map, "fd00::1"), (Some(ETH0), vec![ETH0, ETH1]));
}

#[test]
fn untouched_ipv4_rules_have_local_and_main_in_one() {
    let routes = || {
        vec![
            fate(255, "10.0.0.0/8", Fate::Local),
            to(254, "10.1.0.0/16", &[ETH0]),
            to(254, "0.0.0.0/0", &[ETH1]),
        ]
    };
    let untouched = map(Rule::defaults(), routes());
    assert_eq!(devices(&untouched, "10.1.0.1"), (Some(ETH0), vec![ETH0]));
    assert!(ways(&untouched, "10.2.0.1").local);
    let touched = map(with(vec![rule(100, Action::Nop)]), routes());
    assert!(ways(&touched, "10.1.0.1").local);
}

#[test]
fn nexthop_objects_are_followed() {
    let by = |range: &str, object| Route { object: Some(object), ..to(254, range, &[]) };
    let map = RouteMap::new(Dump {
        rules: Rule::defaults(),
        routes: vec![by("10.1.0.0/16", 1), by("10.2.0.0/16", 3), by("10.3.0.0/16", 4), by("10.4.0.0/16", 9)],
        objects: HashMap::from([
            (1, Object::Hop(hop(ETH0))),
            (2, Object::Hop(hop(ETH1))),
            (3, Object::Group(vec![1, 2])),
            (4, Object::Blackhole),
        ]),
        ..Dump::default()
    });
    assert_eq!(devices(&map, "10.1.0.1"), (Some(ETH0), vec![ETH0]));
    assert_eq!(devices(&map, "10.2.0.1"), (Some(ETH0), vec![ETH0, ETH1]));
    assert_eq!(devices(&map, "10.3.0.1"), (None, vec![]));
    assert!(ways(&map, "10.4.0.1").unknown.is_some());
}

#[test]
fn what_is_not_known_is_said_where_it_may_matter() {
    let strange = Rule {
        to: Some(prefix("10.1.0.0/16")),
        unknown: Some("a tunnel's key".to_owned()),
        ..rule(50, Action::Table(7))
    };
    let wrapped = Route { hops: vec![Hop { encap: Some(5), ..hop(ETH1) }], ..to(254, "10.3.0.0/16", &[]) };
    let routes = vec![to(254, "0.0.0.0/0", &[ETH0]), wrapped, to(77, "10.2.0.0/16", &[WG])];
    let vrf = rule(1000, Action::VrfTable);
    let of = |vrfs: Vec<u32>| {
        let rules = with(vec![strange.clone(), vrf.clone()]);
        RouteMap::new(Dump { rules, routes: routes.clone(), vrfs, ..Dump::default() })
    };
    let without = of(Vec::new());
    let unknown = |map: &RouteMap, address: &str| ways(map, address).unknown;
    assert_eq!(unknown(&without, "10.1.0.1").unwrap(), "policy rule 50 asks for a tunnel's key");
    assert_eq!(ways(&without, "10.1.0.1").devices, [ETH0]);
    assert_eq!(unknown(&without, "10.2.0.1"), None);
    assert_eq!(unknown(&without, "10.3.0.1").unwrap(), "a route wraps packets (seg6)");
    let vrfs = of(vec![77]);
    assert!(unknown(&vrfs, "10.2.0.1").unwrap().contains("VRF"));
    assert_eq!(unknown(&vrfs, "10.9.0.1"), None);
}

#[test]
fn of_ipsec_policies_the_first_that_holds_for_all_decides() {
    let policy = |priority, range: &str| Policy {
        priority,
        to: prefix(range),
        only_some: false,
        marked: false,
        wraps: true,
    };
    let passes = |priority, range: &str| Policy { wraps: false, ..policy(priority, range) };
    let some = |priority, range: &str| Policy { only_some: true, ..policy(priority, range) };
    let list = vec![
        policy(20, "10.1.0.0/16"),
        // What is wrapped but for some ranges, as a VPN's gateway has it.
        passes(10, "10.1.2.0/24"),
        // Behind the policy for all packets it has no effect; before it, it has.
        passes(30, "10.1.3.0/24"),
        some(5, "10.1.2.7/32"),
        // Which policy of one priority is the older is not known.
        passes(20, "10.1.4.0/24"),
        Policy { marked: true, ..policy(1, "10.2.0.0/16") },
        some(9, "fd00::/64"),
    ];
    let routes = vec![to(254, "0.0.0.0/0", &[ETH0]), to(254, "::/0", &[ETH0])];
    let of = |policies| {
        RouteMap::new(Dump { rules: Rule::defaults(), routes: routes.clone(), policies, ..Dump::default() })
    };
    let map = of(Policies { list, unread: None });
    let wrapped = |address: &str| ways(&map, address).wrapped;
    let all = Some("leaves by IPsec (policy to 10.1.0.0/16)".to_owned());
    assert_eq!(wrapped("10.0.255.255"), None);
    assert_eq!(wrapped("10.1.0.0"), all);
    assert_eq!(wrapped("10.1.2.0"), None);
    assert_eq!(wrapped("10.1.3.1"), all);
    assert_eq!(wrapped("10.1.2.7"), Some("may leave by IPsec (policy to 10.1.2.7/32)".to_owned()));
    assert_eq!(wrapped("10.1.4.1"), all);
    assert_eq!(wrapped("fd00::1"), Some("may leave by IPsec (policy to fd00::/64)".to_owned()));
    assert_eq!(wrapped("fd00:0:0:1::"), None);
    let marked = ways(&map, "10.2.0.1");
    assert_eq!(marked.wrapped, None);
    assert_eq!(marked.unknown.unwrap(), "the IPsec policy to 10.2.0.0/16 asks for a mark");
    let unread = of(Policies { list: Vec::new(), unread: Some("not permitted".to_owned()) });
    assert_eq!(ways(&unread, "10.9.0.1").unknown.unwrap(), "IPsec policies cannot be read: not permitted");
}

#[test]
fn all_addresses_of_a_stretch_have_the_same_ways() {
    // Compared with the matcher for each address, at the ends of ranges and their neighbours.
    let ranges =
        ["0.0.0.0/0", "10.0.0.0/8", "10.1.0.0/16", "10.1.128.0/17", "10.1.128.7/32", "255.255.255.255/32"];
    let routes: Vec<Route> =
        ranges.iter().zip(1..).map(|(range, device)| to(254, range, &[device])).collect();
    let map = map(Rule::defaults(), routes.clone());
    for range in routes.iter().map(|route| route.to) {
        for at in [range.first(), range.last()] {
            let address = (at >> 96) as u32;
            for address in [address.wrapping_sub(1), address, address.wrapping_add(1)] {
                let longest = routes.iter().filter(|route| route.to.has(u128::from(address) << 96));
                let longest = longest.max_by_key(|route| route.to.bits()).unwrap();
                let asked = IpAddr::V4(address.into());
                assert_eq!(map.ways(asked).devices, [longest.hops[0].ifindex], "{asked}");
            }
        }
    }
}
