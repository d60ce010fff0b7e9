use super::{
    check::Checker,
    error::Problem,
    explain::explain,
    raw::{RawFile, options},
    view::ClusterView,
};

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
    if let Some(services) = raw.services {
        // A file that ends here may have lost the rest.
        let services = services.ok_or(Problem::NoServices)?;
        checker.services.get_or_insert_default();
        for (s, service) in services.into_iter().enumerate() {
            checker.service(s, &service)?;
        }
    }
    for (f, flag) in raw.flags.iter().flatten().enumerate() {
        checker.flag(f, &flag.node, flag.until.as_ref(), flag.reason.clone().unwrap_or_default())?;
    }
    Ok(checker.finish())
}
