//! An object as the API server sends it. Its content is read later, so that an object that cannot be read does not spoil the list that it stands in.

use std::{borrow::Cow, marker::PhantomData};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::Resource;
use serde::{Deserialize, de::DeserializeOwned};
use serde_json::{Map, Value};

/// An object of the kind `K` that was not read yet.
#[derive(Clone, Debug, Deserialize)]
#[serde(bound = "")]
pub(crate) struct Raw<K> {
    pub(crate) metadata: ObjectMeta,
    #[serde(flatten)]
    rest: Map<String, Value>,
    #[serde(skip)]
    kind: PhantomData<K>,
}

impl<K> Raw<K> {
    /// The content as it was sent.
    pub(crate) fn spec(&self) -> &Value {
        self.rest.get("spec").unwrap_or(&Value::Null)
    }
}

impl<K: DeserializeOwned> Raw<K> {
    /// Reads the object. A status that cannot be read counts as none: another version of the controller may have written it.
    ///
    /// # Errors
    /// Where the content cannot be read.
    pub(crate) fn read(&self) -> serde_json::Result<K> {
        let mut content = self.rest.clone();
        content.insert("metadata".to_owned(), serde_json::to_value(&self.metadata)?);
        K::deserialize(Value::Object(content.clone())).or_else(|error| {
            content.remove("status");
            K::deserialize(Value::Object(content)).map_err(|_| error)
        })
    }
}

impl<K: Resource> Resource for Raw<K> {
    type DynamicType = K::DynamicType;
    type Scope = K::Scope;

    fn kind(of: &K::DynamicType) -> Cow<'_, str> {
        K::kind(of)
    }

    fn group(of: &K::DynamicType) -> Cow<'_, str> {
        K::group(of)
    }

    fn version(of: &K::DynamicType) -> Cow<'_, str> {
        K::version(of)
    }

    fn plural(of: &K::DynamicType) -> Cow<'_, str> {
        K::plural(of)
    }

    fn meta(&self) -> &ObjectMeta {
        &self.metadata
    }

    fn meta_mut(&mut self) -> &mut ObjectMeta {
        &mut self.metadata
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::crds::{FlagState, NodeFlag};

    fn flag(until: &str, state: &str) -> Raw<NodeFlag> {
        serde_json::from_value(json!({
            "apiVersion": "nodefence.io/v1alpha1", "kind": "NodeFlag", "metadata": { "name": "b-1" },
            "spec": { "node": "b", "uid": "1", "until": until },
            "status": { "state": state },
        }))
        .unwrap()
    }

    #[test]
    fn an_object_is_read_whole() {
        let read = flag("2026-06-01T12:00:00Z", "Withheld").read().unwrap();
        assert_eq!((read.metadata.name.as_deref(), read.spec.node.as_str()), (Some("b-1"), "b"));
        assert_eq!(read.status.unwrap().state, FlagState::Withheld);
    }

    #[test]
    fn what_cannot_be_read_is_named_and_a_status_is_no_reason() {
        let read = flag("2026-06-01T12:00:00Z", "Invented").read().unwrap();
        assert_eq!((read.status, read.spec.node.as_str()), (None, "b"));
        let late = flag("9999-12-31T23:59:59Z", "Accepted");
        let error = late.read().unwrap_err().to_string();
        assert!(error.starts_with("until: `9999-12-31T23:59:59Z`: expected a time"), "{error}");
        assert_eq!(late.spec()["node"], "b");
    }
}
