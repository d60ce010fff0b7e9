use std::{
    collections::{HashMap, HashSet},
    net::IpAddr,
};

use super::{
    FlaggedNode, Holding, Hop, decide,
    neighbours::{Neighbour, State},
};

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

fn node(hop: &str) -> (FlaggedNode, Hop) {
    let own = HashSet::from([ip("10.2.0.12"), ip("10.244.2.2")]);
    let hop = Hop { ifindex: 7, address: ip(hop) };
    (FlaggedNode { own, hops: vec![hop] }, hop)
}

const MAC: &[u8] = &[2, 0, 0, 0, 0, 2];

fn entry(state: u16) -> Neighbour {
    Neighbour { state: State(state), mac: MAC.to_vec(), router: false, external: false }
}

#[test]
fn the_node_itself_is_held() {
    for hop in ["10.2.0.12", "10.244.2.2"] {
        let (node, hop) = node(hop);
        // REACHABLE, STALE, FAILED, INCOMPLETE, gone.
        for entry in [Some(entry(2)), Some(entry(4)), Some(entry(0x20)), Some(entry(1)), None] {
            assert_eq!(decide(&node, hop, entry.as_ref(), Some(MAC), &HashMap::new()), Holding::Held);
        }
        assert_eq!(decide(&node, hop, None, None, &HashMap::new()), Holding::Unknown);
    }
}

#[test]
fn a_router_is_left_alone() {
    let (node, hop) = node("10.2.0.1");
    assert_eq!(decide(&node, hop, Some(&entry(2)), Some(MAC), &HashMap::new()), Holding::NotTheNode);
    assert_eq!(decide(&node, hop, None, None, &HashMap::new()), Holding::NotTheNode);
    let behind_another = HashMap::from([((7, MAC.to_vec()), ip("10.2.0.13"))]);
    assert_eq!(decide(&node, hop, Some(&entry(2)), Some(MAC), &behind_another), Holding::NotTheNode);
}

#[test]
fn the_inner_entry_of_a_tunnel_is_the_node_s_where_the_tunnel_says_so() {
    let (node, hop) = node("10.42.0.2");
    let behind = HashMap::from([((7, MAC.to_vec()), ip("10.2.0.12"))]);
    assert_eq!(decide(&node, hop, Some(&entry(0x20)), Some(MAC), &behind), Holding::Held);
    let other_device = HashMap::from([((8, MAC.to_vec()), ip("10.2.0.12"))]);
    assert_eq!(decide(&node, hop, Some(&entry(0x20)), Some(MAC), &other_device), Holding::NotTheNode);
}

#[test]
fn what_does_not_age_needs_no_help() {
    let (node, hop) = node("10.2.0.12");
    for state in [0x40, 0x80] {
        assert_eq!(decide(&node, hop, Some(&entry(state)), Some(MAC), &HashMap::new()), Holding::Fixed);
    }
    let external = Neighbour { external: true, ..entry(4) };
    assert_eq!(decide(&node, hop, Some(&external), Some(MAC), &HashMap::new()), Holding::Fixed);
}
