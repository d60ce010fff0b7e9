//! A generated cluster whose endpoints change their addresses. It is given as a file, and as lines for `nodefence-objects`. Pure.
//!
//! A node has the addresses from 10.x.y.100 on, of which half are in use. A change moves an endpoint to its other address, and the next change moves
//! it back. The endpoints of a Service lie on consecutive nodes. Each Service has one slice.
use std::{collections::BTreeSet, fmt::Write as _, net::Ipv4Addr, ops::Range};

use anyhow::ensure;
use nodefence_common::MAX_NODES;

/// The port that each endpoint serves.
pub(super) const PORT: u16 = 8080;
/// The last byte of a node's first endpoint.
const FIRST: usize = 100;
/// The difference between the two addresses of an endpoint. This many endpoints fit on a node.
const PER_NODE: usize = 77;

/// The size of the cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Sizes {
    pub(crate) nodes: usize,
    pub(crate) services: usize,
    pub(crate) backends: usize,
}

impl Sizes {
    /// Fails if a cluster of these sizes cannot be generated.
    pub(super) fn check(&self) -> anyhow::Result<()> {
        let Self { nodes, services, backends } = *self;
        ensure!(
            (4..=MAX_NODES as usize).contains(&nodes),
            "--nodes: 4 to {MAX_NODES}, the places that the maps have"
        );
        ensure!((1..=65_536).contains(&services), "--services: 1 to 65536");
        ensure!(
            (2 * nodes.max(services)..=PER_NODE * nodes).contains(&backends),
            "--backends: two or more for each node and each Service, and {PER_NODE} a node at most: {} to {}",
            2 * nodes.max(services),
            PER_NODE * nodes
        );
        Ok(())
    }
}

/// The two addresses of an endpoint that has just changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Moved {
    /// The Service of the endpoint.
    service: usize,
    pub(super) from: Ipv4Addr,
    pub(super) to: Ipv4Addr,
}

/// The cluster.
pub(super) struct View {
    pub(super) sizes: Sizes,
    /// The address of node 0, on which the agent runs.
    own: Ipv4Addr,
    /// Whether each endpoint is at the second of its addresses.
    moved: Vec<bool>,
    /// The endpoint that `change_any` changed last.
    last: usize,
}

impl View {
    pub(super) fn new(sizes: Sizes, own: Ipv4Addr) -> Self {
        Self { sizes, own, moved: vec![false; sizes.backends], last: 0 }
    }

    fn node(&self, node: usize) -> Ipv4Addr {
        if node == 0 { self.own } else { node_address(node) }
    }

    /// The endpoints of a Service.
    fn endpoints(&self, service: usize) -> Range<usize> {
        let Sizes { services, backends, .. } = self.sizes;
        service * backends / services..(service + 1) * backends / services
    }

    /// The cluster file of the current state.
    pub(super) fn file(&self) -> String {
        let mut nodes = Vec::with_capacity(self.sizes.nodes);
        for node in 0..self.sizes.nodes {
            nodes.push(format!("{{\"name\":\"{}\",\"address\":\"{}\"}}", name(node), self.node(node)));
        }
        let mut services = Vec::with_capacity(self.sizes.services);
        for service in 0..self.sizes.services {
            let endpoint = |backend| {
                let node = name(backend % self.sizes.nodes);
                format!("{{\"address\":\"{}\",\"node\":\"{node}\"}}", self.address(backend))
            };
            let endpoints: Vec<String> = self.endpoints(service).map(endpoint).collect();
            services.push(format!(
                "{{\"name\":\"{}\",\"clusterIPs\":[\"{}\"],\
                 \"ports\":[{{\"port\":80,\"targetPort\":{PORT},\"protocol\":\"tcp\"}}],\"endpoints\":[\n{}]}}",
                service_name(service),
                virtual_address(service),
                endpoints.join(",\n")
            ));
        }
        format!("{{\"nodes\":[\n{}\n],\"services\":[\n{}\n]}}\n", nodes.join(",\n"), services.join(",\n"))
    }

    /// Lines that tell `nodefence-objects` of all objects.
    pub(super) fn lists(&self) -> String {
        let mut text = "nodes".to_owned();
        for node in 0..self.sizes.nodes {
            let _ = write!(text, " {}={}", name(node), self.node(node));
        }
        text += "\nservices";
        for service in 0..self.sizes.services {
            let _ = write!(text, " {}={}:80", service_name(service), virtual_address(service));
        }
        text += "\nslices";
        for service in 0..self.sizes.services {
            self.slice(service, &mut text);
        }
        text + "\n"
    }

    /// Lines that tell `nodefence-objects` of these changes.
    pub(super) fn lines(&self, changes: &[Moved]) -> String {
        let services: BTreeSet<usize> = changes.iter().map(|change| change.service).collect();
        let mut text = String::new();
        for service in services {
            text += "slice";
            self.slice(service, &mut text);
            text.push('\n');
        }
        text
    }

    /// Appends a Service's slice, after a space.
    fn slice(&self, service: usize, text: &mut String) {
        let _ = write!(text, " slice-{service:05}={}:", service_name(service));
        for backend in self.endpoints(service) {
            let comma = if backend == self.endpoints(service).start { "" } else { "," };
            let _ = write!(text, "{comma}{}@{}", self.address(backend), name(backend % self.sizes.nodes));
        }
    }

    /// The current address of an endpoint.
    pub(super) fn address(&self, backend: usize) -> Ipv4Addr {
        address(self.sizes, backend, self.moved[backend])
    }

