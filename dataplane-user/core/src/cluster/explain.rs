//! What the YAML reader's errors mean for a cluster file, in this page's words: where, what is wrong, what was expected.

use serde_path_to_error::Segment;
use serde_saphyr::Error;

use super::{
    error::{At, Problem},
    raw::{RawFile, options},
};

/// The longest detail of the reader's that is passed on.
const DETAIL: usize = 120;

/// Explains why `text` could not be read.
pub(super) fn explain(text: &str, error: Error) -> Problem {
    let (field, kind) = place(text);
    let location = error.location();
    let at = At {
        line: location.map_or(0, |location| location.line()),
        column: location.map_or(0, |location| location.column()),
        field,
    };
    Problem::Invalid { at, message: message(error.without_snippet(), &kind) }
}

/// The field that was being read when the reader stopped, and its kind: the same without indexes. Reads the text once more: to
/// keep track of the path costs time that files without errors need not spend.
fn place(text: &str) -> (String, String) {
    let mut segments = Vec::new();
    let _again = serde_saphyr::with_deserializer_from_str_with_options(text, options(), |reader| {
        serde_path_to_error::deserialize::<_, RawFile>(reader).map_err(|error| {
            segments = error.path().iter().cloned().collect();
            error.into_inner()
        })
    });
    let (mut path, mut kind) = (String::new(), String::new());
    for segment in segments {
        match segment {
            Segment::Seq { index } => {
                path += &format!("[{index}]");
                kind += "[]";
            }
            // A value with its place is read as a struct with the fields `value`, `referenced` and `defined`.
            Segment::Map { key } if key != "value" => {
                for text in [&mut path, &mut kind] {
                    *text += if text.is_empty() { "" } else { "." };
                    *text += &key;
                }
            }
            _ => {}
        }
    }
    (path, kind)
}

/// What a field of this kind holds.
fn expected(kind: &str) -> &'static str {
    let last = kind.rsplit('.').next().unwrap_or_default();
    if kind.starts_with("services[].endpoints[].ports.") {
        return "1 to 65535";
    }
    match (kind, last) {
        ("", _) => "`nodes:` and, optional, `services:` and `flags:`",
        ("nodes", _) => "a list of nodes, each with name and address",
        ("nodes[]", _) => "a node with name, address and, optional, zone and backends",
        ("services", _) => "a list of Services, each with name and ports",
        ("services[]", _) => "a Service with name, ports and, optional, clusterIPs, endpoints and others",
        ("services[].name", _) => "namespace and name of a Service as in default/web",
        ("services[].ports", _) => "a list of ports, each with its number",
        ("services[].ports[]", _) => {
            "a port with port and, optional, name, protocol, targetPort and nodePort"
        }
        ("services[].ports[].name", _) => "the name of a port",
        ("services[].endpoints", _) => "a list of endpoints, each with an address",
        ("services[].endpoints[]", _) => "an endpoint with address and, optional, node, ports and others",
        ("services[].endpoints[].ports", _) => "the endpoint's ports by name, as in { http: 8080 }",
        ("services[].endpoints[].hints", _) => "hints with zones or nodes",
        (_, "backends") => "a list of backends, each with an address",
        (_, "backends[]") => {
            "a backend with address or, of the host network, address, port, protocol and hostNetwork: true"
        }
        ("flags", _) => "a list of flags, each with a node",
        ("flags[]", _) => "a flag with node and, optional, until and reason",
        (_, "name" | "node" | "nodes[]") => "the name of a node",
        (_, "address" | "clusterIPs[]" | "externalIPs[]" | "loadBalancerIPs[]") => "an IP address",
        (_, "clusterIPs" | "externalIPs" | "loadBalancerIPs") => "a list of IP addresses",
        (_, "zone" | "zones[]" | "reason") => "text",
        (_, "zones" | "nodes") => "a list of names",
        (_, "port" | "targetPort" | "nodePort") => "1 to 65535",
        (_, "protocol") => "tcp, udp or sctp",
        (_, "hostNetwork" | "ready" | "serving" | "terminating") => "true or false",
        (_, "sessionAffinity") => "None or ClientIP",
        (_, "sessionAffinityTimeoutSeconds") => "a number of seconds",
        (_, "internalTrafficPolicy" | "externalTrafficPolicy") => "Cluster or Local",
        (_, "until") => "a time as in 2026-12-01T00:00:00Z",
        _ => "a cluster file as `docs/cli.md` describes it",
    }
}

fn message(error: &Error, kind: &str) -> String {
    let expected = expected(kind);
    match error {
        Error::SerdeUnknownField { field, expected, .. } => {
            format!("there is no field `{field}` here: expected {}", expected.join(", "))
        }
        Error::SerdeMissingField { field, .. } => {
            format!("has no `{field}`: expected {}", self::expected(&format!("{kind}.{field}")))
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
