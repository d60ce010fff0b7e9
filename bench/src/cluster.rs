//! Cluster files of the benchmarks, and the flagging of their nodes.
use std::net::Ipv4Addr;

use nodefence_tests::Agent;
use serde_json::{Value, json};

/// One node of the cluster file.
pub(crate) struct Node {
    pub(crate) name: &'static str,
    pub(crate) address: Ipv4Addr,
    pub(crate) backends: Vec<Ipv4Addr>,
}

/// The cluster file of these nodes.
pub(crate) fn file(nodes: &[Node]) -> String {
    let nodes: Vec<Value> = nodes
        .iter()
        .map(|node| {
            let backends: Vec<Value> =
                node.backends.iter().map(|address| json!({ "address": address })).collect();
            json!({ "name": node.name, "address": node.address, "backends": backends })
        })
        .collect();
    json!({ "nodes": nodes }).to_string()
}

/// Flags a node by the command line, and returns the agent's answer. With `--wait` in `more` the agent answers once it has challenged the idle
/// clients, and the answer has the outcome.
pub(crate) fn flag(agent: &Agent, node: &str, more: &[&str]) -> anyhow::Result<Value> {
    let words = ["flag", node, "--for", "10m", "--reason", "bench", "--force"];
    agent.json(&[&words, more].concat())
}
