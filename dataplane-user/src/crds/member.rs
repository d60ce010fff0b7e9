//! The kind NodeMember: a node of the cluster, as agents read it from the API server.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// What nodefence has to know of a node. The name of the object is the name of the node, as EndpointSlices have it.
// The bounds limit what one object can cost the agents. A textual IPv6 address has at most 45 characters.
#[derive(kube::CustomResource, Serialize, Deserialize, JsonSchema, Clone, Debug, PartialEq)]
#[kube(
    group = "nodefence.io",
    version = "v1alpha1",
    kind = "NodeMember",
    plural = "nodemembers",
    shortname = "nfm",
    doc = "A node of the cluster whose backends nodefence knows. Agents read it in place of the Node.",
    derive = "PartialEq",
    printcolumn(name = "Addresses", type_ = "string", json_path = ".spec.addresses"),
    printcolumn(name = "Zone", type_ = "string", json_path = ".spec.zone"),
    printcolumn(name = "Pool", type_ = "string", json_path = ".spec.pool"),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp")
)]
#[serde(rename_all = "camelCase")]
#[expect(
    clippy::duplicated_attributes,
    reason = "each `printcolumn` has a type of its own, and several have the same"
)]
pub struct NodeMemberSpec {
    /// The UID of the Node. A Node that is deleted and made again under the same name has another one.
    pub uid: String,
    /// All addresses of the node itself, IPv4 and IPv6, the first being that by which the other nodes reach it. Addresses of its pods do not belong here.
    #[schemars(length(max = 32), inner(length(max = 45)))]
    pub addresses: Vec<String>,
    /// The node's zone. Claims on nodes that no person made have a limit for each zone.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub zone: Option<String>,
    /// The pool that the node belongs to. Claims on nodes that no person made have a limit for each pool.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pool: Option<String>,
}

#[cfg(test)]
mod tests {
    use kube::CustomResourceExt as _;
    use serde_json::{Value, json};

    use super::*;

    fn definition() -> Value {
        serde_json::to_value(NodeMember::crd()).unwrap()
    }

    #[test]
    fn the_definition_has_its_names_scope_and_columns() {
        let definition = definition();
        assert_eq!(definition["apiVersion"], "apiextensions.k8s.io/v1");
        assert_eq!(definition["kind"], "CustomResourceDefinition");
        assert_eq!(definition["metadata"]["name"], "nodemembers.nodefence.io");
        let spec = &definition["spec"];
        assert_eq!((&spec["group"], &spec["scope"]), (&json!("nodefence.io"), &json!("Cluster")));
        let names = json!({
            "kind": "NodeMember", "plural": "nodemembers", "singular": "nodemember", "shortNames": ["nfm"]
        });
        assert_eq!(spec["names"], names);
        let versions = spec["versions"].as_array().unwrap();
        assert_eq!(versions.len(), 1);
        let version = &versions[0];
        assert_eq!(version["name"], "v1alpha1");
        assert_eq!((&version["served"], &version["storage"]), (&json!(true), &json!(true)));
        let columns = json!([
            { "name": "Addresses", "type": "string", "jsonPath": ".spec.addresses" },
            { "name": "Zone", "type": "string", "jsonPath": ".spec.zone" },
            { "name": "Pool", "type": "string", "jsonPath": ".spec.pool" },
            { "name": "Age", "type": "date", "jsonPath": ".metadata.creationTimestamp" },
        ]);
        assert_eq!(version["additionalPrinterColumns"], columns);
    }

    #[test]
    fn the_schema_has_each_field_with_its_bounds() {
        let definition = definition();
        let schema = &definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"];
        assert!(schema["description"].is_string(), "{schema:#}");
        assert_eq!(schema["required"], json!(["spec"]));
        let spec = &schema["properties"]["spec"];
        assert_eq!(spec["type"], "object");
        assert_eq!(spec["required"], json!(["addresses", "uid"]));
        // A later version may have more fields. The API server drops fields that it does not know, and refuses no object for them.
        assert_eq!(spec["additionalProperties"], Value::Null);
        let fields = spec["properties"].as_object().unwrap();
        assert_eq!(fields.keys().collect::<Vec<_>>(), ["addresses", "pool", "uid", "zone"]);
        for (name, field) in fields {
            assert!(field["description"].is_string(), "{name}: {field:#}");
        }
        let addresses = &fields["addresses"];
        assert_eq!((&addresses["type"], &addresses["maxItems"]), (&json!("array"), &json!(32)));
        assert_eq!(addresses["items"], json!({ "type": "string", "maxLength": 45 }));
        assert_eq!(fields["uid"]["type"], "string");
        for name in ["zone", "pool"] {
            let field = &fields[name];
            assert_eq!((&field["type"], &field["nullable"]), (&json!("string"), &json!(true)), "{name}");
            assert_eq!(field["default"], Value::Null, "{name}");
        }
    }

    #[test]
    fn an_object_is_read_as_it_was_written() {
        let full = NodeMemberSpec {
            uid: "0e6f8c1e-3b0a-4d0a-9c47-5d7c5f0b8a11".to_owned(),
            addresses: vec!["10.2.0.12".to_owned(), "fd00::12".to_owned()],
            zone: Some("z1".to_owned()),
            pool: Some("front".to_owned()),
        };
        let least = NodeMemberSpec { zone: None, pool: None, ..full.clone() };
        for spec in [full, least] {
            let member = NodeMember::new("node-b", spec);
            let written = serde_json::to_value(&member).unwrap();
            assert_eq!(written["apiVersion"], "nodefence.io/v1alpha1");
            assert_eq!(written["kind"], "NodeMember");
            assert_eq!(written["metadata"]["name"], "node-b");
            assert_eq!(written["spec"].get("zone").is_some(), member.spec.zone.is_some());
            let read: NodeMember = serde_json::from_value(written).unwrap();
            assert_eq!(read, member);
        }
    }

    #[test]
    fn fields_that_are_null_or_unknown_do_no_harm() {
        let written = json!({
            "apiVersion": "nodefence.io/v1alpha1", "kind": "NodeMember", "metadata": { "name": "node-b" },
            "spec": { "uid": "1", "addresses": [], "zone": null, "rack": "r7" }
        });
        let read: NodeMember = serde_json::from_value(written).unwrap();
        let spec = NodeMemberSpec { uid: "1".to_owned(), addresses: Vec::new(), zone: None, pool: None };
        assert_eq!(read, NodeMember::new("node-b", spec));
    }
}
