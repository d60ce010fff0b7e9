//! A source that delivers single objects, with conflicts among them.

use std::{collections::BTreeMap, net::IpAddr, sync::Arc};

use crate::cluster::{
    build::{Builder, Change, Rules},
    node::NodeName,
    object::{EndpointObject, NodeObject, ObjectName, ServiceObject, SliceObject},
    protocol::Protocol,
    service::{ServiceMode, ServicePort, TrafficPolicy},
    view::{Backend, Scope},
};

/// SplitMix64: a seed gives the same history everywhere.
pub(crate) struct Seeded(u64);

impl Seeded {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// Less than `end`.
    pub(crate) fn below(&mut self, end: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % end
    }

    /// In so many of a hundred cases.
    pub(crate) fn percent(&mut self, of: u64) -> bool {
        self.below(100) < of
    }

    pub(crate) fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.below(from.len() as u64) as usize]
    }
}

const NODES: [&str; 5] = ["a", "b", "c", "d", "Not-a-node"];
const SERVICES: [&str; 4] = ["x/a", "x/b", "x/c", "no-namespace"];
const SLICES: [&str; 6] = ["x/a-1", "x/a-2", "x/b-1", "x/b-2", "x/c-1", "x/d-1"];
const PORTS: [&str; 3] = ["http", "dns", "Bad"];
const PROTOCOLS: [Protocol; 2] = [Protocol::Tcp, Protocol::Udp];

/// The objects that a source has at one moment.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Source {
    pub(crate) nodes: BTreeMap<NodeName, NodeObject>,
    pub(crate) services: BTreeMap<Arc<str>, ServiceObject>,
    pub(crate) slices: BTreeMap<Arc<str>, SliceObject>,
}

impl Source {
    /// Something happens there. Now and then the same is told once more, or all objects of a kind are, after some had changed unseen.
    pub(crate) fn happen(&mut self, random: &mut Seeded) -> Change {
        let relist = random.percent(12);
        let times = if relist { 1 + random.below(3) } else { 1 };
        match random.below(8) {
            0..=2 => {
                let change = (0..times).map(|_| self.node(random)).last();
                let all = || Change::Nodes(self.nodes.values().cloned().collect());
                change.filter(|_| !relist).unwrap_or_else(all)
            }
            3 | 4 => {
                let change = (0..times).map(|_| self.service(random)).last();
                let all = || Change::Services(self.services.values().cloned().collect());
                change.filter(|_| !relist).unwrap_or_else(all)
            }
            _ => {
                let change = (0..times).map(|_| self.slice(random)).last();
                let all = || Change::Slices(self.slices.values().cloned().collect());
                change.filter(|_| !relist).unwrap_or_else(all)
            }
        }
    }

    /// A builder that takes all objects at once, in the order of this number.
    pub(crate) fn told(&self, rules: Rules, order: u64) -> Builder {
        let mut builder = Builder::new(rules);
        let mut changes = [
            Change::Nodes(self.nodes.values().cloned().collect()),
            Change::Services(self.services.values().cloned().collect()),
            Change::Slices(self.slices.values().rev().cloned().collect()),
        ];
        changes.rotate_left((order % 3) as usize);
        if order % 2 == 1 {
            changes.swap(0, 1);
        }
        for change in changes {
            builder.apply(change);
        }
        builder
    }

    fn node(&mut self, random: &mut Seeded) -> Change {
        let name = NodeName::from(random.pick(&NODES));
        if random.percent(25) {
            self.nodes.remove(&name);
            return Change::Gone(ObjectName::Node(name));
        }
        let backends = (0..random.below(3)).map(|_| {
            let port = Scope::Port(random.pick(&[80, 81]), random.pick(&PROTOCOLS));
            Backend { address: address(random), scope: random.pick(&[Scope::Address, port]) }
        });
        let backends = backends.collect();
        let node = NodeObject {
            addresses: (0..random.below(3)).map(|_| address(random)).collect(),
            zone: random.percent(50).then(|| random.pick(&["p", "q"]).into()),
            pool: random.percent(50).then(|| random.pick(&["p", "q"]).into()),
            name: name.clone(),
            uid: None,
            backends,
        };
        self.nodes.insert(name, node.clone());
        Change::Node(node)
    }

    fn service(&mut self, random: &mut Seeded) -> Change {
        let name: Arc<str> = random.pick(&SERVICES).into();
        if random.percent(20) {
            self.services.remove(&name);
            return Change::Gone(ObjectName::Service(name));
        }
        let (several, names) = (1 + random.below(2), if random.percent(5) { 3 } else { 2 });
        let several = if random.percent(4) { 0 } else { several };
        let ports = (0..several).map(|_| ServicePort {
            name: random.pick(&PORTS[..names]).to_owned(),
            protocol: random.pick(&PROTOCOLS),
            port: random.pick(&[80, 81]),
            target: random.pick(&[80, 81]),
            node_port: random.percent(30).then(|| random.pick(&[30_080, 30_081])),
        });
        let ports = ports.collect();
        let mut ips = |percent| -> Vec<IpAddr> {
            let several = (0..2).filter(|_| random.percent(percent)).count();
            (0..several).map(|_| [10, 96, 0, 1 + random.below(5) as u8].into()).collect()
        };
        let service = ServiceObject {
            cluster_ips: ips(30),
            external_ips: ips(15),
            load_balancer_ips: ips(15),
            affinity: None,
            internal: random.pick(&[TrafficPolicy::Cluster, TrafficPolicy::Local]),
            external: TrafficPolicy::Cluster,
            mode: ServiceMode::Cut,
            ports,
            name: Arc::clone(&name),
        };
        self.services.insert(name, service.clone());
        Change::Service(service)
    }

    fn slice(&mut self, random: &mut Seeded) -> Change {
        let name: Arc<str> = random.pick(&SLICES).into();
        if random.percent(20) {
            self.slices.remove(&name);
            return Change::Gone(ObjectName::Slice(name));
        }
        let service = if random.percent(90) { &name[..3] } else { random.pick(&SERVICES) };
        let addresses: Vec<IpAddr> = (0..random.below(4)).map(|_| address(random)).collect();
        let endpoints = addresses.into_iter().map(|address| EndpointObject {
            address,
            node: random.percent(90).then(|| usual(address, random).into()),
            host_network: random.percent(15),
            zone: None,
            ports: random.percent(30).then(|| {
                let ports = (0..random.below(3)).map(|_| (random.pick(&PORTS).to_owned(), 80));
                Arc::new(ports.collect())
            }),
            ready: random.percent(80),
            serving: true,
            terminating: false,
            hints: None,
        });
        let slice =
            SliceObject { service: service.into(), endpoints: endpoints.collect(), name: Arc::clone(&name) };
        self.slices.insert(name, slice.clone());
        Change::Slice(slice)
    }
}

/// Mostly the same node: else nearly all would be disputed.
fn usual(address: IpAddr, random: &mut Seeded) -> &'static str {
    let last = match address {
        IpAddr::V4(v4) => usize::from(v4.octets()[3]),
        IpAddr::V6(v6) => usize::from(v6.segments()[7]),
    };
    if random.percent(90) { NODES[last % 4] } else { random.pick(&NODES) }
}

/// Few enough that nodes and Services often have the same one, and now and then one that nobody can have.
fn address(random: &mut Seeded) -> IpAddr {
    match random.below(40) {
        0 => [127, 0, 0, 1].into(),
        n @ 1..5 => [0xfd00, 0, 0, 0, 0, 0, 0, n as u16].into(),
        n => [10, 0, 0, 1 + (n % 17) as u8].into(),
    }
}
