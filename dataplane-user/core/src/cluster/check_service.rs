use std::{
    collections::{BTreeMap, HashMap, HashSet},
    net::IpAddr,
    sync::Arc,
    time::Duration,
};

use super::{
    check::{Checker, protocol_of},
    error::Problem,
    node::{NodeIx, NodeName},
    place::{Place, Placed},
    protocol::Protocol,
    raw::{RawEndpoint, RawHints, RawPort, RawService},
    service::{DEFAULT_AFFINITY, Endpoint, Family, Hints, Service, ServicePort, TrafficPolicy},
    values::{check_service_name, is_label, parse_address, parse_number, parse_port},
    view::{Backend, Scope},
};

/// The longest affinity that Kubernetes allows, in seconds (`validateClientIPAffinityConfig`, pkg/apis/core/validation).
const MAX_AFFINITY: u32 = 86_400;

impl Checker {
    pub(super) fn service(&mut self, s: usize, raw: &RawService) -> Result<(), Problem> {
        let field = |what: &str| format!("services[{s}].{what}");
        let name = &raw.name;
        check_service_name(&name.value).map_err(|why| name.at.refused(field("name"), why))?;
        if let Some(line) = self.taken.names.insert(name.value.clone(), name.at.line) {
            let message = format!("Service `{}` stands on line {line} already", name.value);
            return Err(name.at.refused(field("name"), message));
        }
        let cluster_ips = raw.cluster_ips.as_deref().filter(|ips| !is_headless(ips));
        let cluster_ips = addresses(cluster_ips, &|i| field(&format!("clusterIPs[{i}]")))?;
        let mut ports = self.ports(s, raw)?;
        let mut service = Service {
            name: name.value.clone(),
            external_ips: addresses(raw.external_ips.as_deref(), &|i| field(&format!("externalIPs[{i}]")))?,
            load_balancer_ips: addresses(raw.load_balancer_ips.as_deref(), &|i| {
                field(&format!("loadBalancerIPs[{i}]"))
            })?,
            cluster_ips,
            affinity: affinity(raw, &field)?,
            internal: policy(raw.internal.as_ref(), || field("internalTrafficPolicy"))?,
            external: policy(raw.external.as_ref(), || field("externalTrafficPolicy"))?,
            ports: Vec::new(),
            endpoints: Vec::new(),
        };
        for family in Family::ALL {
            let own = service.cluster_ips.iter().filter(|ip| Family::of(**ip) == family);
            if own.count() > 1 {
                let message = "more than one address of one IP version: a Service has one cluster IP of each";
                return Err(name.at.refused(field("clusterIPs"), message));
            }
        }
        ports.sort_unstable();
        service.ports = ports;
        self.virtual_addresses(&service, name.at, &field)?;
        self.taken.sockets.clear();
        let endpoints = raw.endpoints.as_deref().unwrap_or_default();
        service.endpoints.reserve_exact(endpoints.len());
        for (e, endpoint) in endpoints.iter().enumerate() {
            let endpoint = self.endpoint(s, e, &service, endpoint)?;
            service.endpoints.push(endpoint);
        }
        service.endpoints.sort_unstable_by(|a, b| (a.address, &a.targets).cmp(&(b.address, &b.targets)));
        self.services.get_or_insert_default().push(service);
        Ok(())
    }

    fn ports(&mut self, s: usize, raw: &RawService) -> Result<Vec<ServicePort>, Problem> {
        if raw.ports.is_empty() {
            return Err(raw.name.at.refused(format!("services[{s}].ports"), "empty; a Service has a port"));
        }
        let mut ports: Vec<ServicePort> = Vec::with_capacity(raw.ports.len());
        let (mut names, mut numbers) = (HashSet::new(), HashMap::new());
        for (p, raw_port) in raw.ports.iter().enumerate() {
            let field = |what: &str| format!("services[{s}].ports[{p}].{what}");
            let port = service_port(raw_port, raw.ports.len(), &field)?;
            let at = raw_port.port.at;
            if !names.insert(port.name.clone()) {
                let message = format!("another port has the name `{}`", port.name);
                return Err(at.refused(field("name"), message));
            }
            if let Some(other) = numbers.insert((port.port, port.protocol), p) {
                let message = format!("`{}` has {}/{} already", ports[other].name, port.port, port.protocol);
                return Err(at.refused(field("port"), message));
            }
            if let Some(number) = port.node_port
                && let Some(line) = self.taken.node_ports.insert((number, port.protocol), at.line)
            {
                let message = format!("{number}/{} is the node port of line {line} already", port.protocol);
                return Err(at.refused(field("nodePort"), message));
            }
            ports.push(port);
        }
        Ok(ports)
    }

