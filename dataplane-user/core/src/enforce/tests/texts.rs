//! Clusters as the file says them.

/// These nodes: `a` is `10.0.0.1`; `a` to `c` stand in zone `x`, others in `y`.
pub(super) fn nodes(names: &str) -> String {
    let node = |name: u8| {
        let zone = if name <= b'c' { "x" } else { "y" };
        let (name, last) = (char::from(name), name - b'`');
        format!(
            "- {{name: {name}, address: 10.0.0.{last}, zone: {zone}, backends: [{{address: 10.2.0.{last}}}]}}\n"
        )
    };
    format!("nodes:\n{}", names.bytes().map(node).collect::<String>())
}

/// One Service for each of these, with an endpoint on each of its nodes: of the first `b` is `10.1.1.2:80`.
pub(super) fn services(all: &[&str]) -> String {
    let service = |(n, on): (usize, &&str)| {
        let endpoint =
            |node: u8| format!("{{address: 10.1.{n}.{}, node: {}}}", node - b'`', char::from(node));
        let endpoints: Vec<String> = on.bytes().map(endpoint).collect();
        format!(
            "- {{name: x/s{n}, clusterIPs: [10.96.0.{n}], ports: [{{port: 80}}], endpoints: [{}]}}\n",
            endpoints.join(", ")
        )
    };
    format!("services:\n{}", (1..).zip(all).map(service).collect::<String>())
}

/// Such a cluster, as the file says it.
pub(super) fn text(names: &str, all: &[&str]) -> String {
    if all.is_empty() { nodes(names) } else { nodes(names) + &services(all) }
}
