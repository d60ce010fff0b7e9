//! The flows that conntrack knows to backends, as the rows that the CLI prints.

use std::{
    net::{IpAddr, SocketAddr},
    sync::Arc,
};

use nodefence_common::Addr;

use super::{
    chain::chain,
    notes::{Note, no_service},
    reader::Reader,
    refusals::not_found,
    world::World,
};
use crate::{
    cluster::{Backends, ClusterView, Protocol, Service},
    conntrack::{Flow, of_backends},
    report::{Failure, FlowFilter, FlowList, FlowRow, ServiceFilter},
};

/// The flows to backends, of one node or of all, that are asked for.
pub(super) fn flows(world: &World, reader: &Reader, filter: &FlowFilter) -> Result<FlowList, Failure> {
    let view = &world.view;
    let only = filter.node.as_deref();
    if let Some(name) = only.filter(|name| view.node(name).is_none()) {
        return Err(not_found(name, view.source));
    }
    let service = named(view, filter)?;
    let mut backends = Backends::new();
    for node in view.nodes.iter().filter(|node| only.is_none_or(|name| node.name == name)) {
        node.backends.iter().for_each(|backend| backends.add(backend, node.name.clone()));
    }
    let backends = Arc::new(backends);
    let mut flows = Vec::new();
    let mut notes = Vec::new();
    for dump in reader.list_while(of_backends(&backends, None), || {}).map_err(failed)? {
        if dump.incomplete {
            notes.push(Note::FlowsMissing.to_string());
        }
        let rows = dump.flows.iter().filter_map(|flow| Some(flow_row(flow, backends.of_flow(flow)?)));
        flows.extend(rows.filter(|row| is_wanted(filter, service, row)));
    }
    flows.sort_by(|a, b| (&a.node, a.backend, a.client).cmp(&(&b.node, b.backend, b.client)));
    if let Some(limit) = filter.limit.filter(|limit| flows.len() > *limit) {
        notes.push(Note::MoreFlows { more: flows.len() - limit, limit }.to_string());
        flows.truncate(limit);
    }
    Ok(FlowList { items: flows, notes })
}

/// The Service that is asked for by its name.
fn named<'a>(view: &'a ClusterView, filter: &FlowFilter) -> Result<Option<&'a Service>, Failure> {
    let Some(ServiceFilter::Name(name)) = &filter.service else { return Ok(None) };
    let found = view.services.iter().flatten().find(|service| service.name == *name);
    found.map(|service| Some(&**service)).ok_or_else(|| no_service(name, view.source))
}

fn is_wanted(filter: &FlowFilter, service: Option<&Service>, row: &FlowRow) -> bool {
    let at = match filter.service {
        Some(ServiceFilter::At(place)) => Some(place),
        _ => None,
    };
    filter.backend.is_none_or(|backend| backend.has(row.backend))
        && at.is_none_or(|at| at.has(row.service))
        && service.is_none_or(|service| goes_through(service, row))
        && filter.protocol.is_none_or(|protocol| row.protocol == Some(protocol))
}

/// Whether a flow was addressed to the Service: at a virtual address, at a node port, or at an endpoint where the Service is headless. A
/// node port is open at all addresses of a machine, and not all of these are known. So a node port counts where the flow goes on to an
/// endpoint of the Service.
fn goes_through(service: &Service, row: &FlowRow) -> bool {
    let to = row.service;
    let virtual_addresses = [&service.cluster_ips, &service.external_ips, &service.load_balancer_ips];
    let is_virtual = virtual_addresses.into_iter().flatten().any(|address| *address == to.ip());
    let has_endpoint = |port, at| service.endpoints.iter().any(|one| service.socket(port, one) == Some(at));
    service.ports.iter().enumerate().any(|(index, port)| {
        row.protocol == Some(port.protocol)
            && (is_virtual && port.port == to.port()
                || port.node_port == Some(to.port()) && to != row.backend && has_endpoint(index, row.backend)
                || service.is_headless() && has_endpoint(index, to))
    })
}

fn flow_row(flow: &Flow, node: &str) -> FlowRow {
    let end = |addr: Addr, port| SocketAddr::new(IpAddr::from(addr), port);
    FlowRow {
        protocol: Protocol::of(flow.orig.protocol),
        protocol_number: flow.orig.protocol,
        client: end(flow.orig.src, flow.orig.src_port),
        service: end(flow.orig.dst, flow.orig.dst_port),
        backend: flow.backend(),
        node: node.to_owned(),
        state: flow.tcp.map(Into::into),
        zone: flow.zone.map_or(0, |zone| zone.id()),
        timeout_seconds: flow.timeout,
    }
}

