//! Objects as they stand in the file. Each slice has the content that many of its endpoints share once.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
    sync::Arc,
    time::Duration,
};

use serde::{Deserialize, Serialize};

use crate::{
    cluster::{
        Backend, Conflict, EndpointObject, Hints, NodeName, NodeObject, ObjectName, Protocol, Scope,
        ServiceMode, ServiceObject, ServicePort, SliceObject, TrafficPolicy,
    },
    source::Texts,
};

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct StoredNode {
    name: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    uid: Option<String>,
    addresses: Vec<IpAddr>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    zone: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pool: Option<String>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    backends: Vec<StoredBackend>,
}

/// An address, and the port where the backend is only a port of it.
#[derive(Serialize, Deserialize)]
struct StoredBackend(IpAddr, Option<(u16, Protocol)>);

impl StoredNode {
    pub(super) fn of(node: &NodeObject) -> Self {
        let backends = node.backends.iter().map(|backend| match backend.scope {
            Scope::Address => StoredBackend(backend.address, None),
            Scope::Port(port, protocol) => StoredBackend(backend.address, Some((port, protocol))),
        });
        Self {
            name: node.name.as_str().to_owned(),
            uid: node.uid.as_deref().map(str::to_owned),
            addresses: node.addresses.clone(),
            zone: node.zone.as_deref().map(str::to_owned),
            pool: node.pool.as_deref().map(str::to_owned),
            backends: backends.collect(),
        }
    }

    pub(super) fn read(self, texts: &mut Texts) -> NodeObject {
        let backends = self.backends.into_iter().map(|StoredBackend(address, port)| Backend {
            address,
            scope: port.map_or(Scope::Address, |(port, protocol)| Scope::Port(port, protocol)),
        });
        NodeObject {
            backends: backends.collect(),
            uid: self.uid.map(Into::into),
            zone: self.zone.as_ref().map(|zone| texts.shared(zone)),
            pool: self.pool.as_ref().map(|pool| texts.shared(pool)),
            ..NodeObject::new(texts.shared(&self.name), self.addresses)
        }
    }
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct StoredService {
    name: String,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    cluster_ips: Vec<IpAddr>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    external_ips: Vec<IpAddr>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    load_balancer_ips: Vec<IpAddr>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    affinity: Option<Duration>,
    internal: TrafficPolicy,
    external: TrafficPolicy,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    mode: Option<String>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    ports: Vec<StoredPort>,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct StoredPort {
    #[serde(default, skip_serializing_if = "String::is_empty")]
    name: String,
    protocol: Protocol,
    port: u16,
    target: u16,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    node_port: Option<u16>,
}

impl StoredService {
    pub(super) fn of(service: &ServiceObject) -> Self {
        let ports = service.ports.iter().cloned().map(|port| {
            let ServicePort { name, protocol, port, target, node_port } = port;
            StoredPort { name, protocol, port, target, node_port }
        });
        Self {
            name: service.name.to_string(),
            cluster_ips: service.cluster_ips.clone(),
            external_ips: service.external_ips.clone(),
            load_balancer_ips: service.load_balancer_ips.clone(),
            affinity: service.affinity,
            internal: service.internal,
            external: service.external,
            mode: service.mode.name().map(str::to_owned),
            ports: ports.collect(),
        }
    }

    pub(super) fn read(self, texts: &mut Texts) -> ServiceObject {
        let ports = self.ports.into_iter().map(|port| {
            let StoredPort { name, protocol, port, target, node_port } = port;
            ServicePort { name, protocol, port, target, node_port }
        });
        ServiceObject {
            external_ips: self.external_ips,
            load_balancer_ips: self.load_balancer_ips,
            affinity: self.affinity,
            internal: self.internal,
            external: self.external,
            mode: self.mode.as_deref().map(ServiceMode::named).unwrap_or_default(),
            ..ServiceObject::new(texts.shared(&self.name), self.cluster_ips, ports.collect())
        }
    }
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct StoredSlice {
    name: String,
    service: String,
    /// Content that endpoints share.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    more: Vec<StoredMore>,
    endpoints: Vec<StoredEndpoint>,
}

/// The address of an endpoint, its node, its marks, and its place in `more`.
#[derive(Serialize, Deserialize)]
struct StoredEndpoint(IpAddr, Option<NodeName>, u8, Option<usize>);

// The marks of an endpoint, a bit each.
const HOST_NETWORK: u8 = 1;
const READY: u8 = 2;
const SERVING: u8 = 4;
const TERMINATING: u8 = 8;

#[derive(Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct StoredMore {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    zone: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    ports: Option<BTreeMap<String, u16>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    hints: Option<StoredHints>,
}

#[derive(PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct StoredHints {
    zones: BTreeSet<String>,
    nodes: BTreeSet<NodeName>,
}

impl StoredSlice {
    pub(super) fn of(slice: &SliceObject) -> Self {
        // Few endpoints of a slice differ in this.
        let mut more: Vec<StoredMore> = Vec::new();
        let mut place = |endpoint: &EndpointObject| {
            let one = StoredMore::of(endpoint);
            if one == StoredMore::default() {
                return None;
            }
            let known = more.iter().position(|known| *known == one);
            Some(known.unwrap_or_else(|| {
                more.push(one);
                more.len() - 1
            }))
        };
        let endpoints = slice.endpoints.iter().map(|endpoint| {
            let marks = [
                (endpoint.host_network, HOST_NETWORK),
                (endpoint.ready, READY),
                (endpoint.serving, SERVING),
                (endpoint.terminating, TERMINATING),
            ];
            let marks = marks.into_iter().filter_map(|(is_so, bit)| is_so.then_some(bit)).sum();
            StoredEndpoint(endpoint.address, endpoint.node.clone(), marks, place(endpoint))
        });
        let endpoints = endpoints.collect();
        Self { name: slice.name.to_string(), service: slice.service.to_string(), more, endpoints }
    }

