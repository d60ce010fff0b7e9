//! Nodes, members, Services and EndpointSlices, as JSON for the API.

use std::net::IpAddr;

use serde_json::{Value, json};

/// A port of a Service.
#[derive(Debug, Clone)]
pub struct Port {
    /// The name of the port, which the slices repeat.
    pub name: &'static str,
    /// `TCP` or `UDP`.
    pub protocol: &'static str,
    /// The port of the ClusterIP.
    pub port: u16,
    /// The port of the endpoints.
    pub target: u16,
    /// The node port. With it the Service is of type NodePort, unless it is of type LoadBalancer.
    pub node_port: Option<u16>,
}

/// A Service.
#[derive(Debug, Clone)]
pub struct Service {
    /// The name, in the namespace `default`.
    pub name: String,
    /// The ClusterIP, or one of each IP version, IPv4 first. No other Service may have them.
    pub cluster_ips: Vec<IpAddr>,
    /// `externalIPs`.
    pub external_ips: Vec<IpAddr>,
    /// The addresses of load balancers. With one the Service is of type LoadBalancer.
    pub balancer_ips: Vec<IpAddr>,
    /// `healthCheckNodePort`, for a load balancer whose policy is Local. Without it the server picks a port that another Service may need later.
    pub health_port: Option<u16>,
    /// The ports.
    pub ports: Vec<Port>,
    /// `internalTrafficPolicy: Local`.
    pub internal_local: bool,
    /// `externalTrafficPolicy: Local`. It counts only with a node port, an external IP or a load balancer.
    pub external_local: bool,
    /// `sessionAffinity: ClientIP`.
    pub affinity: bool,
}

impl Service {
    /// A Service with the default policies.
    pub fn new(name: &str, cluster_ip: impl Into<IpAddr>, ports: Vec<Port>) -> Self {
        Self {
            name: name.to_owned(),
            cluster_ips: vec![cluster_ip.into()],
            external_ips: Vec::new(),
            balancer_ips: Vec::new(),
            health_port: None,
            ports,
            internal_local: false,
            external_local: false,
            affinity: false,
        }
    }

    /// The Service as JSON, without its status ([`Service::status`]).
    pub fn json(&self) -> Value {
        let policy = |local: bool| if local { "Local" } else { "Cluster" };
        let ports = self.ports.iter().map(|port| {
            let mut json = json!({"name": port.name, "port": port.port, "protocol": port.protocol});
            if let Some(node_port) = port.node_port {
                json["nodePort"] = json!(node_port);
            }
            json
        });
        let mut spec = json!({
            "clusterIP": self.cluster_ips[0],
            "clusterIPs": self.cluster_ips,
            "ipFamilyPolicy": if self.cluster_ips.len() == 2 { "RequireDualStack" } else { "SingleStack" },
            "ports": ports.collect::<Vec<_>>(),
            "internalTrafficPolicy": policy(self.internal_local),
            "sessionAffinity": if self.affinity { "ClientIP" } else { "None" },
        });
        if !self.external_ips.is_empty() {
            spec["externalIPs"] = json!(self.external_ips);
        }
        if !self.balancer_ips.is_empty() {
            spec["type"] = json!("LoadBalancer");
            // This stops only automatic node ports. A node port in `ports` is still assigned.
            spec["allocateLoadBalancerNodePorts"] = json!(false);
        } else if self.ports.iter().any(|port| port.node_port.is_some()) {
            spec["type"] = json!("NodePort");
        }
        if self.external() {
            spec["externalTrafficPolicy"] = json!(policy(self.external_local));
        }
        if let Some(port) = self.health_port {
            spec["healthCheckNodePort"] = json!(port);
        }
        json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": self.name}, "spec": spec})
    }

    /// The status with the addresses of load balancers; `None` without one. The server takes the status apart from the rest.
    pub fn status(&self) -> Option<Value> {
        let ingress: Vec<Value> = self.balancer_ips.iter().map(|ip| json!({"ip": ip})).collect();
        (!ingress.is_empty()).then(|| {
            json!({
                "apiVersion": "v1", "kind": "Service", "metadata": {"name": self.name},
                "status": {"loadBalancer": {"ingress": ingress}},
            })
        })
    }

    /// Whether the Service has any address other than ClusterIPs.
    pub fn external(&self) -> bool {
        !self.external_ips.is_empty()
            || !self.balancer_ips.is_empty()
            || self.ports.iter().any(|port| port.node_port.is_some())
    }
}

/// An endpoint of a slice: a pod, where it names a node. Fields that are `None` or empty are left out of the JSON, and the API server stores them as missing.
#[derive(Debug, Clone)]
pub struct Endpoint {
    /// The address.
    pub address: IpAddr,
    /// The node on which the endpoint runs.
    pub node: Option<String>,
    /// The zone of that node.
    pub zone: Option<String>,
    /// `conditions.ready`.
    pub ready: Option<bool>,
    /// `conditions.serving`.
    pub serving: Option<bool>,
    /// `conditions.terminating`.
    pub terminating: Option<bool>,
    /// `hints.forZones`.
    pub for_zones: Vec<String>,
    /// `hints.forNodes`.
    pub for_nodes: Vec<String>,
}

