//! Nodes, Services and EndpointSlices as the API takes them.

use std::net::IpAddr;

use serde_json::{Value, json};

/// A port of a Service.
#[derive(Debug, Clone)]
pub struct Port {
    /// Its name, which the slices repeat.
    pub name: &'static str,
    /// `TCP` or `UDP`.
    pub protocol: &'static str,
    /// Port of the ClusterIP.
    pub port: u16,
    /// Port of the endpoints.
    pub target: u16,
    /// With it the Service is of type NodePort, if not LoadBalancer.
    pub node_port: Option<u16>,
}

/// A Service.
#[derive(Debug, Clone)]
pub struct Service {
    /// Its name, in the namespace `default`.
    pub name: String,
    /// Its ClusterIP, or one of each family, IPv4 first; no other Service may have them.
    pub cluster_ips: Vec<IpAddr>,
    /// `externalIPs`.
    pub external_ips: Vec<IpAddr>,
    /// Addresses of load balancers; with one the Service is of type LoadBalancer.
    pub balancer_ips: Vec<IpAddr>,
    /// `healthCheckNodePort`, of a load balancer whose policy is Local: else the server picks one that another Service may ask for later.
    pub health_port: Option<u16>,
    /// Its ports.
    pub ports: Vec<Port>,
    /// `internalTrafficPolicy: Local`.
    pub internal_local: bool,
    /// `externalTrafficPolicy: Local`; only with a node port, an external IP or a load balancer.
    pub external_local: bool,
    /// `sessionAffinity: ClientIP`.
    pub affinity: bool,
}

impl Service {
    /// A Service with the policies that are the default.
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

    /// As JSON; what a load balancer has given it is a part of [`Service::status`].
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
            // Those that are asked for are given all the same.
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

    /// The status that a load balancer gives it; `None` without one. The server takes the status apart from the rest.
    pub fn status(&self) -> Option<Value> {
        let ingress: Vec<Value> = self.balancer_ips.iter().map(|ip| json!({"ip": ip})).collect();
        (!ingress.is_empty()).then(|| {
            json!({
                "apiVersion": "v1", "kind": "Service", "metadata": {"name": self.name},
                "status": {"loadBalancer": {"ingress": ingress}},
            })
        })
    }

    /// Whether anything but a ClusterIP leads to it.
    pub fn external(&self) -> bool {
        !self.external_ips.is_empty()
            || !self.balancer_ips.is_empty()
            || self.ports.iter().any(|port| port.node_port.is_some())
    }
}

/// An endpoint of a slice. What is `None` or empty is left out, as the API server keeps it.
#[derive(Debug, Clone)]
pub struct Endpoint {
    /// Its address.
    pub address: IpAddr,
    /// The node it runs on.
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
    /// One that is ready, on `node`.
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

/// An EndpointSlice, IPv4 or IPv6 by its first endpoint.
#[derive(Debug, Clone)]
pub struct Slice {
    /// Its name, in the namespace `default`.
    pub name: String,
    /// The Service it belongs to.
    pub service: String,
    /// That Service's ports, as far as these endpoints have them.
    pub ports: Vec<Port>,
    /// The endpoints.
    pub endpoints: Vec<Endpoint>,
}

impl Slice {
    /// A slice of a Service, under the Service's name, with all its ports.
    pub fn new(service: &Service, endpoints: Vec<Endpoint>) -> Self {
        let name = service.name.clone();
        Self { service: name.clone(), name, ports: service.ports.clone(), endpoints }
    }

    /// As JSON.
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

/// A Node that is Ready, with an InternalIP at least: kube-proxy waits for one.
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
        assert_eq!(json, json!({"addresses": ["10.0.0.1"], "conditions": {}, "nodeName": "node-a"}));
        endpoint.for_nodes = vec!["node-b".to_owned()];
        endpoint.terminating = Some(true);
        let json = endpoint.json();
        assert_eq!(json["hints"], json!({"forNodes": [{"name": "node-b"}]}));
        assert_eq!(json["conditions"], json!({"terminating": true}));
    }
}
