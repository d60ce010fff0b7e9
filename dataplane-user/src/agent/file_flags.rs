//! What the log and `status` say of the flags in the cluster file. They reach every agent at once, and no command stood
//! between them and the cut: a slip must be seen.

use std::collections::BTreeSet;

use jiff::Timestamp;

use crate::{
    cluster::{ClusterView, FileFlag},
    flags::too_many,
};

/// How many nodes the log names.
const NAMED: usize = 10;

/// Tells the log which flags came and went with the file, and what is dangerous about them.
pub(super) fn tell(before: &[FileFlag], view: &ClusterView, own_node: &str) {
    let nodes =
        |flags| -> BTreeSet<&str> { <[FileFlag]>::iter(flags).map(|flag| flag.node.as_str()).collect() };
    let (before, after) = (nodes(before), nodes(&view.flags));
    let came: Vec<&str> = after.difference(&before).copied().collect();
    let went: Vec<&str> = before.difference(&after).copied().collect();
    if !came.is_empty() {
        tracing::info!(count = came.len(), nodes = names(&came), "flagged by the cluster file");
    }
    if !went.is_empty() {
        tracing::info!(count = went.len(), nodes = names(&went), "no longer flagged by the cluster file");
    }
    if came.is_empty() && went.is_empty() {
        return;
    }
    for danger in dangers(view, own_node, Timestamp::now()) {
        tracing::error!("{danger}");
    }
}

/// What an operator would be asked for `--force` for, and ends that lie in the past.
pub(super) fn dangers(view: &ClusterView, own_node: &str, now: Timestamp) -> Vec<String> {
    let over = |flag: &&FileFlag| flag.until.is_some_and(|until| until <= now);
    let (over, hold): (Vec<&FileFlag>, Vec<&FileFlag>) = view.flags.iter().partition(over);
    let mut dangers = Vec::new();
    if too_many(hold.len(), view.nodes.len()) {
        dangers.push(format!(
            "the cluster file flags {} of {} nodes, more than a third: the rest may not carry the load",
            hold.len(),
            view.nodes.len()
        ));
    }
    if hold.iter().any(|flag| flag.node == own_node) {
        dangers.push(format!(
            "the cluster file flags `{own_node}`, the node this agent runs on: whoever enters here is cut off from its pods"
        ));
    }
    if !over.is_empty() {
        let nodes: Vec<&str> = over.iter().map(|flag| flag.node.as_str()).collect();
        dangers.push(format!(
            "{} flags in the cluster file ended in the past and mean nothing: {}",
            over.len(),
            names(&nodes)
        ));
    }
    dangers
}

fn names(nodes: &[&str]) -> String {
    let mut text = nodes.iter().take(NAMED).copied().collect::<Vec<_>>().join(", ");
    if nodes.len() > NAMED {
        text += &format!(" and {} more", nodes.len() - NAMED);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster::{Node, NodeName};

    fn view(nodes: usize, flags: &[(usize, i64)]) -> ClusterView {
        let name = |n: usize| NodeName::from(format!("n{n:02}"));
        let nodes = (0..nodes).map(|n| Node {
            name: name(n),
            address: [10, 0, 0, n as u8].into(),
            zone: None,
            backends: Vec::new(),
        });
        let flag = |&(n, until): &(usize, i64)| FileFlag {
            node: name(n),
            until: (until != 0).then(|| Timestamp::from_second(until).unwrap()),
            reason: String::new(),
        };
        ClusterView { nodes: nodes.collect(), services: None, flags: flags.iter().map(flag).collect() }
    }

    #[test]
    fn a_slip_is_said() {
        let now = Timestamp::from_second(1_000).unwrap();
        let said = |nodes, flags: &[(usize, i64)]| dangers(&view(nodes, flags), "n00", now).join("\n");
        assert_eq!(said(3, &[(1, 0)]), "");
        assert_eq!(said(6, &[(1, 0), (2, 2_000)]), "");
        assert!(said(5, &[(1, 0), (2, 0)]).contains("2 of 5 nodes, more than a third"));
        // What is over flags nobody.
        let text = said(5, &[(1, 0), (2, 1_000)]);
        assert!(
            !text.contains("third") && text.contains("1 flags in the cluster file ended in the past"),
            "{text}"
        );
        assert!(text.ends_with(": n02"), "{text}");
        assert!(said(9, &[(0, 0)]).contains("the node this agent runs on"));
        let many: Vec<(usize, i64)> = (1..14).map(|n| (n, 5)).collect();
        assert!(said(90, &many).ends_with("n10 and 3 more"));
    }
}
