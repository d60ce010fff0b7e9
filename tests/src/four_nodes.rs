//! The namespace of an agent's node, and a cluster file with four nodes, for tests that need no traffic.

use std::sync::Arc;

use anyhow::Result;

use crate::Netns;

/// The cluster file. The agent's node is `node-a`.
pub const FILE: &str = "nodes:
- {name: node-a, address: 10.9.0.1, backends: [{address: 10.9.4.1}]}
- name: node-b
  address: 10.9.0.12
  backends:
  - address: 10.9.1.1
  - {address: 10.9.0.12, port: 9100, protocol: tcp, hostNetwork: true}
- {name: node-c, address: 10.9.0.13, backends: [{address: 10.9.2.1}]}
- {name: node-d, address: 10.9.0.14, backends: [{address: 10.9.3.1}]}
";

/// Makes the namespace of `node-a`. Its device `v0` leads to the other nodes' addresses.
///
/// # Errors
/// Fails if the namespace cannot be made.
pub fn namespace(name: &str) -> Result<Arc<Netns>> {
    let ns = Arc::new(Netns::new(name)?);
    ns.ip("link add v0 type veth peer name v1
         link set v0 up
         link set v1 up
         addr add 10.9.0.1/16 dev v0")?;
    Ok(ns)
}
