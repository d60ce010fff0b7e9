//! Golden files: tests compare what the command line prints with the files of `golden/`. `NODEFENCE_BLESS=1 cargo test -p nodefence --lib golden`
//! writes these files anew; look at what changed. `tests/tests/house/messages.rs` checks that each text of the command line stands in one of
//! them, and `schemas.rs` that each field does.

mod messages;
mod reports;
mod states;

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
};

use serde_json::Value;

use super::{args::Format, output::render};
use crate::report::Document;

/// The formats that most verbs print.
const FORMATS: [Format; 3] = [Format::Table, Format::Json, Format::Yaml];

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("src/cli/golden")
}

/// Whether this run writes the files anew.
pub(super) fn blessing() -> bool {
    std::env::var_os("NODEFENCE_BLESS").is_some()
}

/// Compares a text with its golden file.
pub(crate) fn check(name: &str, text: &str) {
    hold(&folder().join(format!("{name}.txt")), text);
}

/// Compares a text with the file that publishes it, or writes that file anew.
pub(super) fn hold(file: &Path, text: &str) {
    if blessing() {
        fs::write(file, text).expect("a file to write");
    }
    let published = fs::read_to_string(file).unwrap_or_default();
    let bless = "`NODEFENCE_BLESS=1 cargo test -p nodefence --lib` writes it anew";
    assert!(published == text, "{} is not what the code says; {bless}. It says:\n{text}", file.display());
}

/// Compares samples of a report, as the verb prints them in these formats, with the report's golden file. The first sample must have every
/// field set.
pub(super) fn report<T: Document>(
    name: &str,
    samples: &[(&str, T)],
    formats: &[Format],
    print: impl Fn(&T, Format) -> String,
) {
    let (_, first) = samples.first().expect("a sample");
    has_all(name, first, &[]);
    check(name, &sections(samples, formats, print));
}

/// The text of samples as they are printed. A line above each one names the sample and its format.
pub(super) fn sections<T: Document>(
    samples: &[(&str, T)],
    formats: &[Format],
    print: impl Fn(&T, Format) -> String,
) -> String {
    let mut text = String::new();
    for (what, value) in samples {
        for format in formats {
            let shown = render(*format, value, |value| print(value, *format)).expect("text");
            text += &section(what, *format, &shown);
        }
    }
    text
}

fn section(what: &str, format: Format, shown: &str) -> String {
    format!("### {what}, -o {}\n{shown}\n", format!("{format:?}").to_lowercase())
}

/// Checks that a sample sets every field except those in `but`.
fn has_all<T: Document>(name: &str, sample: &T, but: &[&str]) {
    let mut set = BTreeMap::new();
    fields(&serde_json::to_value(sample).expect("JSON"), "", &mut set);
    let unset: Vec<&str> =
        set.iter().filter(|(_, is_set)| !**is_set).map(|(field, _)| field.as_str()).collect();
    assert_eq!(unset, but, "the first sample of {name} does not set them");
}

/// Collects the fields of a value, and whether each is set anywhere.
fn fields(value: &Value, path: &str, found: &mut BTreeMap<String, bool>) {
    match value {
        Value::Object(object) => {
            for (name, value) in object {
                let path = format!("{path}.{name}");
                let is_set = match value {
                    Value::Null => false,
                    Value::String(text) => !text.is_empty(),
                    Value::Array(items) => !items.is_empty(),
                    Value::Object(object) => !object.is_empty(),
                    Value::Bool(_) | Value::Number(_) => true,
                };
                *found.entry(path.clone()).or_default() |= is_set;
                fields(value, &path, found);
            }
        }
        Value::Array(items) => items.iter().for_each(|item| fields(item, path, found)),
        _ => {}
    }
}

/// All JSON objects in the golden files.
pub(super) fn objects() -> Vec<Value> {
    let mut objects = Vec::new();
    for entry in fs::read_dir(folder()).expect("the folder of golden files") {
        let path = entry.expect("a golden file").path();
        if path.extension().is_none_or(|ending| ending != "txt") {
            continue;
        }
        let text = fs::read_to_string(&path).expect("a golden file");
        for section in text.split("### ") {
            let Some((title, shown)) = section.split_once('\n') else { continue };
            if title.ends_with("-o json") {
                let read = serde_json::Deserializer::from_str(shown).into_iter::<Value>();
                objects.extend(read.map_while(Result::ok));
            }
        }
    }
    objects
}

#[test]
fn a_field_that_no_sample_sets_is_found() {
    let mut found = BTreeMap::new();
    fields(&serde_json::json!({"a": [{"b": null}, {"b": 1, "c": ""}], "d": {}}), "", &mut found);
    let unset: Vec<&String> = found.iter().filter_map(|(field, set)| (!set).then_some(field)).collect();
    assert_eq!(unset, [".a.c", ".d"]);
}
