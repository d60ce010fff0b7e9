//! The identity of a node: its name, or its position in one view.

use std::{
    borrow::{Borrow, Cow},
    fmt,
    num::NonZeroU32,
    ops::Deref,
    sync::Arc,
};

use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde::{Deserialize, Serialize, Serializer};

/// A node's name. Cheap to clone. Ordered, borrowed, shown and serialized as its text. The default is the empty text, which names nobody.
#[derive(Clone, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Deserialize)]
#[serde(from = "String")]
pub struct NodeName(Arc<str>);

impl NodeName {
    /// Its text.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Its text, to be shared.
    pub(super) const fn text(&self) -> &Arc<str> {
        &self.0
    }
}

impl From<&str> for NodeName {
    fn from(text: &str) -> Self {
        Self(text.into())
    }
}

impl From<String> for NodeName {
    fn from(text: String) -> Self {
        Self(text.into())
    }
}

impl From<Arc<str>> for NodeName {
    fn from(text: Arc<str>) -> Self {
        Self(text)
    }
}

impl Deref for NodeName {
    type Target = str;

    fn deref(&self) -> &str {
        self.as_str()
    }
}

/// Maps and sets of names can be searched by a text.
impl Borrow<str> for NodeName {
    fn borrow(&self) -> &str {
        self.as_str()
    }
}

impl PartialEq<str> for NodeName {
    fn eq(&self, other: &str) -> bool {
        self.as_str() == other
    }
}

impl PartialEq<&str> for NodeName {
    fn eq(&self, other: &&str) -> bool {
        self.as_str() == *other
    }
}

impl fmt::Display for NodeName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self.as_str(), f)
    }
}

impl fmt::Debug for NodeName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self.as_str(), f)
    }
}

impl Serialize for NodeName {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_str(self)
    }
}

impl JsonSchema for NodeName {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        "NodeName".into()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        String::json_schema(generator)
    }
}

/// A node's position among the nodes of one view. Another view may have the same node elsewhere, since each node that comes
/// or goes shifts those behind it.
///
/// The index in the kernel's maps is another number. It stays with the node as long as the node exists, whatever the view, and has a generation
/// ([`crate::plan::Slot`]).
///
/// One more than the position, so that an endpoint of no node takes no more memory than one of a node.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct NodeIx(NonZeroU32);

impl NodeIx {
    /// The index of the node at this position. Only for the view, and for the builder that makes it.
    pub(super) const fn new(position: u32) -> Self {
        Self(NonZeroU32::MIN.saturating_add(position))
    }

    /// The position, for lists that have an entry for each node of the view, in the view's order.
    pub const fn position(self) -> usize {
        (self.0.get() - 1) as usize
    }
}

/// Some nodes of one view.
#[derive(Clone, Default, PartialEq, Eq, Debug)]
pub struct NodeSet {
    /// In order, each once.
    nodes: Vec<NodeIx>,
}

impl NodeSet {
    /// Whether the node is in the set.
    pub fn contains(&self, node: NodeIx) -> bool {
        self.nodes.binary_search(&node).is_ok()
    }

    /// Adds the node to the set, or removes it.
    pub fn set(&mut self, node: NodeIx, is_in: bool) {
        match (self.nodes.binary_search(&node), is_in) {
            (Ok(at), false) => drop(self.nodes.remove(at)),
            (Err(at), true) => self.nodes.insert(at, node),
            _ => {}
        }
    }

    /// All of them, in the view's order.
    pub fn iter(&self) -> impl Iterator<Item = NodeIx> {
        self.nodes.iter().copied()
    }
}

impl FromIterator<NodeIx> for NodeSet {
    fn from_iter<I: IntoIterator<Item = NodeIx>>(nodes: I) -> Self {
        let mut nodes: Vec<NodeIx> = nodes.into_iter().collect();
        nodes.sort_unstable();
        nodes.dedup();
        Self { nodes }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet, HashMap};

    use super::*;

    /// Names whose order is not the order in which they stand here.
    const TEXTS: [&str; 6] = ["node-b", "node-10", "a.b", "node-2", "a-b", "node"];

    #[test]
    fn names_are_ordered_found_and_shown_as_their_texts() {
        let names: BTreeSet<NodeName> = TEXTS.into_iter().map(NodeName::from).collect();
        let texts = BTreeSet::from(TEXTS);
        assert!(names.iter().eq(texts.iter().copied()), "{names:?}");
        assert_eq!(format!("{names:?}"), format!("{texts:?}"));
        let places: HashMap<NodeName, usize> = TEXTS.into_iter().map(NodeName::from).zip(0..).collect();
        let sorted: BTreeMap<NodeName, usize> = places.clone().into_iter().collect();
        for (at, text) in TEXTS.into_iter().enumerate() {
            assert_eq!((places.get(text), sorted.get(text)), (Some(&at), Some(&at)));
            let name = NodeName::from(text.to_owned());
            assert_eq!((name.as_str(), name.to_string().as_str(), &*name), (text, text, text));
            assert_eq!(format!("{name:>9}|"), format!("{text:>9}|"));
            assert!(name == text && name == *text && names.contains(&name));
        }
        assert!(!names.contains("node-") && NodeName::default().is_empty());
    }

    #[test]
    fn a_clone_is_the_same_text() {
        let text: Arc<str> = "node-b".into();
        let name = NodeName::from(Arc::clone(&text));
        assert!(Arc::ptr_eq(&name.clone().0, &text));
    }

    #[test]
    fn names_are_written_and_read_as_texts() {
        let rows: BTreeMap<&str, i32> = TEXTS.into_iter().zip(0..).collect();
        let names: BTreeMap<NodeName, i32> = rows.iter().map(|(text, row)| ((*text).into(), *row)).collect();
        let json = serde_json::to_string(&names).unwrap();
        assert_eq!(json, serde_json::to_string(&rows).unwrap());
        assert_eq!(serde_json::from_str::<BTreeMap<NodeName, i32>>(&json).unwrap(), names);
        let list: Vec<&NodeName> = names.keys().collect();
        let json = serde_json::to_value(&list).unwrap();
        assert_eq!(json, serde_json::json!(["a-b", "a.b", "node", "node-10", "node-2", "node-b"]));
        assert!(serde_json::from_value::<Vec<NodeName>>(json).unwrap().iter().eq(list));
        let error = |text: &str| serde_json::from_str::<NodeName>(text).unwrap_err().to_string();
        let same = |text: &str| serde_json::from_str::<String>(text).unwrap_err().to_string();
        assert_eq!(error("7"), same("7"));
    }

    fn set(positions: &[u32]) -> NodeSet {
        positions.iter().copied().map(NodeIx::new).collect()
    }

    #[test]
    fn a_set_has_each_node_once_and_in_order() {
        let nodes = set(&[7, 0, 3, 7, 0]);
        assert_eq!(nodes, set(&[0, 3, 7]));
        assert_eq!(nodes.iter().map(NodeIx::position).collect::<Vec<_>>(), [0, 3, 7]);
        let there = |position| nodes.contains(NodeIx::new(position));
        assert_eq!([0, 1, 3, 6, 7, 8].map(there), [true, false, true, false, true, false]);
        let mut changed = nodes.clone();
        for (position, is_in) in [(3, false), (4, false), (5, true), (7, true)] {
            changed.set(NodeIx::new(position), is_in);
        }
        assert_eq!(changed, set(&[0, 5, 7]));
        assert_eq!(set(&[]), NodeSet::default());
        assert!(!set(&[]).contains(NodeIx::new(0)));
    }
}
