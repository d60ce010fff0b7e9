//! What changed in a view since an earlier one. Nodes and Services that both share ([`ClusterView::sharing`]) are not looked into.

use std::sync::Arc;

use super::{node::NodeIx, view::ClusterView};

/// What changed since an earlier view. A node or Service that is not shared counts as changed, even if it is equal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Changed {
    /// Nodes that changed, in order. `None` where there are other nodes than before: then each may stand at another position.
    pub nodes: Option<Vec<NodeIx>>,
    /// Services that changed, by their index, in order. `None` where there are other Services than before: then each may have another index.
    pub services: Option<Vec<u32>>,
}

impl ClusterView {
    /// What changed since an earlier view.
    pub fn changed_since(&self, before: &Self) -> Changed {
        let services = match (&self.services, &before.services) {
            (None, None) => Some(Vec::new()),
            (Some(ours), Some(others)) => changed(ours, others, |service| &service.name),
            _ => None,
        };
        let nodes = changed(&self.nodes, &before.nodes, |node| &node.name);
        Changed { nodes: nodes.map(|nodes| nodes.into_iter().map(NodeIx::new).collect()), services }
    }
}

fn changed<T>(ours: &[Arc<T>], others: &[Arc<T>], name: impl Fn(&T) -> &str) -> Option<Vec<u32>> {
    if ours.len() != others.len() {
        return None;
    }
    let mut changed = Vec::new();
    for ((at, one), other) in (0..).zip(ours).zip(others) {
        if Arc::ptr_eq(one, other) {
            continue;
        }
        if name(one) != name(other) {
            return None;
        }
        changed.push(at);
    }
    Some(changed)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster::parse;

    #[test]
    fn what_is_not_shared_has_changed() {
        let text = |names: &str, last: u8, services: &str| {
            let node = |c: char| {
                format!(
                    "- {{name: {c}, address: 10.0.0.{}, backends: [{{address: 10.{last}.0.{}}}]}}\n",
                    c as u32, c as u32
                )
            };
            let service = |c: char| {
                format!(
                    "- {{name: d/{c}, ports: [{{port: 80}}], endpoints: [{{address: 10.{last}.0.98, node: b}}]}}\n"
                )
            };
            let nodes: String = names.chars().map(node).collect();
            let services: String = services.chars().map(service).collect();
            parse(
                &format!("nodes:\n{nodes}{}{services}", if services.is_empty() { "" } else { "services:\n" }),
                false,
            )
            .unwrap()
        };
        let before = text("abc", 1, "m");
        let since = |view: ClusterView| {
            let changed = view.sharing(&before).changed_since(&before);
            let nodes =
                changed.nodes.map(|nodes| nodes.into_iter().map(NodeIx::position).collect::<Vec<_>>());
            (nodes, changed.services)
        };
        assert_eq!(since(before.clone()), (Some(vec![]), Some(vec![])));
        assert_eq!(since(text("abc", 2, "m")), (Some(vec![0, 1, 2]), Some(vec![0])));
        // The same number of others is another matter.
        assert_eq!(since(text("abd", 1, "n")), (None, None));
        assert_eq!(since(text("abcd", 1, "")), (None, None));
        let none = text("abc", 1, "");
        assert_eq!(
            none.changed_since(&none.clone()),
            Changed { nodes: Some(vec![]), services: Some(vec![]) }
        );
    }
}
