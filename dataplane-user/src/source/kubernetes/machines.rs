//! Which machine each member is: the UID of its Node. A flag holds for one machine, and not for another that gets the same name later.

use std::{collections::HashMap, sync::Arc};

use crate::cluster::{Change, NodeName, ObjectName};

/// The UIDs of all members, by name.
#[derive(Debug, Default)]
pub(super) struct Machines {
    uids: HashMap<NodeName, Arc<str>>,
    /// The list of members has come to its end.
    are_listed: bool,
}

impl Machines {
    /// The machine of that name. `None` where there is no such member, or where its UID is not known.
    pub(super) fn uid(&self, node: &str) -> Option<&Arc<str>> {
        self.uids.get(node)
    }

    /// Whether all members are known.
    pub(super) const fn are_listed(&self) -> bool {
        self.are_listed
    }

    /// Follows changes of members. Whether one of them brought something else.
    pub(super) fn follow(&mut self, changes: &[Change]) -> bool {
        let mut is_other = false;
        for change in changes {
            is_other |= self.take(change);
        }
        is_other
    }

    fn take(&mut self, change: &Change) -> bool {
        match change {
            Change::Nodes(nodes) => {
                let all = nodes.iter().filter_map(|node| Some((node.name.clone(), node.uid.clone()?)));
                let all: HashMap<_, _> = all.collect();
                let is_other = !self.are_listed || all != self.uids;
                self.uids = all;
                self.are_listed = true;
                is_other
            }
            Change::Node(node) => self.put(&node.name, node.uid.clone()),
            Change::Gone(ObjectName::Node(name)) => self.put(name, None),
            Change::LeftOut(conflict) => match &conflict.object {
                ObjectName::Node(name) => self.put(name, None),
                _ => false,
            },
            _ => false,
        }
    }

    fn put(&mut self, name: &NodeName, uid: Option<Arc<str>>) -> bool {
        match uid {
            None => self.uids.remove(name).is_some(),
            Some(uid) if self.uids.get(name) == Some(&uid) => false,
            Some(uid) => {
                self.uids.insert(name.clone(), uid);
                true
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster::{Conflict, NodeObject};

    fn node(name: &str, uid: &str) -> NodeObject {
        NodeObject { uid: Some(uid.into()), ..NodeObject::new(name, Vec::new()) }
    }

    #[test]
    fn the_newest_uid_of_each_member_is_known() {
        let mut machines = Machines::default();
        assert!(machines.follow(&[Change::Node(node("a", "1"))]));
        assert!(!machines.are_listed(), "a single member is no list");
        assert!(machines.follow(&[Change::Nodes(vec![node("a", "1"), node("b", "2")])]));
        assert!(machines.are_listed());
        assert!(!machines.follow(&[Change::Nodes(vec![node("a", "1"), node("b", "2")])]));
        assert!(!machines.follow(&[Change::Node(node("a", "1"))]));
        assert!(machines.follow(&[Change::Node(node("a", "3")), Change::Node(node("b", "2"))]));
        assert_eq!(machines.uid("a").map(|uid| &**uid), Some("3"));
        assert!(machines.follow(&[Change::Gone(ObjectName::Node("a".into()))]));
        let unreadable = Conflict {
            object: ObjectName::Node("b".into()),
            field: "spec".to_owned(),
            message: "it is".to_owned(),
            is_usual: false,
        };
        assert!(machines.follow(&[Change::LeftOut(unreadable)]));
        assert_eq!((machines.uid("a"), machines.uid("b")), (None, None));
    }
}
