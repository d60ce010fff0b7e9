//! The changes that a source tells, and what each means for an object.

use std::{collections::BTreeMap, sync::Arc};

use super::super::{
    node::NodeName,
    object::{Conflict, NodeObject, ObjectName, ServiceObject, SliceObject},
};

/// A change that a source tells.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// This node exists, with this content.
    Node(NodeObject),
    /// This Service exists, with this content.
    Service(ServiceObject),
    /// This slice exists, with this content.
    Slice(SliceObject),
    /// This object exists no more.
    Gone(ObjectName),
    /// This object exists, and cannot be read: it is as if it were not there. The endpoints of such a Service are cut for no node.
    LeftOut(Conflict),
    /// These are all nodes.
    Nodes(Vec<NodeObject>),
    /// These are all Services.
    Services(Vec<ServiceObject>),
    /// These are all slices.
    Slices(Vec<SliceObject>),
}

impl Change {
    /// Whether it brings all objects of a kind.
    pub const fn is_list(&self) -> bool {
        matches!(self, Self::Nodes(_) | Self::Services(_) | Self::Slices(_))
    }
}

/// What becomes of a change that brings a conflict.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rules {
    /// Nothing of it is taken.
    Strict,
    /// It is taken but for what conflicts.
    ///
    /// - A node or Service that is wrong by itself is as if it were not there. The addresses of such a Service's endpoints are cut for no node: kube-proxy may use
    ///   them, and whether it has others is not known.
    /// - An address that two nodes claim is neither's, and cut for neither. Endpoints there count as tied to no node.
    /// - An endpoint of an IP version in which its node names no address is left out of the backends, under strict rules too: it may be the node's own address.
    /// - An endpoint that is wrong by itself or names an unknown node is left out, or counts as tied to no node.
    /// - A virtual address or node port of two Services leads to the first of them by name.
    Tolerant,
}

/// What an object is from now on; `None` where it is there no more.
pub(super) enum Entry {
    Node(NodeName, Option<NodeObject>),
    Service(Arc<str>, Option<ServiceObject>),
    Slice(Arc<str>, Option<SliceObject>),
}

/// Entries for a new list of objects: objects that are not listed are gone. Of two with one name the last one counts.
pub(super) fn relist<K: Ord, T>(
    all: impl Iterator<Item = K>,
    listed: impl Iterator<Item = (K, T)>,
) -> BTreeMap<K, Option<T>> {
    let mut next: BTreeMap<K, Option<T>> = all.map(|name| (name, None)).collect();
    next.extend(listed.map(|(name, object)| (name, Some(object))));
    next
}