    /// Moves an endpoint to its other address. Each call takes another endpoint. The first endpoint of each node never moves, since flows go to it.
    pub(super) fn change_any(&mut self) -> Moved {
        let Sizes { nodes, backends, .. } = self.sizes;
        // The step is a prime that does not divide the number of endpoints, so every endpoint moves before one moves again.
        let stride = if backends % 7_919 == 0 { 7_907 } else { 7_919 };
        loop {
            self.last = (self.last + stride) % backends;
            if self.last >= nodes {
                return self.change(self.last);
            }
        }
    }

    /// Moves an endpoint to its other address.
    fn change(&mut self, backend: usize) -> Moved {
        let from = self.address(backend);
        self.moved[backend] = !self.moved[backend];
        let Sizes { services, backends, .. } = self.sizes;
        // This is the last Service whose first endpoint is this one or comes before it.
        let service = ((backend + 1) * services - 1) / backends;
        Moved { service, from, to: self.address(backend) }
    }
}

/// A node's name.
pub(super) fn name(node: usize) -> String {
    format!("node-{node:05}")
}

fn service_name(service: usize) -> String {
    format!("bench/service-{service:05}")
}

/// A Service's address, of 10.96.0.0/12.
fn virtual_address(service: usize) -> Ipv4Addr {
    Ipv4Addr::from_bits(0x0a60_0001 + service as u32)
}

/// A node's address, of 172.16.0.0/12.
fn node_address(node: usize) -> Ipv4Addr {
    Ipv4Addr::from_bits(0xac10_0001 + node as u32)
}

/// An endpoint's address, of 10.0.0.0/10: each node has one /24.
fn address(sizes: Sizes, backend: usize, moved: bool) -> Ipv4Addr {
    let node = backend % sizes.nodes;
    let host = FIRST + backend / sizes.nodes + if moved { PER_NODE } else { 0 };
    Ipv4Addr::from_bits(0x0a00_0000 + ((node as u32) << 8) + host as u32)
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use nodefence::cluster::{ClusterView, parse};

    use super::*;

    const SIZES: Sizes = Sizes { nodes: 9, services: 10, backends: 100 };

    fn made() -> View {
        View::new(SIZES, Ipv4Addr::new(192, 168, 2, 1))
    }

    fn parsed(view: &View) -> ClusterView {
        parse(&view.file(), false).expect("a cluster file")
    }

    fn addresses(view: &ClusterView) -> HashSet<std::net::IpAddr> {
        view.nodes.iter().flat_map(|node| &node.backends).map(|backend| backend.address).collect()
    }

    #[test]
    fn the_file_has_what_was_asked_for() {
        let view = made();
        let read = parsed(&view);
        assert_eq!((read.nodes.len(), read.backends(), read.endpoints()), (9, 100, Some(100)));
        assert_eq!(read.services.as_ref().map(Vec::len), Some(10));
        assert_eq!(addresses(&read), (0..100).map(|backend| view.address(backend).into()).collect());
    }

    #[test]
    fn the_lists_have_what_the_file_has() {
        let view = made();
        let lists = view.lists();
        let lines: Vec<&str> = lists.lines().collect();
        let [nodes, services, slices] = lines[..] else { panic!("{lists}") };
        let count = |line: &str| line.split(' ').count() - 1;
        assert_eq!((count(nodes), count(services), count(slices)), (9, 10, 10));
        for backend in 0..100 {
            let endpoint = format!("{}@{}", view.address(backend), name(backend % 9));
            assert_eq!(slices.matches(&endpoint).count(), 1, "{endpoint} in {slices}");
        }
    }

    #[test]
    fn a_change_moves_one_endpoint_and_the_next_one_moves_it_back() {
        let mut view = made();
        let before = view.file();
        for backend in [9, 39, 40, 99] {
            let moved = view.change(backend);
            let there = addresses(&parsed(&view));
            assert!(there.contains(&moved.to.into()) && !there.contains(&moved.from.into()));
            assert_eq!(there.len(), 100);
            let line = view.lines(&[moved, moved]);
            assert_eq!((line.lines().count(), line.matches(&moved.to.to_string()).count()), (1, 1), "{line}");
            assert!(view.lists().contains(line.trim_start_matches("slice").trim_end()), "{line}");
            let back = view.change(backend);
            assert_eq!((back.from, back.to), (moved.to, moved.from));
        }
        assert_eq!(view.file(), before);
    }

    #[test]
    fn all_but_the_first_of_each_node_change_before_one_changes_again() {
        let mut view = made();
        let first: HashSet<_> = (0..91).map(|_| view.change_any().from).collect();
        assert_eq!(first, (9..100).map(|backend| address(SIZES, backend, false)).collect());
    }

    #[test]
    fn sizes_that_cannot_be_generated_are_refused() {
        let ok = |nodes, services, backends| Sizes { nodes, services, backends }.check().is_ok();
        assert!(ok(5_000, 10_000, 150_000) && ok(4, 1, 308));
        assert!(!ok(3, 1, 100) && !ok(4, 1, 309) && !ok(20_000, 1, 150_000) && !ok(5_000, 10_000, 10_000));
    }

    #[test]
    fn no_two_endpoints_share_an_address() {
        let sizes = Sizes { nodes: 5_000, services: 10_000, backends: 150_000 };
        let both = [false, true].map(|moved| (0..sizes.backends).map(move |at| address(sizes, at, moved)));
        assert_eq!(both.into_iter().flatten().collect::<HashSet<_>>().len(), 300_000);
    }
}
