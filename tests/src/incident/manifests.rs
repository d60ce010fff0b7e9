//! The objects of the incident, as JSON for the API.

use serde_json::{Value, json};

use super::plan::Plan;

/// The namespace of all objects.
pub const NAMESPACE: &str = "incident";
/// The NodePort of the TCP Service.
pub const TCP_PORT: u16 = 30_080;
/// The NodePort of the UDP Service.
pub const UDP_PORT: u16 = 30_053;
/// The label of the pods.
const APP: &str = "incident";
/// The target of the TCP Service, as that of the UDP Service a port of `nodefence-pod serve`.
pub const TCP_TARGET: u16 = 8080;
/// The target of the UDP Service.
pub const UDP_TARGET: u16 = 5300;
const HEALTH: u16 = 8081;

/// The names of the pods, each with its node.
pub fn pods(plan: &Plan) -> Vec<(String, &str)> {
    let of = |node: &String, number: usize| format!("server-{node}-{number}");
    let each = |node| (0..plan.pods_each).map(move |number| (of(node, number), node.as_str()));
    plan.servers.iter().flat_map(each).collect()
}

/// The namespace, which must exist before the rest.
pub fn namespace() -> Value {
    json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}})
}

/// The pods and Services.
pub fn objects(plan: &Plan) -> Value {
    let mut items: Vec<Value> =
        pods(plan).into_iter().map(|(name, node)| pod(&plan.image, &name, node)).collect();
    items.push(service("web", "TCP", 80, TCP_TARGET, TCP_PORT));
    items.push(service("dns", "UDP", 53, UDP_TARGET, UDP_PORT));
    json!({"apiVersion": "v1", "kind": "List", "items": items})
}

/// A server on a node. No scheduler and no controller moves it: what clients see comes from the proxy alone.
fn pod(image: &str, name: &str, node: &str) -> Value {
    let field =
        |name: &str, path: &str| json!({"name": name, "valueFrom": {"fieldRef": {"fieldPath": path}}});
    json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": NAMESPACE, "labels": {"app": APP}},
        "spec": {
            "nodeName": node,
            "automountServiceAccountToken": false,
            "enableServiceLinks": false,
            "terminationGracePeriodSeconds": 1,
            "containers": [{
                "name": "server",
                "image": image,
                "imagePullPolicy": "Never",
                "args": ["serve"],
                // Without a request a pod gets next to nothing of a busy processor.
                "resources": {"requests": {"cpu": "150m", "memory": "16Mi"}},
                "env": [field("POD", "metadata.name"), field("NODE", "spec.nodeName")],
                "ports": [
                    {"containerPort": TCP_TARGET, "protocol": "TCP"},
                    {"containerPort": UDP_TARGET, "protocol": "UDP"},
                ],
                // An emulated node is slow to probe, and a pod that is not ready for a moment would change what the clients see.
                "readinessProbe": {
                    "httpGet": {"path": "/healthz", "port": HEALTH},
                    "periodSeconds": 5,
                    "timeoutSeconds": 5,
                    "failureThreshold": 3,
                },
            }],
        },
    })
}

fn service(name: &str, protocol: &str, port: u16, target: u16, node_port: u16) -> Value {
    json!({
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": name, "namespace": NAMESPACE},
        "spec": {
            "type": "NodePort",
            "selector": {"app": APP},
            "ports": [
                {"port": port, "protocol": protocol, "targetPort": target, "nodePort": node_port},
            ],
        },
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::incident::{scenario::Scenario, times::Times};

    #[test]
    fn each_server_node_has_its_pods_and_both_services_select_them() {
        let plan = Plan {
            image: "localhost/pod:1".to_owned(),
            through: "node-1".to_owned(),
            servers: vec!["node-2".to_owned(), "node-3".to_owned()],
            frozen: "node-2".to_owned(),
            pods_each: 2,
            out: "unused".into(),
            scenario: Scenario::Freeze,
            times: Times::FULL,
        };
        let names: Vec<String> = pods(&plan).into_iter().map(|(name, _)| name).collect();
        assert_eq!(names, ["server-node-2-0", "server-node-2-1", "server-node-3-0", "server-node-3-1"]);
        let list = objects(&plan);
        let items = list["items"].as_array().expect("items");
        assert_eq!(items.len(), 6);
        assert_eq!(items[2]["spec"]["nodeName"], "node-3");
        assert_eq!(items[0]["spec"]["containers"][0]["image"], "localhost/pod:1");
        for service in &items[4..] {
            assert_eq!(service["spec"]["selector"], items[0]["metadata"]["labels"]);
        }
        let node_ports: Vec<_> =
            items[4..].iter().map(|item| &item["spec"]["ports"][0]["nodePort"]).collect();
        assert_eq!(node_ports, [TCP_PORT, UDP_PORT]);
    }
}
