//! What the objects of the API server mean, as kube-proxy reads them. Pure.

#[cfg(test)]
mod tests;

use std::{collections::BTreeMap, net::IpAddr, sync::Arc, time::Duration};

use k8s_openapi::apimachinery::pkg::{apis::meta::v1::ObjectMeta, util::intstr::IntOrString};
use kube::ResourceExt as _;
use serde::Deserialize as _;

use super::wire;
use crate::{
    cluster::{
        Change, Conflict, EndpointObject, Hints, NodeName, NodeObject, ObjectName, Protocol, ServiceMode,
        ServiceObject, ServicePort, SliceObject, TrafficPolicy,
    },
    source::Texts,
};

/// The label that names a slice's Service.
const SERVICE_NAME: &str = "kubernetes.io/service-name";
/// The label of a Service that another proxy serves (`LabelServiceProxyName`, pkg/proxy/apis/well_known_labels.go, v1.36).
const OTHER_PROXY: &str = "service.kubernetes.io/service-proxy-name";
/// The label of a Service that is left out.
const MODE: &str = "nodefence.io/mode";
/// How long affinity lasts where a Service says no time (`DefaultClientIPServiceAffinitySeconds`, pkg/apis/core/types.go).
const AFFINITY_SECONDS: u32 = 10_800;

/// An object of the API server that can be read.
pub(super) trait Read {
    /// What it is read as.
    type Object: Send;
    /// What is told of a change.
    type Change: Send;
    /// Why it cannot be read.
    type Fault: Send;

    /// What it means. `None`: nothing, as if it were not there.
    ///
    /// # Errors
    /// Where it cannot be read.
    fn read(&self, texts: &mut Texts) -> Result<Option<Self::Object>, Self::Fault>;

    /// The change that an object brings.
    fn single(object: Self::Object) -> Self::Change;

    /// The change that a list of all objects brings.
    fn list(objects: Vec<Self::Object>) -> Self::Change;

    /// The change that its end brings.
    fn gone(&self) -> Self::Change;

    /// The change that an object brings which cannot be read.
    fn left_out(fault: Self::Fault) -> Self::Change;
}

/// What is wrong with a field.
type Fault = (String, String);

/// The namespace and name of an object.
fn full_name(metadata: &ObjectMeta) -> String {
    let namespace = metadata.namespace.as_deref().unwrap_or_default();
    format!("{namespace}/{}", metadata.name.as_deref().unwrap_or_default())
}

fn conflict(object: ObjectName) -> impl Fn(Fault) -> Conflict {
    move |(field, message)| Conflict { object: object.clone(), field, message, is_usual: false }
}

fn address(text: &str, field: impl Fn() -> String) -> Result<IpAddr, Fault> {
    let parsed = text.parse().ok().or_else(|| with_leading_zeros(text));
    parsed.ok_or_else(|| (field(), format!("`{text}` is no IP address")))
}

/// An IPv4 address whose numbers have leading zeros. The API server keeps such addresses of old objects, and kube-proxy reads them as decimal
/// (`ParseIPSloppy`, k8s.io/utils/net).
fn with_leading_zeros(text: &str) -> Option<IpAddr> {
    let numbers = text.split('.').map(|number| number.parse().ok()).collect::<Option<Vec<u8>>>()?;
    Some(<[u8; 4]>::try_from(numbers).ok()?.into())
}

fn addresses<'a>(texts: impl IntoIterator<Item = &'a String>, field: &str) -> Result<Vec<IpAddr>, Fault> {
    let each = texts.into_iter().enumerate();
    each.map(|(place, text)| address(text, || format!("{field}[{place}]"))).collect()
}

fn port(number: i32, field: impl Fn() -> String) -> Result<u16, Fault> {
    match u16::try_from(number) {
        Ok(port) if port != 0 => Ok(port),
        _ => Err((field(), format!("{number} is no port: expected 1 to 65535"))),
    }
}

impl wire::Member {
    fn name(&self) -> ObjectName {
        ObjectName::Node(self.metadata.name.as_deref().unwrap_or_default().into())
    }
}

impl Read for wire::Member {
    type Object = NodeObject;
    type Change = Change;
    type Fault = Conflict;

    fn read(&self, texts: &mut Texts) -> Result<Option<NodeObject>, Conflict> {
        let fails = conflict(self.name());
        let spec = wire::MemberSpec::deserialize(&self.spec)
            .map_err(|error| fails(("spec".to_owned(), error.to_string())))?;
        let own = addresses(&spec.addresses, "spec.addresses").map_err(&fails)?;
        let name = texts.shared(self.metadata.name.as_deref().unwrap_or_default());
        Ok(Some(NodeObject {
            uid: (!spec.uid.is_empty()).then(|| spec.uid.into()),
            zone: texts.shared_or_none(spec.zone.as_ref()),
            pool: texts.shared_or_none(spec.pool.as_ref()),
            ..NodeObject::new(name, own)
        }))
    }

