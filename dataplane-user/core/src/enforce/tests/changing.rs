//! A small cluster that changes bit by bit, in random histories.

use std::collections::{BTreeMap, BTreeSet};

use super::random::Seeded;
use crate::cluster::{ClusterView, parse};

const NAMES: [char; 6] = ['a', 'b', 'c', 'd', 'e', 'f'];

/// A Service.
#[derive(Clone, Default)]
struct Changing {
    policy: u64,
    /// The last byte of its cluster IP, beside its number.
    address: u64,
    /// By address: how it stands, and for whom it is meant.
    endpoints: BTreeMap<u64, (u64, u64)>,
    /// An endpoint that is tied to no node has the address of this one's backend.
    untied: Option<char>,
    /// An endpoint in the host network of this one.
    host: Option<char>,
}

/// The cluster.
pub(super) struct Cluster {
    /// Nodes and their zones.
    nodes: BTreeMap<char, u64>,
    services: BTreeMap<u64, Changing>,
    /// On which node each address is.
    owners: Vec<char>,
}

impl Cluster {
    pub(super) fn new(random: &mut Seeded) -> Self {
        let mut cluster = Self {
            nodes: NAMES.into_iter().map(|name| (name, random.below(3))).collect(),
            services: (0..4).map(|service| (service, Changing::default())).collect(),
            owners: (0..10).map(|_| random.pick(&NAMES)).collect(),
        };
        for _ in 0..20 {
            cluster.toggle_endpoint(random);
        }
        cluster
    }

    /// Something about it changes. Gives what, in a word.
    pub(super) fn change(&mut self, random: &mut Seeded) -> &'static str {
        match random.below(16) {
            0..3 => {
                let at = random.below(10) as usize;
                self.owners[at] = random.pick(&NAMES);
                "an address moves"
            }
            3..8 => self.toggle_endpoint(random),
            8 => self.toggle_node(random),
            9 => {
                let zone = random.below(3);
                self.nodes.insert('a', zone);
                "the own node's zone"
            }
            10 => {
                let name = random.pick(&NAMES[1..]);
                if let Some(zone) = self.nodes.get_mut(&name) {
                    *zone = random.below(3);
                }
                "a zone"
            }
            11 => {
                let service = random.below(6);
                if self.services.remove(&service).is_none() {
                    self.services.insert(service, Changing::default());
                }
                "a Service comes or goes"
            }
            _ => self.change_service(random),
        }
    }

    fn toggle_endpoint(&mut self, random: &mut Seeded) -> &'static str {
        let (address, kind) = (random.below(10), (random.below(4), random.below(5)));
        if let Some(service) = self.any_service(random)
            && service.endpoints.remove(&address).is_none()
        {
            service.endpoints.insert(address, kind);
        }
        "an endpoint comes or goes"
    }

    fn toggle_node(&mut self, random: &mut Seeded) -> &'static str {
        let name = random.pick(&NAMES[1..]);
        if self.nodes.remove(&name).is_none() {
            self.nodes.insert(name, random.below(3));
        }
        "a node comes or goes"
    }

    fn change_service(&mut self, random: &mut Seeded) -> &'static str {
        let (what, name, number) = (random.below(4), random.pick(&NAMES), random.below(3));
        let Some(service) = self.any_service(random) else { return "nothing" };
        let toggled = |there: &Option<char>| if there.is_some() { None } else { Some(name) };
        match what {
            0 => service.policy = number,
            1 => service.address = number,
            2 => service.untied = toggled(&service.untied),
            _ => service.host = toggled(&service.host),
        }
        ["policies", "a virtual address", "an endpoint of no node", "a host-network endpoint"][what as usize]
    }

    fn any_service(&mut self, random: &mut Seeded) -> Option<&mut Changing> {
        let keys: Vec<u64> = self.services.keys().copied().collect();
        if keys.is_empty() {
            return None;
        }
        self.services.get_mut(&random.pick(&keys))
    }

    pub(super) fn view(&self) -> ClusterView {
        let mut text = String::from("nodes:\n");
        for (name, zone) in &self.nodes {
            let zone = ["", ", zone: x", ", zone: y"][*zone as usize];
            let last = *name as u8 - b'`';
            text += &format!(
                "- {{name: {name}, address: 10.0.0.{last}{zone}, backends: [{{address: 10.2.0.{last}}}]}}\n"
            );
        }
        text += if self.services.is_empty() { "services: []\n" } else { "services:\n" };
        for (number, service) in &self.services {
            text += &self.service(*number, service);
        }
        parse(&text, true).unwrap_or_else(|error| panic!("{error}\n{text}"))
    }

    fn service(&self, number: u64, service: &Changing) -> String {
        let mut endpoints = Vec::new();
        for (address, (state, hints)) in &service.endpoints {
            let owner = self.owners[*address as usize];
            if !self.nodes.contains_key(&owner) {
                continue;
            }
            let state = ["", "", ", ready: false", ", ready: false, serving: true, terminating: true"]
                [*state as usize];
            let hints = ["", "", "", ", zone: x, hints: {zones: [x]}", ", zone: x, hints: {nodes: [a]}"]
                [*hints as usize];
            endpoints.push(format!("{{address: 10.1.0.{}, node: {owner}{state}{hints}}}", address + 1));
        }
        let there = |name: &Option<char>| name.filter(|name| self.nodes.contains_key(name));
        if let Some(name) = there(&service.untied) {
            endpoints.push(format!("{{address: 10.2.0.{}}}", name as u8 - b'`'));
        }
        if let Some(name) = there(&service.host) {
            endpoints
                .push(format!("{{address: 10.0.0.{}, node: {name}, hostNetwork: true}}", name as u8 - b'`'));
        }
        let policy = match service.policy {
            0 => String::new(),
            1 => "internalTrafficPolicy: Local, ".to_owned(),
            _ => format!("externalIPs: [192.0.2.{}], externalTrafficPolicy: Local, ", number + 1),
        };
        let address = format!("10.96.{}.{}", service.address, number + 1);
        format!(
            "- {{name: x/s{number}, clusterIPs: [{address}], {policy}ports: [{{port: 80}}], endpoints: [{}]}}\n",
            endpoints.join(", ")
        )
    }
}

/// All names that a node may have.
pub(super) fn names() -> BTreeSet<String> {
    NAMES.into_iter().map(String::from).collect()
}
