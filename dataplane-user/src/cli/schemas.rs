//! `docs/schema/`: the schemas of the JSON and YAML that is printed, for validators and for people.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::Path,
};

use serde_json::Value;

use super::{cluster, explain::Explained, golden};
use crate::{
    crds::Applied,
    doctor::DoctorReport,
    report::{
        Adjusted, AuditReport, BackendRow, CounterRow, Detached, Document, Fault, FlagReport, FlowList, List,
        ModeReport, NodeList, NodeRow, OffReport, OffStatus, OnReport, RepairReport, StatusReport,
        UnflagReport, schema,
    },
};

fn all() -> BTreeMap<&'static str, Value> {
    fn one<T: Document>() -> (&'static str, Value) {
        (T::KIND, schema::<T>())
    }
    BTreeMap::from([
        one::<StatusReport>(),
        one::<Explained>(),
        one::<NodeList>(),
        one::<NodeRow>(),
        one::<List<BackendRow>>(),
        one::<FlowList>(),
        one::<List<CounterRow>>(),
        one::<FlagReport>(),
        one::<UnflagReport>(),
        one::<AuditReport>(),
        one::<RepairReport>(),
        one::<ModeReport>(),
        one::<Adjusted<String>>(),
        one::<Detached>(),
        one::<List<Applied>>(),
        one::<DoctorReport>(),
        one::<Fault>(),
        one::<OffReport>(),
        one::<OffStatus>(),
        one::<OnReport>(),
    ])
    .into_iter()
    .chain(cluster::schemas())
    .collect()
}

/// The published schemas must describe what this version prints.
#[test]
fn published_schemas_are_those_of_the_types() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/schema");
    let schemas = all();
    for (kind, schema) in &schemas {
        let text = serde_json::to_string_pretty(schema).unwrap() + "\n";
        golden::hold(&folder.join(format!("{kind}.json")), &text);
    }
    let files = fs::read_dir(&folder).unwrap().map(|file| file.unwrap().file_name());
    for file in files {
        let kind = file.to_str().and_then(|file| file.strip_suffix(".json"));
        assert!(
            kind.is_some_and(|kind| schemas.contains_key(kind)),
            "docs/schema/{file:?}: nothing is of that kind"
        );
    }
}

/// Every field of a schema must have a description.
#[test]
fn every_field_is_described() {
    fn look(at: &str, schema: &Value, bare: &mut Vec<String>) {
        for (name, field) in schema["properties"].as_object().into_iter().flatten() {
            if !field["description"].is_string() {
                bare.push(format!("{at}.{name}"));
            }
        }
    }
    let mut bare = Vec::new();
    for (kind, schema) in all() {
        look(kind, &schema, &mut bare);
        for (name, part) in schema["$defs"].as_object().into_iter().flatten() {
            look(&format!("{kind}/{name}"), part, &mut bare);
        }
    }
    assert!(bare.is_empty(), "{bare:#?}");
}

/// Every field of a schema must be printed in an object of its kind in a golden file.
#[test]
fn every_field_stands_in_a_golden_file() {
    fn names(value: &Value, into: &mut BTreeSet<String>) {
        match value {
            Value::Object(fields) => {
                for (name, value) in fields {
                    into.insert(name.clone());
                    names(value, into);
                }
            }
            Value::Array(items) => items.iter().for_each(|item| names(item, into)),
            _ => {}
        }
    }
    // While the golden files are written anew some may be missing.
    if golden::blessing() {
        return;
    }
    let mut printed: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for object in golden::objects() {
        let kind = object["kind"].as_str().unwrap_or_default().to_owned();
        names(&object, printed.entry(kind).or_default());
    }
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/schema");
    let mut missing = BTreeSet::new();
    for file in fs::read_dir(&folder).unwrap() {
        let text = fs::read_to_string(file.unwrap().path()).unwrap();
        let schema: Value = serde_json::from_str(&text).unwrap();
        let kind = schema["title"].as_str().unwrap_or_default();
        let parts = schema["$defs"].as_object().into_iter().flat_map(|parts| parts.values());
        for part in parts.chain([&schema]) {
            for (name, _) in part["properties"].as_object().into_iter().flatten() {
                if !printed.get(kind).is_some_and(|names| names.contains(name)) {
                    missing.insert(format!("{kind}: {name}"));
                }
            }
        }
    }
    assert!(
        missing.is_empty(),
        "in no golden file of JSON (`golden.rs` says how they get there): {missing:#?}"
    );
}
