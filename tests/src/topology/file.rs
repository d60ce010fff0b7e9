//! The cluster files that describe the small cluster.

use super::cluster::{Cluster, Family, Node, Service};

const BOTH: [Family; 2] = [Family::V4, Family::V6];

/// The backends of node A, which [`Cluster::with_own_backends`] replaces.
const NONE: &str = " []\n";

fn backends(node: &Node) -> String {
    let mut text = String::from("\n");
    for family in BOTH {
        text += &format!("      - address: \"{}\"\n", node.pod_address(family));
        text += &format!(
            "      - {{ address: \"{}\", port: 9100, protocol: tcp, hostNetwork: true }}\n",
            node.address(family)
        );
    }
    text
}

impl Cluster {
    /// The cluster file with the nodes, and the backends of B and C.
    pub fn cluster_file(&self) -> String {
        let mut text = String::from("nodes:\n");
        for node in [&self.a, &self.b, &self.c] {
            let [v4, v6] = BOTH.map(|family| node.address(family));
            text += &format!("  - name: {}\n    addresses: [{v4}, '{v6}']\n    backends:", node.name);
            text += &if node.index == self.a.index { NONE.to_owned() } else { backends(node) };
        }
        text
    }

    /// Adds backends of node A to such a file: a pod and a port of its own, as every real node has.
    pub fn with_own_backends(&self, file: &str) -> String {
        file.replacen(NONE, &backends(&self.a), 1)
    }

    /// The cluster file with the nodes, their backends and the Services. Each Service has endpoints on B and C.
    pub fn services_file(&self) -> String {
        self.services_file_with(|_, _| Some(""))
    }

    /// Same as [`Cluster::services_file`]. `more` returns fields to add to a Service's endpoint on a node, or `None` to leave that endpoint out.
    pub fn services_file_with<'t>(&self, more: impl Fn(Service, &Node) -> Option<&'t str>) -> String {
        let mut text = self.cluster_file() + "services:\n";
        for service in Service::ALL {
            let (port, target, node_port) = service.ports();
            let [v4, v6] = BOTH.map(|family| service.cluster_ip(family));
            text += &format!(
                "  - name: default/{}
    clusterIPs: [{v4}, '{v6}']
    ports: [{{ port: {port}, targetPort: {target}, nodePort: {node_port}, protocol: {} }}]
    endpoints:\n",
                service.name(),
                service.protocol(),
            );
            for node in [&self.b, &self.c] {
                let Some(more) = more(service, node) else { continue };
                for family in BOTH {
                    text += &format!(
                        "      - {{ address: '{}', node: {}, hostNetwork: {}{more} }}\n",
                        node.endpoint(service, family).ip(),
                        node.name,
                        service == Service::Host,
                    );
                }
            }
        }
        text
    }
}
