//! The list of `nodes`.

use schemars::JsonSchema;
use serde::Serialize;

use super::model::NodeRow;

/// Nodes, and what is claimed of them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
pub struct NodeList {
    /// Those that were asked for, by name.
    pub items: Vec<NodeRow>,
    /// Names that were asked for and that no node has; the exit code is 7 then.
    pub not_found: Vec<String>,
}
