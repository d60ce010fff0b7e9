use std::net::IpAddr;

use crate::cluster::ClusterView;

/// Why it is not clear which node this is.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum OwnNodeError {
    /// `--node` names none of the file's.
    #[error("--node {0}: the cluster file has no such node")]
    Unknown(String),
    /// No node's address is local.
    #[error(
        "none of the {0} nodes in the cluster file has an address of this machine; name this node with --node"
    )]
    None(usize),
    /// More than one node's address is local.
    #[error("{} and {} both have an address of this machine; name this node with --node", .0[0], .0[1])]
    Several(Vec<String>),
}

/// Which of the nodes this one is: the one that is `named`, else the one whose address is among `local`.
///
/// # Errors
/// Where that gives no node, or several.
pub fn own_node(view: &ClusterView, named: Option<&str>, local: &[IpAddr]) -> Result<String, OwnNodeError> {
    if let Some(name) = named {
        return match view.node(name) {
            Some(node) => Ok(node.name.clone()),
            // A cluster without nodes says nothing against the name.
            None if view.nodes.is_empty() => Ok(name.to_owned()),
            None => Err(OwnNodeError::Unknown(name.to_owned())),
        };
    }
    let mut own: Vec<String> = view
        .nodes
        .iter()
        .filter(|node| local.contains(&node.address))
        .map(|node| node.name.clone())
        .collect();
    match own.len() {
        0 => Err(OwnNodeError::None(view.nodes.len())),
        1 => Ok(own.remove(0)),
        _ => Err(OwnNodeError::Several(own)),
    }
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
        assert_eq!(own_node(&view, None, &local(&[9])), Err(OwnNodeError::None(2)));
        let several = own_node(&view, None, &local(&[1, 2])).unwrap_err();
        assert_eq!(
            several.to_string(),
            "a and b both have an address of this machine; name this node with --node"
        );
        assert_eq!(own_node(&view, Some("a"), &local(&[2])), Ok("a".into()));
        assert_eq!(own_node(&view, Some("c"), &local(&[2])), Err(OwnNodeError::Unknown("c".into())));
        assert_eq!(own_node(&parse("nodes: []\n", true).unwrap(), Some("c"), &[]), Ok("c".into()));
    }
}
