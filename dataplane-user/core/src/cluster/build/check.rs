//! What is wrong with an object by itself.

use std::{
    collections::{HashMap, HashSet},
    net::IpAddr,
};

use super::{
    super::object::{NodeObject, ServiceObject},
    values::{check_address, check_node_name, check_port_name, check_service_name},
};
use crate::Family;

/// A field, and what is wrong with it.
pub(super) type Fault = (String, String);

/// The faults of a node by itself. A node with one of them is as if it were not there.
pub(super) fn node(node: &NodeObject) -> Vec<Fault> {
    let mut faults = Vec::new();
    faults.extend(check_node_name(&node.name).err().map(|why| ("name".to_owned(), why)));
    addresses("addresses", &node.addresses, &mut faults);
    for (b, backend) in node.backends.iter().enumerate() {
        let fault = check_address(backend.address).err();
        faults.extend(fault.map(|why| (format!("backends[{b}].address"), why)));
    }
    faults
}

/// The faults of a Service by itself. A Service with one of them is as if it were not there.
pub(super) fn service(service: &ServiceObject) -> Vec<Fault> {
    let mut faults = Vec::new();
    faults.extend(check_service_name(&service.name).err().map(|why| ("name".to_owned(), why)));
    for (field, ips) in lists(service) {
        addresses(field, ips, &mut faults);
    }
    for family in Family::ALL {
        if service.cluster_ips.iter().filter(|ip| Family::of(**ip) == family).count() > 1 {
            let why = "more than one address of one IP version: a Service has one cluster IP of each";
            faults.push(("clusterIPs".to_owned(), why.to_owned()));
        }
    }
    if service.ports.is_empty() && !service.cluster_ips.is_empty() {
        faults.push(("ports".to_owned(), "empty; a Service with a cluster IP has a port".to_owned()));
    }
    let mut names = HashSet::new();
    let mut numbers = HashMap::new();
    for (p, port) in service.ports.iter().enumerate() {
        let mut fault = |what: &str, why: String| faults.push((format!("ports[{p}].{what}"), why));
        if let Err(why) = check_port_name(&port.name, service.ports.len()) {
            fault("name", why);
        } else if !names.insert(&port.name) {
            fault("name", format!("another port has the name `{}`", port.name));
        }
        if let Some(other) = numbers.insert((port.port, port.protocol), &port.name) {
            fault("port", format!("`{other}` has {}/{} already", port.port, port.protocol));
        }
    }
    faults
}

/// A Service's lists of virtual addresses, by the source's names of them.
pub(super) fn lists(service: &ServiceObject) -> [(&'static str, &[IpAddr]); 3] {
    [
        ("clusterIPs", &service.cluster_ips),
        ("externalIPs", &service.external_ips),
        ("loadBalancerIPs", &service.load_balancer_ips),
    ]
}

fn addresses(field: &str, ips: &[IpAddr], faults: &mut Vec<Fault>) {
    for (i, ip) in ips.iter().enumerate() {
        faults.extend(check_address(*ip).err().map(|why| (format!("{field}[{i}]"), why)));
    }
}
