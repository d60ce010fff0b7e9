//! The list of `nodes`.

use schemars::JsonSchema;
use serde::Serialize;

use super::model::NodeRow;

/// Nodes, and the claims on them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
pub struct NodeList {
    /// The requested nodes, by name. All nodes if no name was given.
    pub items: Vec<NodeRow>,
    /// The requested names that no node has. If there are any, the exit code is 7.
    pub not_found: Vec<String>,
}
