use std::collections::{BTreeMap, HashMap};

use nodefence_common::{Addr, BackendEntry, NodeEntry, PortKey};

/// The whole wanted state of the dataplane's tables, but for what is kept ([`super::Keep`]): that goes with verdicts.
///
/// The order in which a writer must bring it in, so that no packet ever meets the verdict of another node: entries of
/// nodes whose generation is new first, as healthy; then deletes from `ports` and `backends`, which make room; then inserts and updates of
/// `backends`, and of `ports` after them; verdicts last.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tables {
    /// Every backend address of every node.
    pub backends: HashMap<Addr, BackendEntry>,
    /// The host-network endpoints; each one's address also lies in `backends`, port-scoped. Value:
    /// [`nodefence_common::port_flags`].
    pub ports: HashMap<PortKey, u32>,
    /// Every node by its index. An index that is not here is healthy and unused.
    pub nodes: BTreeMap<u32, NodeEntry>,
}
