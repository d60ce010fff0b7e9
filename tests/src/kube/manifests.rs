//! The plain manifests in `deploy/`, which helm makes of the chart.

use anyhow::{Result, ensure};

/// The manifests, which are the chart's with its default values.
pub const MANIFESTS: &str = include_str!("../../../deploy/manifests/nodefence.yaml");

/// The documents of one kind, each with its name.
///
/// # Errors
/// Fails if the manifests have none of that kind.
pub fn manifests(kind: &str) -> Result<Vec<(&'static str, &'static str)>> {
    let line = |document: &'static str, key| document.lines().find_map(move |line| line.strip_prefix(key));
    let is_of_kind = |document: &&'static str| line(document, "kind: ") == Some(kind);
    let named = |document: &'static str| Some((line(document, "  name: ")?, document));
    let found: Vec<_> = MANIFESTS.split("\n---\n").filter(is_of_kind).filter_map(named).collect();
    ensure!(!found.is_empty(), "deploy/manifests/nodefence.yaml has no {kind}");
    Ok(found)
}
