//! Finds the node of the cluster view that this machine is, and refuses backends whose address is this machine's own.

use std::{collections::HashSet, net::IpAddr};

use crate::cluster::{ClusterView, NodeName, Scope, SourceName};

/// Why it is not clear which node this machine is.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum OwnNodeError {
    /// `--node` names no node of the view.
    #[error("--node {0}: {1} has no such node")]
    Unknown(String, SourceName),
    /// No node's address is local.
    #[error("none of the {0} nodes in {1} has an address of this machine; name this node with --node")]
    None(usize, SourceName),
    /// More than one node's address is local.
    #[error("{} and {} both have an address of this machine; name this node with --node", .0[0], .0[1])]
    Several(Vec<NodeName>),
}

/// Returns the node that this machine is: the one that is `named`, else the one with an address in `local`.
///
/// # Errors
/// Where there is no such node, or more than one.
pub fn own_node(view: &ClusterView, named: Option<&str>, local: &[IpAddr]) -> Result<NodeName, OwnNodeError> {
    if let Some(name) = named {
        return match view.node(name) {
            Some(node) => Ok(node.name.clone()),
            // A view without nodes does not contradict the name.
            None if view.nodes.is_empty() => Ok(name.into()),
            None => Err(OwnNodeError::Unknown(name.to_owned(), view.source)),
        };
    }
    let mut own: Vec<NodeName> = view
        .nodes
        .iter()
        .filter(|node| node.addresses.iter().any(|ip| local.contains(ip)))
        .map(|node| node.name.clone())
        .collect();
    match own.len() {
        0 => Err(OwnNodeError::None(view.nodes.len(), view.source)),
        1 => Ok(own.remove(0)),
        _ => Err(OwnNodeError::Several(own)),
    }
}

/// A backend that would be cut by an address of this machine.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "backend {address} of node `{node}` is an address of this machine, which its kubelet, ssh and tunnels share: it needs \
     hostNetwork: true, port and protocol"
)]
pub(super) struct LocalBackend {
    node: NodeName,
    address: IpAddr,
}

/// Refuses backends that would be cut by an address of this machine without a port. The source may not name all addresses of a
/// node: only the node itself knows them.
pub(super) fn refuse_local(view: &ClusterView, local: &[IpAddr]) -> Result<(), LocalBackend> {
    let local: HashSet<IpAddr> = local.iter().map(IpAddr::to_canonical).collect();
    for node in &view.nodes {
        let mut whole = node.backends.iter().filter(|backend| backend.scope == Scope::Address);
        if let Some(backend) = whole.find(|backend| local.contains(&backend.address)) {
            return Err(LocalBackend { node: node.name.clone(), address: backend.address });
        }
    }
    Ok(())
}

/// The addresses of this network namespace's devices.
pub(super) fn local_addresses() -> std::io::Result<Vec<IpAddr>> {
    let addresses = nix::ifaddrs::getifaddrs()?.filter_map(|entry| {
        let address = entry.address?;
        if let Some(v4) = address.as_sockaddr_in() {
            return Some(IpAddr::V4(v4.ip()));
        }
        Some(IpAddr::V6(address.as_sockaddr_in6()?.ip()))
    });
    Ok(addresses.collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster::parse;

    #[test]
    fn finds_the_node_by_its_address() {
        let view =
            parse("nodes:\n- {name: a, address: 10.0.0.1}\n- {name: b, address: 10.0.0.2}\n", false).unwrap();
        let local = |last: &[u8]| last.iter().map(|&n| IpAddr::from([10, 0, 0, n])).collect::<Vec<_>>();
        assert_eq!(own_node(&view, None, &local(&[2, 9])), Ok("b".into()));
        let none = own_node(&view, None, &local(&[9])).unwrap_err();
        assert_eq!(
            none.to_string(),
            "none of the 2 nodes in the cluster file has an address of this machine; name this node with --node"
        );
        let several = own_node(&view, None, &local(&[1, 2])).unwrap_err();
        assert_eq!(
            several.to_string(),
            "a and b both have an address of this machine; name this node with --node"
        );
        assert_eq!(own_node(&view, Some("a"), &local(&[2])), Ok("a".into()));
        let unknown = own_node(&view, Some("c"), &local(&[2])).unwrap_err();
        assert_eq!(unknown.to_string(), "--node c: the cluster file has no such node");
        assert_eq!(own_node(&parse("nodes: []\n", true).unwrap(), Some("c"), &[]), Ok("c".into()));
    }

    #[test]
    fn a_second_address_of_this_machine_is_no_pod() {
        let view = |backend: &str| {
            let text =
                format!("nodes:\n- {{name: a, addresses: [10.0.0.1, 'fd00::9'], backends: [{backend}]}}\n");
            parse(&text, false).unwrap()
        };
        let local = ["10.0.0.1", "fd00::1"].map(|text| text.parse().unwrap());
        let error = refuse_local(&view("{address: 'fd00::1'}"), &local).unwrap_err().to_string();
        assert!(
            error.contains("backend fd00::1 of node `a`") && error.contains("hostNetwork: true"),
            "{error}"
        );
        refuse_local(&view("{address: 'fd00::2'}"), &local).unwrap();
        let by_port = "{address: 'fd00::1', port: 80, protocol: tcp, hostNetwork: true}";
        refuse_local(&view(by_port), &local).unwrap();
    }
}