    fn single(object: NodeObject) -> Change {
        Change::Node(object)
    }

    fn list(objects: Vec<NodeObject>) -> Change {
        Change::Nodes(objects)
    }

    fn gone(&self) -> Change {
        Change::Gone(self.name())
    }

    fn left_out(conflict: Conflict) -> Change {
        Change::LeftOut(conflict)
    }
}

impl wire::Slice {
    fn name(&self) -> ObjectName {
        ObjectName::Slice(full_name(&self.metadata).into())
    }
}

impl Read for wire::Slice {
    type Object = SliceObject;
    type Change = Change;
    type Fault = Conflict;

    /// A slice without a Service, and one of DNS names, mean nothing (`endpointSliceCacheKeys`, pkg/proxy/endpointslicecache.go, v1.36).
    fn read(&self, texts: &mut Texts) -> Result<Option<SliceObject>, Conflict> {
        let Some(service) = self.labels().get(SERVICE_NAME).filter(|service| !service.is_empty()) else {
            return Ok(None);
        };
        if !matches!(self.address_type.as_str(), "IPv4" | "IPv6") {
            return Ok(None);
        }
        let namespace = self.metadata.namespace.as_deref().unwrap_or_default();
        let service = texts.shared(&format!("{namespace}/{service}"));
        let fails = conflict(self.name());
        let ports = texts.shared_ports(self.own_ports().map_err(&fails)?);
        let mut endpoints = Vec::new();
        for (place, endpoint) in self.endpoints.iter().flatten().enumerate() {
            endpoints.push(endpoint.read(place, &ports, texts).map_err(&fails)?);
        }
        Ok(Some(SliceObject { name: full_name(&self.metadata).into(), service, endpoints }))
    }

    fn single(object: SliceObject) -> Change {
        Change::Slice(object)
    }

    fn list(objects: Vec<SliceObject>) -> Change {
        Change::Slices(objects)
    }

    fn gone(&self) -> Change {
        Change::Gone(self.name())
    }

    fn left_out(conflict: Conflict) -> Change {
        Change::LeftOut(conflict)
    }
}

impl wire::Slice {
    /// The ports of its endpoints by the names of the Service's. One without a number, or with 0, means nothing.
    fn own_ports(&self) -> Result<BTreeMap<String, u16>, Fault> {
        let mut ports = BTreeMap::new();
        for (place, own) in self.ports.iter().flatten().enumerate() {
            if let Some(number) = own.port.filter(|number| *number != 0) {
                let number = port(number, || format!("ports[{place}].port"))?;
                ports.insert(own.name.clone().unwrap_or_default(), number);
            }
        }
        Ok(ports)
    }
}

impl wire::Endpoint {
    fn is_pod(&self) -> bool {
        self.target_ref.and_then(|target| target.kind) == Some(wire::TargetKind::Pod)
    }

    fn read(
        &self,
        place: usize,
        ports: &Arc<BTreeMap<String, u16>>,
        texts: &mut Texts,
    ) -> Result<EndpointObject, Fault> {
        let field = || format!("endpoints[{place}].addresses[0]");
        // All addresses of an endpoint are equivalent, and kube-proxy uses the first.
        let first = self.addresses.iter().flatten().next();
        let first = first.ok_or_else(|| (field(), "missing".to_owned()))?;
        let conditions = self.conditions;
        let node: Option<NodeName> = texts.shared_or_none(self.node_name.as_ref()).map(Into::into);
        Ok(EndpointObject {
            address: address(first, field)?,
            // Anybody may write a slice by hand, with an address that a machine has for itself: a second device, an appliance. The endpoints
            // controller names the pod of each endpoint (`podToEndpoint`, staging/src/k8s.io/endpointslice/utils.go, v1.36).
            host_network: node.is_some() && !self.is_pod(),
            node,
            zone: texts.shared_or_none(self.zone.as_ref()),
            ports: Some(Arc::clone(ports)),
            ready: conditions.ready.unwrap_or(true),
            serving: conditions.serving.unwrap_or(true),
            terminating: conditions.terminating.unwrap_or(false),
            hints: self.hints.as_ref().and_then(|hints| hints.read(texts)).map(Box::new),
        })
    }
}

impl wire::Hints {
    fn read(&self, texts: &mut Texts) -> Option<Hints> {
        let zones = self.for_zones.iter().flatten().map(|zone| texts.shared(&zone.name)).collect();
        let nodes = self.for_nodes.iter().flatten().map(|node| texts.shared(&node.name).into()).collect();
        let hints = Hints { zones, nodes };
        (hints != Hints::default()).then_some(hints)
    }
}

impl wire::Service {
    fn name(&self) -> ObjectName {
        ObjectName::Service(full_name(&self.metadata).into())
    }
}

