use std::collections::HashMap;

use nodefence_common::{Addr, BackendEntry, PortKey};

/// What lies in the dataplane's tables, or must ([`super::NodeTables`]), by address. Entries of nodes and what is kept ([`super::Keep`]) are not in it: they follow verdicts.
///
/// The order in which a writer must bring it in: deletes from `ports` and `backends` first, which make room, those of backends that change nodes among them; then
/// inserts into `backends`, and inserts and updates of `ports` after them. Before that every generation that is named here must lie in `nodes`, healthy where it is new, so that
/// no packet ever meets the verdict of another node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tables {
    /// Every backend address of every node.
    pub backends: HashMap<Addr, BackendEntry>,
    /// The host-network endpoints; each one's address also lies in `backends`, port-scoped. Value:
    /// [`nodefence_common::port_flags`].
    pub ports: HashMap<PortKey, u32>,
}
