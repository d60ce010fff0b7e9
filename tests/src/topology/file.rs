//! The cluster files that describe the small cluster.

use super::cluster::{Cluster, Family, Node, Service};

const BOTH: [Family; 2] = [Family::V4, Family::V6];

/// Node A's backends, but for where [`Cluster::with_own_backends`] says otherwise.
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
    /// Its nodes and their backends.
    pub fn cluster_file(&self) -> String {
        let mut text = String::from("nodes:\n");
        for node in [&self.a, &self.b, &self.c] {
            let [v4, v6] = BOTH.map(|family| node.address(family));
            text += &format!("  - name: {}\n    addresses: [{v4}, '{v6}']\n    backends:", node.name);
            text += &if node.index == self.a.index { NONE.to_owned() } else { backends(node) };
        }
        text
    }

    /// Such a file, and node A has what every real node has: pods and ports of its own.
    pub fn with_own_backends(&self, file: &str) -> String {
        file.replacen(NONE, &backends(&self.a), 1)
    }

    /// Its nodes, their backends and its Services, each with endpoints on B and C.
    pub fn services_file(&self) -> String {
        self.services_file_with(|_, _| Some(""))
    }

    /// The same; `more` is added to what is said of a Service's endpoint on a node, and where there is none it has no endpoint there.
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