impl Endpoint {
    /// A ready endpoint on `node`.
    pub fn ready(address: impl Into<IpAddr>, node: &str) -> Self {
        Self {
            address: address.into(),
            node: Some(node.to_owned()),
            zone: None,
            ready: Some(true),
            serving: Some(true),
            terminating: Some(false),
            for_zones: Vec::new(),
            for_nodes: Vec::new(),
        }
    }

    fn json(&self) -> Value {
        let mut endpoint = json!({"addresses": [self.address], "conditions": {}});
        let mut set = |pointer: &[&str], value: Option<Value>| {
            let Some(value) = value else { return };
            pointer.iter().fold(&mut endpoint, |at, key| &mut at[*key]).clone_from(&value);
        };
        set(&["nodeName"], self.node.as_ref().map(|node| json!(node)));
        set(&["targetRef"], self.node.as_ref().map(|_| pod_at(self.address)));
        set(&["zone"], self.zone.as_ref().map(|zone| json!(zone)));
        set(&["conditions", "ready"], self.ready.map(Value::from));
        set(&["conditions", "serving"], self.serving.map(Value::from));
        set(&["conditions", "terminating"], self.terminating.map(Value::from));
        let named = |names: &[String]| {
            let names: Vec<Value> = names.iter().map(|name| json!({"name": name})).collect();
            (!names.is_empty()).then(|| json!(names))
        };
        set(&["hints", "forZones"], named(&self.for_zones));
        set(&["hints", "forNodes"], named(&self.for_nodes));
        endpoint
    }
}

/// The `targetRef` of an endpoint that is a pod.
fn pod_at(address: IpAddr) -> Value {
    let name = address.to_string().replace(['.', ':'], "-");
    json!({"kind": "Pod", "namespace": "default", "name": format!("pod-{name}")})
}

/// An EndpointSlice. Its IP version is that of its first endpoint, or IPv4 without endpoints.
#[derive(Debug, Clone)]
pub struct Slice {
    /// The name, in the namespace `default`.
    pub name: String,
    /// The name of the Service to which the slice belongs.
    pub service: String,
    /// The ports of that Service that these endpoints have.
    pub ports: Vec<Port>,
    /// The endpoints.
    pub endpoints: Vec<Endpoint>,
}

impl Slice {
    /// A slice of a Service, with the Service's name and all of its ports.
    pub fn new(service: &Service, endpoints: Vec<Endpoint>) -> Self {
        let name = service.name.clone();
        Self { service: name.clone(), name, ports: service.ports.clone(), endpoints }
    }

    /// The slice as JSON.
    pub fn json(&self) -> Value {
        let v6 = self.endpoints.first().is_some_and(|endpoint| endpoint.address.is_ipv6());
        let ports = self
            .ports
            .iter()
            .map(|port| json!({"name": port.name, "port": port.target, "protocol": port.protocol}));
        json!({
            "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice",
            "metadata": {"name": self.name, "labels": {"kubernetes.io/service-name": self.service}},
            "addressType": if v6 { "IPv6" } else { "IPv4" },
            "ports": ports.collect::<Vec<_>>(),
            "endpoints": self.endpoints.iter().map(Endpoint::json).collect::<Vec<_>>(),
        })
    }
}

/// A Node that is Ready, as JSON. It needs at least one address, since kube-proxy waits for an InternalIP.
pub fn node(name: &str, addresses: &[IpAddr], zone: Option<&str>) -> Value {
    let mut labels = json!({"kubernetes.io/hostname": name});
    if let Some(zone) = zone {
        labels["topology.kubernetes.io/zone"] = json!(zone);
    }
    json!({
        "apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "labels": labels},
        "status": {
            "addresses": addresses.iter().map(|ip| json!({"type": "InternalIP", "address": ip})).collect::<Vec<_>>(),
            "conditions": [{"type": "Ready", "status": "True", "reason": "Test", "message": ""}],
        },
    })
}

/// A NodeMember, as JSON. Its addresses are those of the node itself.
pub fn member(name: &str, addresses: &[IpAddr]) -> Value {
    json!({
        "apiVersion": "nodefence.io/v1alpha1", "kind": "NodeMember", "metadata": {"name": name},
        "spec": {"uid": format!("uid-of-{name}"), "addresses": addresses},
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_said_is_left_out() {
        let mut endpoint = Endpoint::ready([10, 0, 0, 1], "node-a");
        endpoint.ready = None;
        endpoint.serving = None;
        endpoint.terminating = None;
        let json = endpoint.json();
        let pod = json!({"kind": "Pod", "namespace": "default", "name": "pod-10-0-0-1"});
        let named =
            json!({"addresses": ["10.0.0.1"], "conditions": {}, "nodeName": "node-a", "targetRef": pod});
        assert_eq!(json, named);
        endpoint.for_nodes = vec!["node-b".to_owned()];
        endpoint.terminating = Some(true);
        let json = endpoint.json();
        assert_eq!(json["hints"], json!({"forNodes": [{"name": "node-b"}]}));
        assert_eq!(json["conditions"], json!({"terminating": true}));
    }
}
