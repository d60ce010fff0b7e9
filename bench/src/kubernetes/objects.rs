//! The objects of the cluster, as controllers and people write them. Pure.
use std::net::Ipv4Addr;

use serde_json::{Value, json};

use super::sizes::{EACH, LARGE, Sizes};

/// The address of node 0, where the agent runs.
pub(super) const OWN: Ipv4Addr = Ipv4Addr::new(192, 168, 2, 1);
/// How many endpoints of the Service that is restarted a slice has, which is what the endpoints controller fills it to.
pub(super) const FULL: usize = 100;

pub(super) fn node(number: usize) -> String {
    format!("node-{number}")
}

/// The address of a node other than node 0.
fn node_address(number: usize) -> Ipv4Addr {
    Ipv4Addr::from_bits(Ipv4Addr::new(172, 16, 0, 0).to_bits() + number as u32)
}

/// The address of an endpoint. The ranges of ClusterIPs, 10.96.0.0/16, and of endpoints are apart.
fn endpoint_address(number: usize) -> Ipv4Addr {
    Ipv4Addr::from_bits(Ipv4Addr::new(10, 128, 0, 0).to_bits() + number as u32)
}

pub(super) fn member(number: usize) -> Value {
    let address = if number == 0 { OWN } else { node_address(number) };
    json!({
        "apiVersion": "nodefence.io/v1alpha1", "kind": "NodeMember", "metadata": {"name": node(number)},
        "spec": {"uid": uid(number), "addresses": [address], "zone": zone(number)},
    })
}

fn zone(node: usize) -> String {
    format!("zone-{}", node % 3)
}

/// The number of the first endpoint of the Service that is restarted. Those of ordinary Services come before.
const FIRST_OF_LARGE: usize = 1_000_000;

fn uid(number: usize) -> String {
    format!("00000000-0000-4000-8000-{number:012x}")
}

fn service_name(number: usize) -> String {
    format!("service-{number}")
}

pub(super) fn service(number: usize) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Service",
        "metadata": {"name": service_name(number), "labels": labels(number)},
        "spec": {
            "selector": {"app.kubernetes.io/name": service_name(number)},
            "ports": [
                {"name": "http", "port": 80, "targetPort": 8080, "protocol": "TCP"},
                {"name": "metrics", "port": 9090, "targetPort": 9090, "protocol": "TCP"},
            ],
        },
    })
}

fn labels(service: usize) -> Value {
    json!({
        "app.kubernetes.io/name": service_name(service), "app.kubernetes.io/part-of": "bench",
        "app.kubernetes.io/managed-by": "Helm", "helm.sh/chart": "bench-1.2.3",
    })
}

/// The only slice of a Service.
pub(super) fn slice(number: usize, sizes: Sizes) -> Value {
    let first = number * EACH;
    slice_of(&format!("{}-x7k2p", service_name(number)), number, first..first + EACH, sizes)
}

/// A slice of the Service that is restarted, which comes after the others. `restarted`: how many of its endpoints were replaced since the begin, one after
/// the other and from the first again after the last. An endpoint that was replaced twice has its first address again.
pub(super) fn large_slice(number: usize, restarted: usize, sizes: Sizes) -> Value {
    let (rounds, within) = (restarted / LARGE, restarted % LARGE);
    let endpoint = |place| {
        let replaced = rounds + usize::from(place < within);
        FIRST_OF_LARGE + place + LARGE * (replaced % 2)
    };
    let places = number * FULL..(number + 1) * FULL;
    slice_of(&large_name(number, sizes), sizes.services, places.map(endpoint), sizes)
}

/// The name of such a slice.
pub(super) fn large_name(number: usize, sizes: Sizes) -> String {
    format!("{}-{number}", service_name(sizes.services))
}

fn slice_of(name: &str, service: usize, endpoints: impl Iterator<Item = usize>, sizes: Sizes) -> Value {
    let mut labels = labels(service);
    labels["kubernetes.io/service-name"] = json!(service_name(service));
    labels["endpointslice.kubernetes.io/managed-by"] = json!("endpointslice-controller.k8s.io");
    let owner = json!({
        "apiVersion": "v1", "kind": "Service", "name": service_name(service), "uid": uid(service),
        "controller": true, "blockOwnerDeletion": true,
    });
    json!({
        "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": "IPv4",
        "metadata": {"name": name, "labels": labels, "ownerReferences": [owner]},
        "ports": [
            {"name": "http", "port": 8080, "protocol": "TCP"}, {"name": "metrics", "port": 9090, "protocol": "TCP"},
        ],
        "endpoints": endpoints.map(|number| endpoint(number, sizes)).collect::<Vec<_>>(),
    })
}

fn endpoint(number: usize, sizes: Sizes) -> Value {
    let on = number % sizes.members;
    json!({
        "addresses": [endpoint_address(number)], "nodeName": node(on), "zone": zone(on),
        "conditions": {"ready": true, "serving": true, "terminating": false},
        "targetRef": {
            "kind": "Pod", "namespace": "default", "name": format!("pod-7c5ddbdf54-{number:06}"),
            "uid": uid(number),
        },
    })
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    /// The addresses of the endpoints of a slice.
    fn addresses(slice: &Value) -> Vec<String> {
        let endpoints = slice["endpoints"].as_array().expect("endpoints");
        endpoints.iter().map(|endpoint| endpoint["addresses"][0].to_string()).collect()
    }

    #[test]
    fn each_endpoint_has_an_address_of_its_own() {
        let sizes = Sizes { members: 7, services: 20 };
        let ordinary = (0..sizes.services).flat_map(|number| addresses(&slice(number, sizes)));
        let large = |restarted| {
            (0..LARGE / FULL).flat_map(move |number| addresses(&large_slice(number, restarted, sizes)))
        };
        let all: Vec<String> = ordinary.chain(large(0)).chain(large(LARGE)).collect();
        assert_eq!(all.len(), sizes.services * EACH + 2 * LARGE);
        assert_eq!(all.iter().collect::<BTreeSet<_>>().len(), all.len());
    }

    #[test]
    fn a_restart_changes_one_endpoint_after_the_other() {
        let sizes = Sizes { members: 7, services: 20 };
        let of = |number, restarted| addresses(&large_slice(number, restarted, sizes));
        for begin in [0, LARGE, 2 * LARGE] {
            let (before, after) = (of(0, begin), of(0, begin + 1));
            assert_ne!(before[0], after[0]);
            assert_eq!(before[1..], after[1..]);
            assert_eq!(of(1, begin), of(1, begin + FULL));
            assert_ne!(of(1, begin), of(1, begin + FULL + 1));
        }
        assert_eq!(of(4, 0), of(4, 2 * LARGE));
        assert!(of(4, 0).iter().all(|address| !of(4, LARGE).contains(address)));
    }
}