    /// The object. `None`: an endpoint names content that is not there.
    pub(super) fn read(self, texts: &mut Texts) -> Option<SliceObject> {
        type Content = (Option<Arc<str>>, Option<Arc<BTreeMap<String, u16>>>, Option<Hints>);
        let more = self.more.into_iter().map(|one| -> Content {
            let zone = one.zone.as_ref().map(|zone| texts.shared(zone));
            let hints = one.hints.map(|hints| Hints {
                zones: hints.zones.iter().map(|zone| texts.shared(zone)).collect(),
                nodes: hints.nodes.iter().map(|node| texts.shared(node).into()).collect(),
            });
            (zone, one.ports.map(Arc::new), hints)
        });
        let more: Vec<Content> = more.collect();
        let endpoints = self.endpoints.into_iter().map(|StoredEndpoint(address, node, marks, place)| {
            let (zone, ports, hints) = match place {
                Some(place) => more.get(place)?.clone(),
                None => Content::default(),
            };
            Some(EndpointObject {
                address,
                node: node.map(|node| texts.shared(&node).into()),
                host_network: marks & HOST_NETWORK != 0,
                zone,
                ports,
                ready: marks & READY != 0,
                serving: marks & SERVING != 0,
                terminating: marks & TERMINATING != 0,
                hints: hints.map(Box::new),
            })
        });
        let endpoints = endpoints.collect::<Option<Vec<_>>>()?;
        Some(SliceObject { name: self.name.into(), service: texts.shared(&self.service), endpoints })
    }
}

impl StoredMore {
    fn of(endpoint: &EndpointObject) -> Self {
        Self {
            zone: endpoint.zone.as_deref().map(str::to_owned),
            ports: endpoint.ports.as_deref().cloned(),
            hints: endpoint.hints.as_deref().map(|hints| StoredHints {
                zones: hints.zones.iter().map(|zone| zone.to_string()).collect(),
                nodes: hints.nodes.clone(),
            }),
        }
    }
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct StoredConflict {
    kind: Kind,
    name: String,
    field: String,
    message: String,
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Kind {
    Node,
    Service,
    Slice,
}

impl StoredConflict {
    pub(super) fn of(conflict: &Conflict) -> Self {
        let Conflict { object, field, message, is_usual: _ } = conflict.clone();
        let (kind, name) = match object {
            ObjectName::Node(name) => (Kind::Node, name.as_str().to_owned()),
            ObjectName::Service(name) => (Kind::Service, name.to_string()),
            ObjectName::Slice(name) => (Kind::Slice, name.to_string()),
        };
        Self { kind, name, field, message }
    }

    pub(super) fn read(self) -> Conflict {
        let object = match self.kind {
            Kind::Node => ObjectName::Node(self.name.into()),
            Kind::Service => ObjectName::Service(self.name.into()),
            Kind::Slice => ObjectName::Slice(self.name.into()),
        };
        // An object that cannot be read is never usual.
        Conflict { object, field: self.field, message: self.message, is_usual: false }
    }
}