fn failed(error: impl Into<anyhow::Error>) -> Failure {
    Failure::failed(chain(error))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster::parse;
    use crate::report::ErrorKind;

    const FILE: &str = "nodes:
- {name: a, address: 10.0.0.1}
- {name: b, address: 10.0.0.2}
services:
- name: default/web
  clusterIPs: [10.96.0.10]
  externalIPs: [192.0.2.10]
  ports:
  - {name: http, port: 80, targetPort: 8080, nodePort: 30080, protocol: tcp}
  - {name: dns, port: 53, targetPort: 5300, protocol: udp}
  endpoints: [{address: 10.1.1.1, node: b}]
- name: default/headless
  ports: [{port: 80, targetPort: 8080, protocol: tcp}]
  endpoints: [{address: 10.1.1.1, node: b}]
";

    fn row(protocol: &str, service: &str) -> FlowRow {
        FlowRow {
            protocol: protocol.parse().ok(),
            protocol_number: 0,
            client: "10.0.0.9:4000".parse().unwrap(),
            service: service.parse().unwrap(),
            backend: "10.1.1.1:8080".parse().unwrap(),
            node: "b".to_owned(),
            state: None,
            zone: 0,
            timeout_seconds: 1,
        }
    }

    fn view() -> ClusterView {
        parse(FILE, false).unwrap()
    }

    fn is_listed(filter: &FlowFilter, row: &FlowRow) -> bool {
        let view = view();
        is_wanted(filter, named(&view, filter).unwrap(), row)
    }

    #[test]
    fn flows_through_a_service_are_known_by_what_they_are_addressed_to() {
        let through = |name: &str, protocol: &str, to: &str| {
            let filter = FlowFilter { service: Some(name.to_owned().into()), ..FlowFilter::default() };
            is_listed(&filter, &row(protocol, to))
        };
        for (protocol, to, web, headless) in [
            ("tcp", "10.96.0.10:80", true, false),
            ("udp", "10.96.0.10:53", true, false),
            ("udp", "10.96.0.10:80", false, false),
            ("tcp", "192.0.2.10:80", true, false),
            ("tcp", "10.0.0.1:30080", true, false),
            ("udp", "10.0.0.1:30080", false, false),
            ("tcp", "192.0.2.1:30080", true, false),
            ("tcp", "192.0.2.1:30081", false, false),
            ("tcp", "10.1.1.1:8080", false, true),
            ("tcp", "10.1.1.1:80", false, false),
        ] {
            assert_eq!(through("default/web", protocol, to), web, "{protocol} {to}");
            assert_eq!(through("default/headless", protocol, to), headless, "{protocol} {to}");
        }
        let elsewhere = FlowRow { backend: "10.1.1.2:8080".parse().unwrap(), ..row("tcp", "10.0.0.1:30080") };
        let web = FlowFilter { service: Some("default/web".to_owned().into()), ..FlowFilter::default() };
        assert!(!is_listed(&web, &elsewhere), "another Service's");
        assert!(through("10.96.0.10", "udp", "10.96.0.10:53"));
        assert!(!through("10.96.0.10:80", "udp", "10.96.0.10:53"));
        let unknown = FlowFilter { service: Some("default/none".to_owned().into()), ..FlowFilter::default() };
        let failure = named(&view(), &unknown).unwrap_err();
        assert_eq!(failure.kind, ErrorKind::NotFound);
        assert!(failure.message.starts_with("there is no Service `default/none` in "), "{failure}");
    }

    #[test]
    fn flows_are_listed_by_backend_and_protocol() {
        let tcp = row("tcp", "10.96.0.10:80");
        let by = |backend: Option<&str>, protocol| FlowFilter {
            backend: backend.map(|backend| backend.parse().unwrap()),
            protocol,
            ..FlowFilter::default()
        };
        for filter in
            [by(None, None), by(Some("10.1.1.1:8080"), Some(Protocol::Tcp)), by(Some("10.1.1.1"), None)]
        {
            assert!(is_listed(&filter, &tcp), "{filter:?}");
        }
        for filter in
            [by(Some("10.1.1.2"), None), by(Some("10.1.1.1:80"), None), by(None, Some(Protocol::Udp))]
        {
            assert!(!is_listed(&filter, &tcp), "{filter:?}");
        }
    }
}
