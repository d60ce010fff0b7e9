//! A generated cluster: its file, of which one endpoint's address changes by three digits in place. Pure.
//!
//! Node `n` has the addresses 10.x.y.100 and up, of which half are in use: an endpoint that changes goes to its other address and, with
//! the next change, back. A Service's endpoints lie on nodes that follow each other.
use std::{fmt::Write as _, net::Ipv4Addr};

use anyhow::ensure;
use nodefence_common::MAX_NODES;

/// The port that each endpoint serves.
pub(super) const PORT: u16 = 8080;
/// The last byte of a node's first endpoint: all have three digits, so that texts of all changes have one length.
const FIRST: usize = 100;
/// By how much it grows where an endpoint is at its other address; as many endpoints fit on a node.
const PER_NODE: usize = 77;

/// How large it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Sizes {
    pub(crate) nodes: usize,
    pub(crate) services: usize,
    pub(crate) backends: usize,
}

impl Sizes {
    /// Refuses what cannot be generated.
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

/// Two addresses of an endpoint that has just changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Moved {
    pub(super) from: Ipv4Addr,
    pub(super) to: Ipv4Addr,
}

/// The cluster and its file.
pub(super) struct View {
    pub(super) sizes: Sizes,
    text: Vec<u8>,
    /// Where in the text an endpoint's last byte stands.
    digits: Vec<usize>,
    /// Which endpoints are at their other address.
    moved: Vec<bool>,
    /// Which one changed last, where none was asked for.
    last: usize,
}

impl View {
    /// `own`: the address of node 0, on which the agent runs.
    pub(super) fn new(sizes: Sizes, own: Ipv4Addr) -> anyhow::Result<Self> {
        let mut text = String::from("{\"nodes\":[\n");
        let mut digits = Vec::with_capacity(sizes.backends);
        for node in 0..sizes.nodes {
            let address = if node == 0 { own } else { node_address(node) };
            let end = if node + 1 == sizes.nodes { "" } else { "," };
            writeln!(text, "{{\"name\":\"{}\",\"address\":\"{address}\"}}{end}", name(node))?;
        }
        text += "],\"services\":[\n";
        for service in 0..sizes.services {
            let virtual_address = Ipv4Addr::from_bits(0x0a60_0001 + u32::try_from(service)?);
            write!(
                text,
                "{{\"name\":\"bench/service-{service:05}\",\"clusterIPs\":[\"{virtual_address}\"],\
                 \"ports\":[{{\"port\":80,\"targetPort\":{PORT},\"protocol\":\"tcp\"}}],\"endpoints\":["
            )?;
            let first = service * sizes.backends / sizes.services;
            let end = (service + 1) * sizes.backends / sizes.services;
            for backend in first..end {
                let node = backend % sizes.nodes;
                let [a, b, c, host] = address(sizes, backend, false).octets();
                let comma = if backend == first { "" } else { "," };
                write!(text, "{comma}\n{{\"address\":\"{a}.{b}.{c}.")?;
                digits.push(text.len());
                write!(text, "{host}\",\"node\":\"{}\"}}", name(node))?;
            }
            text += if service + 1 == sizes.services { "]}\n" } else { "]},\n" };
        }
        text += "]}\n";
        Ok(Self { sizes, text: text.into_bytes(), digits, moved: vec![false; sizes.backends], last: 0 })
    }

    /// The file as it is now.
    pub(super) fn text(&self) -> &[u8] {
        &self.text
    }

    /// An endpoint's address as it is now.
    pub(super) fn address(&self, backend: usize) -> Ipv4Addr {
        address(self.sizes, backend, self.moved[backend])
    }

    /// Some endpoint goes to its other address, another one each time, of any Service. None of the first one of each node: these have flows.
    pub(super) fn change_any(&mut self) -> Moved {
        let Sizes { nodes, backends, .. } = self.sizes;
        // A prime that does not divide their number: all come before one comes again.
        let stride = if backends % 7_919 == 0 { 7_907 } else { 7_919 };
        loop {
            self.last = (self.last + stride) % backends;
            if self.last >= nodes {
                return self.change(self.last);
            }
        }
    }

    /// An endpoint goes to its other address.
    fn change(&mut self, backend: usize) -> Moved {
        let from = self.address(backend);
        self.moved[backend] = !self.moved[backend];
        let to = self.address(backend);
        let at = self.digits[backend];
        self.text[at..at + 3].copy_from_slice(to.octets()[3].to_string().as_bytes());
        Moved { from, to }
    }
}

/// A node's name.
pub(super) fn name(node: usize) -> String {
    format!("node-{node:05}")
}

/// 172.16.0.0/12.
fn node_address(node: usize) -> Ipv4Addr {
    Ipv4Addr::from_bits(0xac10_0001 + node as u32)
}

/// 10.0.0.0/10: one /24 for each node.
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

    fn parsed(view: &View) -> ClusterView {
        parse(std::str::from_utf8(view.text()).expect("ASCII"), false).expect("a cluster file")
    }

    fn addresses(view: &ClusterView) -> HashSet<std::net::IpAddr> {
        view.nodes.iter().flat_map(|node| &node.backends).map(|backend| backend.address).collect()
    }

    #[test]
    fn the_file_has_what_was_asked_for() {
        let view = View::new(SIZES, Ipv4Addr::new(192, 168, 2, 1)).expect("made");
        let read = parsed(&view);
        assert_eq!((read.nodes.len(), read.backends(), read.endpoints()), (9, 100, Some(100)));
        assert_eq!(read.services.as_ref().map(Vec::len), Some(10));
        assert_eq!(addresses(&read), (0..100).map(|backend| view.address(backend).into()).collect());
    }

    #[test]
    fn a_change_moves_one_endpoint_and_the_next_one_moves_it_back() {
        let mut view = View::new(SIZES, Ipv4Addr::new(192, 168, 2, 1)).expect("made");
        let before = view.text().to_vec();
        let moved = view.change(40);
        let there = addresses(&parsed(&view));
        assert!(there.contains(&moved.to.into()) && !there.contains(&moved.from.into()));
        assert_eq!((there.len(), view.text().len()), (100, before.len()));
        assert_eq!(view.change(40), Moved { from: moved.to, to: moved.from });
        assert_eq!(view.text(), before);
    }

    #[test]
    fn all_but_the_first_of_each_node_change_before_one_changes_again() {
        let mut view = View::new(SIZES, Ipv4Addr::new(192, 168, 2, 1)).expect("made");
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
