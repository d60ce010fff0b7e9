//! A node as delivered, and the node of the view that follows from it.

use std::{collections::BTreeSet, net::IpAddr, sync::Arc};

use super::{
    super::{
        node::NodeName,
        object::{Conflict, NodeObject, ObjectName},
        view::{Backend, Node, Scope},
    },
    check::{Fault, node as check_node},
    names::NameId,
    owners::{AddressOwner, Kind, Owners},
};
use crate::Family;

/// A node as delivered.
#[derive(Debug)]
pub(super) struct Member {
    /// Its name.
    pub(super) id: NameId,
    pub(super) object: Arc<NodeObject>,
    /// What is wrong with the node by itself. If anything is, the node is as if it were not there, but for its claims.
    faults: Vec<Fault>,
    /// The node of the view; `None` where it has none.
    pub(super) node: Option<Arc<Node>>,
    pub(super) conflicts: Vec<Conflict>,
}

impl Member {
    /// A node to be evaluated. Until then it has the result of an earlier object of its name.
    pub(super) fn new(
        id: NameId,
        object: NodeObject,
        node: Option<Arc<Node>>,
        conflicts: Vec<Conflict>,
    ) -> Self {
        let faults = check_node(&object);
        Self { id, object: Arc::new(object), faults, node, conflicts }
    }

    pub(super) fn is_valid(&self) -> bool {
        self.faults.is_empty()
    }

    /// The addresses that the node claims.
    pub(super) fn claims(&self) -> impl Iterator<Item = (IpAddr, Kind)> {
        let own = self.object.addresses.iter().map(|ip| (*ip, Kind::Shared));
        let backends = self.object.backends.iter().map(|backend| match backend.scope {
            Scope::Address => (backend.address, Kind::Pod),
            Scope::Port(..) => (backend.address, Kind::Shared),
        });
        own.chain(backends)
    }

    /// Works out the node of the view. Whether it differs from the one before. `tied`: its backends that follow from endpoints, some maybe twice. `surplus`: the
    /// conflict's text where there are too many nodes before it.
    pub(super) fn evaluate(&mut self, owners: &Owners, tied: &[Backend], surplus: Option<String>) -> bool {
        let mut found = Found { faults: self.faults.clone(), owners, name: &self.object.name };
        found.faults.extend(surplus.map(|why| ("name".to_owned(), why)));
        let node = found.faults.is_empty().then(|| found.node(&self.object, tied));
        let object = || ObjectName::Node(self.object.name.clone());
        let conflict = |(field, message)| Conflict { object: object(), field, message, is_usual: false };
        self.conflicts = found.faults.into_iter().map(conflict).collect();
        // An equal node stays the same one, so that followers that compare pointers need not look into it.
        let is_another = self.node.as_deref() != node.as_ref();
        if is_another {
            self.node = node.map(Arc::new);
        }
        is_another
    }
}

struct Found<'a> {
    faults: Vec<Fault>,
    owners: &'a Owners,
    name: &'a NodeName,
}

impl Found<'_> {
    fn node(&mut self, object: &NodeObject, tied: &[Backend]) -> Node {
        let mut addresses = Vec::with_capacity(object.addresses.len());
        for (i, ip) in object.addresses.iter().enumerate() {
            let field = format!("addresses[{i}]");
            if addresses.contains(ip) {
                self.faults.push((field, format!("{ip} stands there already")));
            } else if self.owns(*ip, field).is_some() {
                addresses.push(*ip);
            }
        }
        let mut backends = BTreeSet::new();
        for (b, backend) in object.backends.iter().enumerate() {
            let field = format!("backends[{b}].address");
            let Some(AddressOwner::Node { shared, withheld, .. }) = self.owns(backend.address, field.clone())
            else {
                continue;
            };
            if shared && backend.scope == Scope::Address {
                let why = format!(
                    "{backend} is an address that `{}` shares; a backend there needs hostNetwork: true, port and protocol",
                    self.name
                );
                self.faults.push((field, why));
            } else if !withheld && !backends.insert(*backend) {
                self.faults.push((field, format!("backend {backend} stands there already")));
            }
        }
        backends.extend(tied);
        // An address of a family in which the node names none may be the node's own, which its kubelet, ssh and tunnels share.
        let is_told = |backend: &Backend| {
            let mut families = object.addresses.iter().map(|own| Family::of(*own));
            backend.scope != Scope::Address || families.any(|family| family == Family::of(backend.address))
        };
        let (backends, left_out): (Vec<_>, Vec<_>) = backends.into_iter().partition(is_told);
        Node {
            name: self.name.clone(),
            uid: object.uid.clone(),
            addresses,
            zone: object.zone.clone(),
            pool: object.pool.clone(),
            backends,
            left_out: left_out.into_iter().map(|backend| backend.address).collect(),
        }
    }

    /// The owner of the address, where that is this node.
    fn owns(&mut self, ip: IpAddr, field: String) -> Option<AddressOwner> {
        let owner = self.owners.of(ip)?;
        match self.owners.dispute(owner, ip) {
            None => Some(owner),
            Some(why) => {
                self.faults.push((field, why));
                None
            }
        }
    }
}
