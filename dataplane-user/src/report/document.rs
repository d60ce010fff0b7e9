//! The objects that the CLI prints as JSON and YAML. Each object names its kind and the version of these types.

use std::borrow::Cow;

use schemars::{JsonSchema, Schema, SchemaGenerator, generate::SchemaSettings};
use serde::Serialize;
use serde_json::{Map, Value, json};

use super::{
    adjusted::{Adjusted, ModeReport},
    audit::{AuditReport, RepairReport},
    detached::Detached,
    flows::FlowList,
    health::StatusReport,
    model::{BackendRow, CounterRow, FlagReport, NodeRow, UnflagReport},
    nodes::NodeList,
    off::{OffReport, OffStatus, OnReport},
};
use crate::crds::Applied;

/// The version of the printed objects. A new version removes a field, or changes its name, type or meaning. New fields do not change the version.
pub const SCHEMA_VERSION: u32 = 1;

/// A type that the CLI can print as one object. The CLI prints no other types (`cli/output.rs`).
pub trait Document: Serialize + JsonSchema {
    /// The document's `kind`.
    const KIND: &'static str;
    /// The command that prints the document. The schema names it.
    const PRINTED_BY: &'static str;
}

/// A document as it is printed.
#[derive(Debug, Serialize)]
pub struct Envelope<'a, T> {
    schema_version: u32,
    kind: &'static str,
    #[serde(flatten)]
    body: &'a T,
}

impl<'a, T: Document> Envelope<'a, T> {
    /// Wraps a document.
    pub const fn new(body: &'a T) -> Self {
        Self { schema_version: SCHEMA_VERSION, kind: T::KIND, body }
    }
}

/// A document that is only a list.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct List<T> {
    /// The items of the list.
    pub items: Vec<T>,
}

impl<T> From<Vec<T>> for List<T> {
    fn from(items: Vec<T>) -> Self {
        Self { items }
    }
}

// Written by hand: the name of a derived schema would contain the name of the row.
impl<T: JsonSchema> JsonSchema for List<T> {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        format!("List_of_{}", T::schema_name()).into()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        let items = generator.subschema_for::<T>();
        let schema = json!({
            "type": "object",
            "properties": { "items": { "type": "array", "items": items, "description": "The items of the list." } },
            "required": ["items"],
        });
        Schema::try_from(schema).unwrap_or_default()
    }
}

macro_rules! documents {
    ($($document:ty = $kind:literal by $verb:literal),+ $(,)?) => {
        $(impl Document for $document {
            const KIND: &'static str = $kind;
            const PRINTED_BY: &'static str = $verb;
        })+
    };
}

documents! {
    StatusReport = "Status" by "nodefence status",
    NodeList = "NodeList" by "nodefence nodes",
    NodeRow = "Node" by "nodefence nodes --watch",
    List<BackendRow> = "BackendList" by "nodefence backends",
    FlowList = "FlowList" by "nodefence flows",
    List<CounterRow> = "CounterList" by "nodefence counters",
    FlagReport = "FlagReport" by "nodefence flag",
    UnflagReport = "UnflagReport" by "nodefence unflag",
    AuditReport = "AuditReport" by "nodefence audit",
    RepairReport = "RepairReport" by "nodefence repair",
    ModeReport = "ModeReport" by "nodefence mode",
    Adjusted<String> = "LogLevelReport" by "nodefence log-level",
    OffReport = "OffReport" by "nodefence off",
    OnReport = "OnReport" by "nodefence on",
    OffStatus = "OffStatus" by "nodefence status",
    Detached = "DetachReport" by "nodefence detach",
    List<Applied> = "CrdReport" by "nodefence crds --apply",
}

/// The JSON Schema (draft 2020-12) of a document as it is printed.
pub fn schema<T: Document>() -> Value {
    let body = SchemaSettings::draft2020_12().for_serialize().into_generator().into_root_schema_for::<T>();
    let mut body = body.to_value();
    let mut root = Map::new();
    let mut take = |key: &str| body.as_object_mut().and_then(|body| body.remove(key));
    let dialect = take("$schema");
    let about = take("description");
    let properties = take("properties");
    let required = take("required");
    take("title");
    let about =
        about.as_ref().and_then(Value::as_str).map(|about| format!("\n\n{about}")).unwrap_or_default();
    root.extend(dialect.map(|dialect| ("$schema".to_owned(), dialect)));
    root.insert("title".to_owned(), T::KIND.into());
    let about = format!("What `{} -o json` prints.{about}", T::PRINTED_BY);
    root.insert("description".to_owned(), about.into());
    let mut all = Map::new();
    let version = "The version of the printed objects. A new version removes a field, or changes its name, type or meaning. New fields do not change the version.";
    all.insert("schema_version".to_owned(), json!({ "const": SCHEMA_VERSION, "description": version }));
    all.insert("kind".to_owned(), json!({ "const": T::KIND, "description": "The kind of this object." }));
    if let Some(Value::Object(properties)) = properties {
        all.extend(properties);
    }
    let mut names = vec![json!("schema_version"), json!("kind")];
    if let Some(Value::Array(required)) = required {
        names.extend(required);
    }
    root.insert("properties".to_owned(), all.into());
    root.insert("required".to_owned(), names.into());
    if let Value::Object(rest) = body {
        root.extend(rest);
    }
    let mut schema = root.into();
    in_terms_of_json(&mut schema);
    schema
}

/// Replaces `None` by `null`, since descriptions are the doc comments of the Rust types.
fn in_terms_of_json(schema: &mut Value) {
    match schema {
        Value::String(text) => *text = text.replace("`None`", "`null`"),
        Value::Array(parts) => parts.iter_mut().for_each(in_terms_of_json),
        Value::Object(parts) => parts.values_mut().for_each(in_terms_of_json),
        Value::Null | Value::Bool(_) | Value::Number(_) => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_printed_says_first_what_it_is() {
        let row = CounterRow { reason: "cut".to_owned(), packets: 1, bytes: 2, help: "why".to_owned() };
        let list = List::from(vec![row]);
        let expected = r#"{"schema_version":1,"kind":"CounterList","items":[{"reason":"cut","packets":1,"bytes":2,"help":"why"}]}"#;
        assert_eq!(serde_json::to_string(&Envelope::new(&list)).unwrap(), expected);
        let yaml = serde_saphyr::to_string(&Envelope::new(&list)).unwrap();
        assert!(yaml.starts_with("schema_version: 1\nkind: CounterList\nitems:\n"), "{yaml}");
    }

    #[test]
    fn a_schema_names_what_stands_around_the_document_too() {
        let schema = schema::<ModeReport>();
        assert_eq!((&schema["title"], &schema["type"]), (&json!("ModeReport"), &json!("object")));
        assert_eq!(schema["properties"]["kind"]["const"], "ModeReport");
        assert_eq!(schema["properties"]["schema_version"]["const"], SCHEMA_VERSION);
        let required = schema["required"].as_array().unwrap();
        // The fields of the setting stand beside the report's own.
        for name in ["schema_version", "kind", "mode", "started", "set", "changed", "warnings"] {
            assert!(required.contains(&json!(name)) && schema["properties"][name].is_object(), "{schema:#}");
        }
    }
}
