use std::fmt::Display;

use serde::Deserialize;
use serde_saphyr::Spanned;

use super::{
    check::Checker,
    error::{At, Problem},
    explain::explain,
    view::ClusterView,
};

/// The file's shape. Scalars are kept with their places so that what is wrong with a value can be said with its line.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RawFile {
    #[serde(default)]
    nodes: Option<Vec<RawNode>>,
    #[serde(default)]
    flags: Option<Vec<RawFlag>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawNode {
    name: Spanned<String>,
    address: Spanned<String>,
    #[serde(default)]
    zone: Option<String>,
    #[serde(default)]
    backends: Option<Vec<RawBackend>>,
}

/// A backend as it stands in the file.
#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub(super) struct RawBackend {
    pub(super) address: Spanned<String>,
    #[serde(default)]
    pub(super) port: Option<Spanned<String>>,
    #[serde(default)]
    pub(super) protocol: Option<Spanned<String>>,
    #[serde(default)]
    pub(super) host_network: bool,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawFlag {
    node: Spanned<String>,
    #[serde(default)]
    until: Option<Spanned<String>>,
    #[serde(default)]
    reason: Option<String>,
}

/// Reads a cluster file's text, YAML or JSON. Either all of it is right, or nothing is taken.
///
/// # Errors
/// The first thing that is wrong, with its line and field where they are known.
pub fn parse(text: &str, allow_empty: bool) -> Result<ClusterView, Problem> {
    let start = text.trim_start_matches('\u{feff}').trim_start();
    if start.is_empty() {
        return Err(Problem::Empty);
    }
    // A block-style file that lost its end is often still valid YAML. JSON closes itself and may come without the line
    // feed.
    if !text.ends_with('\n') && !(start.starts_with('{') && text.ends_with('}')) {
        return Err(Problem::Truncated);
    }
    let raw: RawFile =
        serde_saphyr::from_str_with_options(text, options()).map_err(|error| explain(text, error))?;
    let nodes = raw.nodes.ok_or(Problem::NoList)?;
    if nodes.is_empty() && !allow_empty {
        return Err(Problem::NoNodes);
    }
    let mut checker = Checker::default();
    // Nodes first: a backend's address is held against the addresses of all nodes.
    for (n, node) in nodes.iter().enumerate() {
        checker.node(n, &node.name, &node.address, node.zone.clone())?;
    }
    for (n, node) in nodes.iter().enumerate() {
        for (b, backend) in node.backends.iter().flatten().enumerate() {
            checker.backend(n, b, backend)?;
        }
    }
    for (f, flag) in raw.flags.iter().flatten().enumerate() {
        checker.flag(f, &flag.node, flag.until.as_ref(), flag.reason.clone().unwrap_or_default())?;
    }
    Ok(checker.finish())
}

/// A file of the largest cluster (16,384 nodes, 262,144 backends and more) stays far below these; they only stop an
/// input that was made to exhaust memory.
pub(super) fn options() -> serde_saphyr::Options {
    serde_saphyr::options! {
        budget: serde_saphyr::budget! {
            max_events: 64_000_000,
            max_nodes: 32_000_000,
            max_total_scalar_bytes: 256 << 20,
        },
        with_snippet: false,
        merge_keys: serde_saphyr::options::MergeKeyPolicy::Error,
    }
}

/// A value that is refused.
pub(super) fn refused<T>(value: &Spanned<T>, field: String, message: impl Display) -> Problem {
    Problem::Invalid {
        at: At { line: value.referenced.line(), column: value.referenced.column(), field },
        message: message.to_string(),
    }
}