    /// Where two Services had the same address, port and protocol, nobody could say whose endpoints a flow goes to.
    fn virtual_addresses(
        &mut self,
        service: &Service,
        at: Place,
        field: &impl Fn(&str) -> String,
    ) -> Result<(), Problem> {
        // A load balancer's address may be an external one as well: the same policy applies.
        let balancers = service.load_balancer_ips.iter().filter(|ip| !service.external_ips.contains(ip));
        let balancers: Vec<IpAddr> = balancers.copied().collect();
        let kinds = [
            ("clusterIPs", &service.cluster_ips),
            ("externalIPs", &service.external_ips),
            ("loadBalancerIPs", &balancers),
        ];
        for (what, ips) in kinds {
            for (ip, port) in ips.iter().flat_map(|ip| service.ports.iter().map(move |port| (ip, port))) {
                let key = (*ip, port.port, port.protocol);
                if let Some(line) = self.taken.virtual_addresses.insert(key, at.line) {
                    let message = format!(
                        "{} of port {}/{} is a virtual address of the Service of line {line} already",
                        ip, port.port, port.protocol
                    );
                    return Err(at.refused(field(what), message));
                }
            }
        }
        Ok(())
    }

    fn endpoint(
        &mut self,
        s: usize,
        e: usize,
        service: &Service,
        raw: &RawEndpoint,
    ) -> Result<Endpoint, Problem> {
        let field = |what: &str| format!("services[{s}].endpoints[{e}].{what}");
        let at = raw.address.at;
        let ip = parse_address(&raw.address.value).map_err(|why| at.refused(field("address"), why))?;
        let targets = match &raw.ports {
            None => None,
            Some(own) => Some(targets(service, own, at, &field)?),
        };
        let endpoint = Endpoint {
            address: ip,
            node: None,
            zone: raw.zone.as_deref().map(|zone| self.shared_text(zone)),
            targets,
            ready: raw.ready.unwrap_or(true),
            serving: raw.serving.unwrap_or(true),
            terminating: raw.terminating.unwrap_or(false),
            hints: raw.hints.as_deref().and_then(|hints| self.hints(hints)),
        };
        for (p, target) in service.ports.iter().enumerate().map(|(p, _)| (p, service.target(p, &endpoint))) {
            let Some(target) = target else { continue };
            if let Some(line) = self.taken.sockets.insert((ip, p, target), at.line) {
                let message = format!(
                    "{} stands on line {line} already for port `{}`",
                    std::net::SocketAddr::new(ip, target),
                    service.ports[p].name
                );
                return Err(at.refused(field("address"), message));
            }
        }
        let Some(node) = &raw.node else {
            if raw.host_network {
                return Err(
                    at.refused(field("node"), "missing; a hostNetwork endpoint has its node's address")
                );
            }
            return Ok(endpoint);
        };
        let n = self.node_named(node, &field)?;
        self.tie(n, service, &endpoint, raw.host_network || self.shared(ip), at, &field)?;
        // As the file has them; where it stands in the view is known once all nodes are sorted.
        Ok(Endpoint { node: Some(NodeIx::new(n as u32)), ..endpoint })
    }

    /// An endpoint that runs on a node is one of its backends.
    fn tie(
        &mut self,
        n: usize,
        service: &Service,
        endpoint: &Endpoint,
        host_network: bool,
        at: Place,
        field: &impl Fn(&str) -> String,
    ) -> Result<(), Problem> {
        let address = endpoint.address;
        if !host_network {
            return self.implied(n, Backend { address, scope: Scope::Address }, at, field);
        }
        for (p, port) in service.ports.iter().enumerate() {
            if let Some(target) = service.target(p, endpoint) {
                let scope = Scope::Port(target, port.protocol);
                self.implied(n, Backend { address, scope }, at, field)?;
            }
        }
        Ok(())
    }

    /// Lists without a name are no hints: kube-proxy reads them so too.
    fn hints(&mut self, raw: &RawHints) -> Option<Box<Hints>> {
        let mut set = |names: &Option<Vec<String>>| -> std::collections::BTreeSet<Arc<str>> {
            names.iter().flatten().map(|name| self.shared_text(name)).collect()
        };
        let zones = set(&raw.zones);
        let nodes = set(&raw.nodes).into_iter().map(NodeName::from).collect();
        let hints = Hints { zones, nodes };
        (hints != Hints::default()).then(|| Box::new(hints))
    }
}

