//! Cuts node B of a cluster through the library, without an agent.

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    net::IpAddr,
};

use nix::time::{ClockId, clock_gettime};
use nodefence::{
    conntrack::Backends,
    dataplane::{Dataplane, Options},
    plan::Tables,
};
use nodefence_common::{Action, Addr, BackendEntry, NodeEntry, PortKey, Verdict, backend_flags, port_flags};

use crate::{Cluster, Family, Node, expected::ExpectedMaps, topology::Service};

/// A cut of node B, which is flagged in node A's maps for two minutes.
pub struct Cut {
    /// Node A's dataplane. Its attachments stay after the drop, until the namespace ends.
    pub dataplane: Dataplane,
    /// Indexes of the devices to which the dataplane is attached.
    pub attached: HashSet<u32>,
    /// Node B's backends.
    pub backends: Backends<usize>,
}

impl Cut {
    /// Loads the programs, attaches them to node A's devices, and flags node B.
    ///
    /// # Panics
    /// Panics if one of these steps fails.
    pub fn node_b(cluster: &Cluster) -> Self {
        let wanted = flagged(&cluster.b);
        let devices: Vec<String> = cluster.interfaces().into_iter().map(str::to_owned).collect();
        let (dataplane, attached) = cluster.a.ns.run(move || {
            let mut dataplane = Dataplane::open(&Options::default()).expect("open the dataplane");
            wanted.write(&mut dataplane).expect("write the tables and the verdict");
            let attached =
                dataplane.devices.attach(&devices).expect("look at devices").into_iter().map(|status| {
                    assert_eq!(status.error, None, "{}", status.name);
                    status.ifindex
                });
            let attached = attached.collect();
            (dataplane, attached)
        });
        let mut backends = Backends::new();
        for family in [Family::V4, Family::V6] {
            backends.add_address(cluster.b.pod_address(family).into(), 0);
            backends.add_port(host_port(&cluster.b, family), 0);
        }
        Self { dataplane, attached, backends }
    }

    /// Node B's own addresses and those of its backends.
    pub fn own(cluster: &Cluster) -> HashSet<IpAddr> {
        let of = |family| [cluster.b.address(family), cluster.b.pod_address(family)];
        [of(Family::V4), of(Family::V6)].concat().into_iter().collect()
    }
}

fn flagged(b: &Node) -> ExpectedMaps {
    let (backends, ports) = backends_of(b, 1);
    let nodes = BTreeMap::from([(1, entry(Verdict::Flagged, 120))]);
    ExpectedMaps { tables: Tables { backends, ports }, nodes }
}

/// A node's entry with a verdict that holds for this many seconds and refuses packets.
pub(crate) fn entry(verdict: Verdict, seconds: u64) -> NodeEntry {
    let now = clock_gettime(ClockId::CLOCK_MONOTONIC).map_or(0, |now| now.tv_sec());
    NodeEntry {
        verdict: verdict as u32,
        action: Action::Refuse as u32,
        until: (now as u64 + seconds) * 1_000_000_000,
        generation: 1,
        name: [0; 28],
    }
}

/// A node's backends and ports under this index. The node's pod is a backend by address, its host-network server by address, port and protocol.
pub(crate) fn backends_of(node: &Node, index: u32) -> (HashMap<Addr, BackendEntry>, HashMap<PortKey, u32>) {
    let mut backends = HashMap::new();
    let mut ports = HashMap::new();
    for family in [Family::V4, Family::V6] {
        let backend = BackendEntry { node: index, generation: 1, flags: 0 };
        backends.insert(Addr::from(node.pod_address(family)), backend);
        let host = BackendEntry { flags: backend_flags::PORT_SCOPED, ..backend };
        backends.insert(Addr::from(node.address(family)), host);
        ports.insert(host_port(node, family), port_flags::CUT);
    }
    (backends, ports)
}

fn host_port(b: &Node, family: Family) -> PortKey {
    PortKey::endpoint(b.address(family).into(), Service::Host.ports().1, 6)
}