impl Read for wire::Service {
    type Object = ServiceObject;
    type Change = Change;
    type Fault = Conflict;

    fn read(&self, texts: &mut Texts) -> Result<Option<ServiceObject>, Conflict> {
        // Only a name in DNS: there are no endpoints of its own.
        if self.spec.type_.as_deref() == Some("ExternalName") {
            return Ok(None);
        }
        self.object(texts).map(Some).map_err(conflict(self.name()))
    }

    fn single(object: ServiceObject) -> Change {
        Change::Service(object)
    }

    fn list(objects: Vec<ServiceObject>) -> Change {
        Change::Services(objects)
    }

    fn gone(&self) -> Change {
        Change::Gone(self.name())
    }

    fn left_out(conflict: Conflict) -> Change {
        Change::LeftOut(conflict)
    }
}

impl wire::Service {
    fn object(&self, texts: &mut Texts) -> Result<ServiceObject, Fault> {
        let spec = &self.spec;
        // kube-proxy leaves a Service of another proxy alone, as it does one without cluster IP. Its endpoints are backends all the same.
        let is_proxied = !self.labels().contains_key(OTHER_PROXY);
        let cluster_ips = if is_proxied { self.cluster_ips()? } else { Vec::new() };
        let is_reached = !cluster_ips.is_empty();
        let external_ips = spec.external_ips.iter().flatten().filter(|_| is_reached);
        let name = full_name(&self.metadata);
        Ok(ServiceObject {
            external_ips: addresses(external_ips, "spec.externalIPs")?,
            load_balancer_ips: if is_reached { self.load_balancer_ips()? } else { Vec::new() },
            affinity: self.affinity(),
            internal: policy(spec.internal_traffic_policy.as_deref()),
            external: policy(spec.external_traffic_policy.as_deref()),
            mode: self.labels().get(MODE).map(|name| ServiceMode::named(name)).unwrap_or_default(),
            ..ServiceObject::new(texts.shared(&name), cluster_ips, self.ports(is_reached)?)
        })
    }

    fn cluster_ips(&self) -> Result<Vec<IpAddr>, Fault> {
        let spec = &self.spec;
        let listed = spec.cluster_ips.as_deref().filter(|listed| !listed.is_empty());
        let all = listed.unwrap_or(spec.cluster_ip.as_slice());
        let is_address = |text: &&String| !text.is_empty() && **text != "None";
        addresses(all.iter().filter(is_address), "spec.clusterIPs")
    }

    /// The addresses of load balancers that leave the destination as it is (KEP-1860).
    fn load_balancer_ips(&self) -> Result<Vec<IpAddr>, Fault> {
        let ingress = self.status.load_balancer.ingress.iter().flatten();
        let kept = ingress.filter(|ingress| ingress.ip_mode.as_deref() != Some("Proxy"));
        let texts = kept.filter_map(|ingress| ingress.ip.as_ref()).filter(|text| !text.is_empty());
        addresses(texts, "status.loadBalancer.ingress")
    }

    fn affinity(&self) -> Option<Duration> {
        let spec = &self.spec;
        let is_by_client = spec.session_affinity.as_deref() == Some("ClientIP");
        let config = spec.session_affinity_config.and_then(|config| config.client_ip);
        let seconds = config.and_then(|config| config.timeout_seconds).unwrap_or(AFFINITY_SECONDS);
        is_by_client.then(|| Duration::from_secs(seconds.into()))
    }

    fn ports(&self, is_reached: bool) -> Result<Vec<ServicePort>, Fault> {
        let each = self.spec.ports.iter().flatten().enumerate();
        each.map(|(place, own)| own.read(place, is_reached)).collect()
    }
}

impl wire::ServicePort {
    fn read(&self, place: usize, is_reached: bool) -> Result<ServicePort, Fault> {
        let field = |name: &str| format!("spec.ports[{place}].{name}");
        let number = port(self.port, || field("port"))?;
        let node_port = self.node_port.filter(|number| *number != 0 && is_reached);
        let protocol: Protocol =
            self.protocol.as_deref().unwrap_or("TCP").parse().map_err(|why| (field("protocol"), why))?;
        let target = match &self.target_port {
            None | Some(IntOrString::Int(0)) => number,
            Some(IntOrString::Int(target)) => port(*target, || field("targetPort"))?,
            // Slices have the number of each endpoint's port, which a name may give differently.
            Some(IntOrString::String(_)) => 0,
        };
        Ok(ServicePort {
            name: self.name.clone().unwrap_or_default(),
            protocol,
            port: number,
            target,
            node_port: node_port.map(|number| port(number, || field("nodePort"))).transpose()?,
        })
    }
}

fn policy(text: Option<&str>) -> TrafficPolicy {
    match text {
        Some("Local") => TrafficPolicy::Local,
        _ => TrafficPolicy::Cluster,
    }
}
