//! What the watches have told, by the names of the objects.

use std::collections::BTreeMap;

use kube::ResourceExt as _;

use super::watch::Heard;

/// All objects of a kind. `None` until a whole list has come: half a list is never acted on.
#[derive(Debug)]
pub(super) struct Known<K>(Option<BTreeMap<String, K>>);

impl<K> Default for Known<K> {
    fn default() -> Self {
        Self(None)
    }
}

impl<K: kube::Resource> Known<K> {
    /// Takes what a watch told. Returns the names of the objects that may have changed.
    pub(super) fn hear(&mut self, heard: Heard<K>) -> Vec<String> {
        match heard {
            Heard::Listed(list) => {
                let list: BTreeMap<String, K> =
                    list.into_iter().map(|object| (object.name_any(), object)).collect();
                let mut names: Vec<String> = self.iter().map(|(name, _)| name.clone()).collect();
                names.retain(|name| !list.contains_key(name));
                names.extend(list.keys().cloned());
                self.0 = Some(list);
                names
            }
            Heard::Changed(object) => {
                let name = object.name_any();
                self.put(object);
                vec![name]
            }
            Heard::Gone(object) => {
                self.remove(&object.name_any());
                vec![object.name_any()]
            }
        }
    }

    /// Puts an object as the API server answered it, which the watch may tell only later.
    pub(super) fn put(&mut self, object: K) {
        if let Some(all) = &mut self.0 {
            all.insert(object.name_any(), object);
        }
    }

    pub(super) fn remove(&mut self, name: &str) {
        if let Some(all) = &mut self.0 {
            all.remove(name);
        }
    }

    /// All objects, once a whole list has come.
    pub(super) const fn all(&self) -> Option<&BTreeMap<String, K>> {
        self.0.as_ref()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (&String, &K)> {
        self.0.iter().flatten()
    }
}

#[cfg(test)]
mod tests {
    use super::{super::wire::Member, *};

    fn member(name: &str) -> Member {
        serde_json::from_value(serde_json::json!({ "metadata": { "name": name } })).unwrap()
    }

    #[test]
    fn only_a_whole_list_is_known() {
        let mut known = Known::<Member>::default();
        assert_eq!(known.hear(Heard::Changed(member("a"))), ["a"]);
        assert!(known.all().is_none());
        assert_eq!(known.hear(Heard::Listed(vec![member("b"), member("a")])), ["a", "b"]);
        assert_eq!(known.hear(Heard::Gone(member("a"))), ["a"]);
        known.put(member("c"));
        let names: Vec<&String> = known.iter().map(|(name, _)| name).collect();
        assert_eq!(names, ["b", "c"]);
        // What a later list lacks may have changed too.
        assert_eq!(known.hear(Heard::Listed(vec![member("d"), member("c")])), ["b", "c", "d"]);
        assert_eq!(known.all().map(BTreeMap::len), Some(2));
    }
}