/// Without a virtual address of its own, as Kubernetes writes it (`ClusterIPNone`, pkg/apis/core/types.go).
fn is_headless(cluster_ips: &[Placed]) -> bool {
    matches!(cluster_ips, [only] if only.value == "None")
}

fn addresses(texts: Option<&[Placed]>, field: &dyn Fn(usize) -> String) -> Result<Vec<IpAddr>, Problem> {
    let parse = |(i, text): (usize, &Placed)| {
        parse_address(&text.value).map_err(|why| text.at.refused(field(i), why))
    };
    let mut all: Vec<IpAddr> =
        texts.unwrap_or_default().iter().enumerate().map(parse).collect::<Result<_, _>>()?;
    all.sort_unstable();
    Ok(all)
}

fn service_port(raw: &RawPort, of: usize, field: &impl Fn(&str) -> String) -> Result<ServicePort, Problem> {
    let number =
        |text: &Placed, what: &str| parse_port(&text.value).map_err(|why| text.at.refused(field(what), why));
    let name = match &raw.name {
        None if of > 1 => {
            let message = "missing; where a Service has several ports, each has a name";
            return Err(raw.port.at.refused(field("name"), message));
        }
        None => String::new(),
        // As EndpointSlices have it.
        Some(name) if name.value.is_empty() && of == 1 => String::new(),
        Some(name) if name.value.len() <= 63 && is_label(&name.value) => name.value.clone(),
        Some(name) => {
            let message = format!(
                "`{}` is no name of a port: expected at most 63 lower-case letters, digits and `-`",
                name.value
            );
            return Err(name.at.refused(field("name"), message));
        }
    };
    let port = number(&raw.port, "port")?;
    Ok(ServicePort {
        name,
        protocol: raw.protocol.as_ref().map_or(Ok(Protocol::Tcp), |text| protocol_of(text, field))?,
        port,
        target: raw.target_port.as_ref().map_or(Ok(port), |text| number(text, "targetPort"))?,
        node_port: raw.node_port.as_ref().map(|text| number(text, "nodePort")).transpose()?,
    })
}

fn affinity(raw: &RawService, field: &impl Fn(&str) -> String) -> Result<Option<Duration>, Problem> {
    let sticky = match &raw.session_affinity {
        None => false,
        Some(text) => match text.value.as_str() {
            "None" => false,
            "ClientIP" => true,
            other => {
                let message = format!("`{other}` is no affinity: expected None or ClientIP");
                return Err(text.at.refused(field("sessionAffinity"), message));
            }
        },
    };
    match (sticky, &raw.affinity_seconds) {
        (false, None) => Ok(None),
        (true, None) => Ok(Some(DEFAULT_AFFINITY)),
        (false, Some(text)) => Err(text.at.refused(
            field("sessionAffinityTimeoutSeconds"),
            "only a Service with `sessionAffinity: ClientIP` has one",
        )),
        (true, Some(text)) => match parse_number(&text.value) {
            Some(seconds) if (1..=MAX_AFFINITY).contains(&seconds) => {
                Ok(Some(Duration::from_secs(seconds.into())))
            }
            _ => Err(text.at.refused(
                field("sessionAffinityTimeoutSeconds"),
                format_args!("`{}`: expected 1 to {MAX_AFFINITY}", text.value),
            )),
        },
    }
}

fn policy(text: Option<&Placed>, field: impl Fn() -> String) -> Result<TrafficPolicy, Problem> {
    let Some(text) = text else { return Ok(TrafficPolicy::default()) };
    match text.value.as_str() {
        "Cluster" => Ok(TrafficPolicy::Cluster),
        "Local" => Ok(TrafficPolicy::Local),
        other => {
            Err(text.at.refused(field(), format_args!("`{other}` is no policy: expected Cluster or Local")))
        }
    }
}

/// An endpoint's own ports, in the order of the Service's; 0 for those that it does not name.
fn targets(
    service: &Service,
    own: &BTreeMap<String, Placed>,
    at: Place,
    field: &impl Fn(&str) -> String,
) -> Result<Box<[u16]>, Problem> {
    let mut targets = vec![0; service.ports.len()].into_boxed_slice();
    for (name, text) in own {
        let Some(p) = service.ports.iter().position(|port| port.name == *name) else {
            let message = format!("`{}` has no port `{name}`", service.name);
            return Err(text.at.refused(field(&format!("ports.{name}")), message));
        };
        targets[p] =
            parse_port(&text.value).map_err(|why| text.at.refused(field(&format!("ports.{name}")), why))?;
    }
    if own.is_empty() {
        return Err(at.refused(field("ports"), "empty; leave it out for the Service's own target ports"));
    }
    Ok(targets)
}
