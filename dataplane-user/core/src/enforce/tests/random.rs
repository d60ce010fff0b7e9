//! Random numbers and clusters.

use std::sync::Arc;

use super::model::Cluster;

/// SplitMix64: a seed gives the same history everywhere.
pub(super) struct Seeded(u64);

impl Seeded {
    pub(super) fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub(super) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Less than `end`.
    pub(super) fn below(&mut self, end: u64) -> u64 {
        self.next() % end
    }

    /// In so many of a hundred cases.
    pub(super) fn percent(&mut self, of: u64) -> bool {
        self.below(100) < of
    }

    pub(super) fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.below(from.len() as u64) as usize]
    }
}

/// The nodes of random clusters; the first is the own one.
pub(super) const NODES: [&str; 6] = ["a", "b", "c", "d", "e", "f"];

/// Some of the nodes and Services. An address is on one node in one cluster and on another in the next.
pub(super) fn cluster(random: &mut Seeded) -> Arc<Cluster> {
    let mut text = String::from("nodes:\n");
    let there: Vec<&str> = NODES.into_iter().filter(|name| *name == "a" || random.percent(80)).collect();
    for name in &there {
        let last = name.as_bytes()[0] - b'`';
        let zone = if random.percent(70) { if last < 4 { ", zone: x" } else { ", zone: y" } } else { "" };
        text += &format!(
            "- {{name: {name}, address: 10.0.0.{last}{zone}, backends: [{{address: 10.2.0.{last}}}]}}\n"
        );
    }
    if random.percent(5) {
        return Cluster::parse(&text);
    }
    // Where each address is in this cluster.
    let owners: Vec<&str> = (0..12).map(|_| random.pick(&there)).collect();
    text += "services:\n";
    for service in 1..=1 + random.below(5) {
        let mut endpoints = Vec::new();
        for (address, owner) in owners.iter().enumerate() {
            if !random.percent(16) {
                continue;
            }
            let state = match random.below(12) {
                0 => ", ready: false",
                1 => ", ready: false, serving: true, terminating: true",
                _ => "",
            };
            let hints = match random.below(10) {
                0 => ", hints: {zones: [x]}",
                1 => ", hints: {zones: [y]}",
                _ => "",
            };
            let zone = if hints.is_empty() { "" } else { ", zone: x" };
            endpoints.push(format!("{{address: 10.1.0.{}, node: {owner}{state}{zone}{hints}}}", address + 1));
        }
        if random.percent(10) {
            let node = random.pick(&there).as_bytes()[0] - b'`';
            endpoints.push(format!("{{address: 10.2.0.{node}}}"));
        }
        if random.percent(15) {
            let node = random.pick(&there);
            let last = node.as_bytes()[0] - b'`';
            endpoints.push(format!("{{address: 10.0.0.{last}, node: {node}, hostNetwork: true}}"));
        }
        let policy = match random.below(6) {
            0 => "internalTrafficPolicy: Local, ",
            1 => "externalIPs: [192.0.2.1], externalTrafficPolicy: Local, ",
            _ => "",
        };
        let left_out = if random.percent(8) { "mode: observe, " } else { "" };
        let policy = left_out.to_owned() + policy;
        let policy = policy.replace("192.0.2.1", &format!("192.0.2.{service}"));
        text += &format!(
            "- {{name: x/s{service}, clusterIPs: [10.96.0.{service}], {policy}ports: [{{port: 80, targetPort: {}}}], endpoints: [{}]}}\n",
            80 + service % 3,
            endpoints.join(", ")
        );
    }
    Cluster::parse(&text)
}

/// The same without one of its endpoints.
pub(super) fn without_one(random: &mut Seeded, cluster: &Cluster) -> Arc<Cluster> {
    let text = &cluster.text;
    let services = text.find("services:").unwrap_or(text.len());
    let endpoints = text.match_indices("{address: 10.1.0.").map(|(at, _)| at).filter(|at| *at > services);
    let endpoints: Vec<usize> = endpoints.collect();
    if endpoints.is_empty() {
        return Cluster::parse(text);
    }
    let begin = random.pick(&endpoints);
    let mut depth = 0;
    let end = text[begin..].find(|c| {
        depth += i32::from(c == '{') - i32::from(c == '}');
        depth == 0
    });
    let end = begin + end.expect("it is closed") + 1;
    // With the comma behind it, or before it where it is the last one.
    let (before, behind) = (&text[..begin], &text[end..]);
    let (before, behind) = match behind.strip_prefix(", ") {
        Some(behind) => (before, behind),
        None => (before.strip_suffix(", ").unwrap_or(before), behind),
    };
    Cluster::parse(&format!("{before}{behind}"))
}
