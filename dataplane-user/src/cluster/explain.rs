//! What the YAML reader's errors mean for a cluster file, in this page's words: where, what is wrong, what was expected.

use serde_path_to_error::Segment;
use serde_saphyr::Error;

use super::{
    error::{At, Problem},
    file::{RawFile, options},
};

/// The longest detail of the reader's that is passed on.
const DETAIL: usize = 120;

/// Explains why `text` could not be read.
pub(super) fn explain(text: &str, error: Error) -> Problem {
    let (field, last) = place(text);
    let location = error.location();
    let at = At {
        line: location.map_or(0, |location| location.line()),
        column: location.map_or(0, |location| location.column()),
        field,
    };
    Problem::Invalid { at, message: message(error.without_snippet(), expected(&last)) }
}

/// The field that was being read when the reader stopped, and its name without indexes. Reads the text once more: to keep
/// track of the path costs time that files without errors need not spend.
fn place(text: &str) -> (String, String) {
    let mut segments = Vec::new();
    let _again = serde_saphyr::with_deserializer_from_str_with_options(text, options(), |reader| {
        serde_path_to_error::deserialize::<_, RawFile>(reader).map_err(|error| {
            segments = error.path().iter().cloned().collect();
            error.into_inner()
        })
    });
    let (mut path, mut last) = (String::new(), String::new());
    for segment in segments {
        match segment {
            Segment::Seq { index } => {
                path += &format!("[{index}]");
                last += "[]";
            }
            // `Spanned` is read as a struct with the fields `value`, `referenced` and `defined`.
            Segment::Map { key } if key != "value" => {
                path += if path.is_empty() { "" } else { "." };
                path += &key;
                last = key;
            }
            _ => {}
        }
    }
    (path, last)
}

/// What a field holds; `[]` stands for one element of a list.
fn expected(field: &str) -> &'static str {
    match field {
        "" => "`nodes:` and, optional, `flags:`",
        "nodes" => "a list of nodes, each with name and address",
        "nodes[]" => "a node with name, address and, optional, zone and backends",
        "name" | "node" => "the name of a node",
        "address" => "an IP address",
        "zone" | "reason" => "text",
        "backends" => "a list of backends, each with an address",
        "backends[]" => {
            "a backend with address or, of the host network, address, port, protocol and hostNetwork: true"
        }
        "port" => "1 to 65535",
        "protocol" => "tcp, udp or sctp",
        "hostNetwork" => "true or false",
        "flags" => "a list of flags, each with a node",
        "flags[]" => "a flag with node and, optional, until and reason",
        "until" => "a time as in 2026-12-01T00:00:00Z",
        _ => "a cluster file as `docs/cli.md` describes it",
    }
}

fn message(error: &Error, expected: &str) -> String {
    match error {
        Error::SerdeUnknownField { field, expected, .. } => {
            format!("there is no field `{field}` here: expected {}", expected.join(", "))
        }
        Error::SerdeMissingField { field, .. } => {
            format!("has no `{field}`: expected {}", self::expected(field))
        }
        Error::DuplicateMappingKey { key: Some(key), .. } => {
            format!("`{key}` stands here twice: expected it once")
        }
        Error::DuplicateMappingKey { key: None, .. } => {
            "a key stands here twice: expected it once".to_owned()
        }
        Error::MultipleDocuments { .. } => "a second document begins here: expected one".to_owned(),
        Error::MergeKeyNotAllowed { .. } => {
            "`<<` is not read here: expected the fields themselves".to_owned()
        }
        Error::NullIntoString { .. } => format!("has no value: expected {expected}"),
        Error::Eof { .. } => format!("the file ends here: expected {expected}"),
        Error::UnknownAnchor { .. } => "there is no anchor of this name before here".to_owned(),
        Error::Unexpected { .. }
        | Error::InvalidScalar { .. }
        | Error::InvalidBooleanStrict { .. }
        | Error::TaggedScalarCannotDeserializeIntoString { .. }
        | Error::SerdeInvalidType { .. }
        | Error::SerdeInvalidValue { .. }
        | Error::SerdeInvalidLength { .. } => format!("something else stands here: expected {expected}"),
        // The scanner stopped: which sign it missed is known to it alone.
        other => format!("is no valid YAML or JSON: {}", detail(&other.to_string())),
    }
}

/// The reader's text without its place, which ours begins with, in one line of bounded length.
fn detail(text: &str) -> String {
    let text = text.lines().next().unwrap_or_default();
    let text = text.rfind(" at line ").map_or(text, |cut| &text[..cut]);
    match text.char_indices().nth(DETAIL) {
        Some((cut, _)) => format!("{} ...", &text[..cut]),
        None => text.to_owned(),
    }
}
