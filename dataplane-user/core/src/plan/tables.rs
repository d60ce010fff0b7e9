use std::collections::HashMap;

use nodefence_common::{Addr, BackendEntry, PortKey};

/// What lies in the dataplane's tables, or must ([`super::NodeTables`]), by address. Entries of nodes and exemptions ([`super::Exemptions`]) are not here: they
/// follow verdicts.
///
/// A writer must write in this order. First deletes from `ports` and `backends`, which make room; backends that change nodes are among them. Then inserts into
/// `backends`. Then inserts and updates of `ports`. Before all that, every generation that is named here must lie in `nodes`, healthy where it is new, so that no
/// packet ever meets the verdict of another node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tables {
    /// Every backend address of every node.
    pub backends: HashMap<Addr, BackendEntry>,
    /// The host-network endpoints; each one's address also lies in `backends`, port-scoped. Value:
    /// [`nodefence_common::port_flags`].
    pub ports: HashMap<PortKey, u32>,
}
