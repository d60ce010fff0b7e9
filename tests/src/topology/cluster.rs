//! The parts of the small cluster: nodes, Services, and options.

use std::{
    net::{IpAddr, SocketAddr},
    process::Command,
    sync::Arc,
};

use anyhow::Result;

use crate::{Agent, Netns, Proc, bin, tun::TunPair};

pub use nodefence::cluster::Family;

/// How pods of different nodes reach each other.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Overlay {
    /// Plain routes to the nodes.
    HostGateway,
    /// VXLAN with fixed neighbours, as flannel makes it.
    Vxlan,
    /// VXLAN whose tunnel metadata comes from the routes (`external`).
    VxlanMetadata,
    /// ipip for IPv4. IPv6 stays on plain routes.
    Ipip,
    /// Nodes joined by a VLAN device. At egress of `eth0` the tag is in the skb's metadata.
    Vlan,
    /// Nodes joined by a VLAN device with the tag in the frame (`reorder_hdr off`).
    VlanInFrame,
    /// 802.1Q in 802.1ad. At egress of `eth0` the inner tag is in the frame, the outer tag in the skb's metadata.
    QinQ,
    /// A tun device, which has no Ethernet header, between A and B. C stays on plain routes.
    Tun,
}

impl Overlay {
    /// Whether packets between nodes are carried in other packets.
    pub fn is_tunnel(self) -> bool {
        matches!(self, Self::Vxlan | Self::VxlanMetadata | Self::Ipip)
    }
}

/// The proxy on node A, which forwards the Services' traffic to the backends.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Proxy {
    /// DNAT, as in kube-proxy's nftables mode.
    Nftables,
    /// IPVS NAT with conntrack, as in kube-proxy's ipvs mode.
    Ipvs,
    /// No proxy. The test starts a real kube-proxy.
    Nobody,
}

/// The options of a cluster.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// How pods of different nodes reach each other.
    pub overlay: Overlay,
    /// Whether clients are hidden behind node A's address, as kube-proxy does by default.
    pub masquerade: bool,
    /// The proxy on node A.
    pub proxy: Proxy,
    /// Whether devices do checksums and segmentation, as veth does by default. Without it each packet on the wire has its checksum.
    pub offloads: bool,
}

impl Default for Options {
    fn default() -> Self {
        Self { overlay: Overlay::HostGateway, masquerade: true, proxy: Proxy::Nftables, offloads: true }
    }
}

impl Options {
    /// The devices of node A in routes to the backends. Packets that leave by these have the backend's address as destination.
    pub fn interfaces(self) -> Vec<&'static str> {
        match self.overlay {
            Overlay::HostGateway => vec!["eth0"],
            Overlay::Vlan | Overlay::VlanInFrame => vec!["eth0.5"],
            Overlay::QinQ => vec!["eth0.5.7"],
            Overlay::Vxlan | Overlay::VxlanMetadata => vec!["vxlan0", "eth0"],
            Overlay::Ipip => vec!["ipip0", "eth0"],
            Overlay::Tun => vec!["tun0", "eth0"],
        }
    }
}

/// Where a client runs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Place {
    /// Outside the cluster. The client uses the NodePort.
    Outside,
    /// In a pod on node A. The client uses the ClusterIP.
    Pod,
    /// In node A's own namespace. The client uses the ClusterIP.
    Node,
}

impl Place {
    /// All places.
    pub const ALL: [Self; 3] = [Self::Outside, Self::Pod, Self::Node];
}

/// The Services of the cluster. Each has a backend on B and one on C.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Service {
    /// TCP to pods: port 80, target port 8080, NodePort 30080.
    Web,
    /// UDP to pods: port 53, target port 5300, NodePort 30053.
    Dns,
    /// TCP to the host network: port 80, target port 9100, NodePort 30091.
    Host,
}

impl Service {
    /// All Services.
    pub const ALL: [Self; 3] = [Self::Web, Self::Dns, Self::Host];

    /// The port of the ClusterIP, the port of the backend, and the NodePort.
    pub const fn ports(self) -> (u16, u16, u16) {
        match self {
            Self::Web => (80, 8080, 30_080),
            Self::Dns => (53, 5300, 30_053),
            Self::Host => (80, 9100, 30_091),
        }
    }

    /// The name. The cluster file has it with the prefix `default/`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Web => "web",
            Self::Dns => "dns",
            Self::Host => "host",
        }
    }

    /// `tcp` or `udp`.
    pub const fn protocol(self) -> &'static str {
        match self {
            Self::Web | Self::Host => "tcp",
            Self::Dns => "udp",
        }
    }

    /// The ClusterIP. Web and Dns share one.
    pub const fn cluster_ip(self, family: Family) -> IpAddr {
        let host = if matches!(self, Self::Host) { 20 } else { 10 };
        match family {
            Family::V4 => IpAddr::V4(std::net::Ipv4Addr::new(10, 96, 0, host)),
            Family::V6 => IpAddr::V6(std::net::Ipv6Addr::new(0xfd00, 0x96, 0, 0, 0, 0, 0, host as u16)),
        }
    }
}

/// A TCP port of the nodes that is no backend, and so must never be cut.
pub const NODE_PORT_OF_ITS_OWN: u16 = 9200;

/// A node, with its namespace, the namespace of its pod, and its processes.
#[derive(Debug)]
pub struct Node {
    /// `node-a`, `node-b` or `node-c`.
    pub name: &'static str,
    /// The number in the node's addresses (1 to 3).
    pub index: u8,
    /// The node's namespace.
    pub ns: Arc<Netns>,
    /// The namespace of the node's pod.
    pub pod: Arc<Netns>,
    procs: Vec<Proc>,
}

impl Node {
    pub(super) fn new(name: &'static str, index: u8) -> Result<Self> {
        let ns = Arc::new(Netns::with_lo_down(name)?);
        let pod = Arc::new(Netns::with_lo_down(&format!("{name}-pod"))?);
        Ok(Self { name, index, ns, pod, procs: Vec::new() })
    }

    /// The node's address in the network between the nodes.
    pub fn address(&self, family: Family) -> IpAddr {
        match family {
            Family::V4 => [10, 2, 0, 10 + self.index].into(),
            Family::V6 => [0xfd00, 2, 0, 0, 0, 0, 0, 0x10 + u16::from(self.index)].into(),
        }
    }

    /// The address of the node's pod.
    pub fn pod_address(&self, family: Family) -> IpAddr {
        match family {
            Family::V4 => [10, 244, self.index, 2].into(),
            Family::V6 => [0xfd00, 0x244, u16::from(self.index), 0, 0, 0, 0, 2].into(),
        }
    }

    /// The address and port of the node's endpoint of a Service.
    pub fn endpoint(&self, service: Service, family: Family) -> SocketAddr {
        let address = match service {
            Service::Host => self.address(family),
            Service::Web | Service::Dns => self.pod_address(family),
        };
        (address, service.ports().1).into()
    }

    /// Starts the servers of the node and of its pod.
    pub(super) fn serve(&mut self) -> Result<()> {
        for (ns, ports) in [(&self.pod, "tcp=8080 udp=5300"), (&self.ns, "tcp=9100 tcp=9200")] {
            let mut command = Command::new(bin("nodefence-peer")?);
            command.arg(self.name).args(ports.split(' '));
            self.procs.push(Proc::spawn_ready(ns, command)?);
        }
        Ok(())
    }

    /// Freezes every process of the node. The node's kernel goes on: it accepts connections, and acknowledges requests that no process reads.
    ///
    /// # Errors
    /// Fails if a process is gone.
    pub fn freeze(&self) -> Result<()> {
        self.procs.iter().try_for_each(Proc::freeze)
    }

    /// Lets the node's processes go on.
    ///
    /// # Errors
    /// Fails if a process is gone.
    pub fn thaw(&self) -> Result<()> {
        self.procs.iter().try_for_each(Proc::thaw)
    }
}

/// The cluster. Everything in it ends when this is dropped.
#[derive(Debug)]
pub struct Cluster {
    /// The options with which the cluster was built.
    pub options: Options,
    /// The namespace of the client outside.
    pub client: Arc<Netns>,
    /// The node that forwards.
    pub a: Node,
    /// The node that hangs in tests.
    pub b: Node,
    /// The node that stays healthy.
    pub c: Node,
    /// The switch between the nodes.
    pub fabric: Arc<Netns>,
    pub(super) _tun: Option<TunPair>,
}

impl Cluster {
    /// Starts servers on node A too, in its pod and in its own namespace.
    ///
    /// # Errors
    /// Fails if a server does not come up.
    pub fn serve_on_a(&mut self) -> Result<()> {
        self.a.serve()
    }

    /// The devices of node A in routes to the backends: [`Options::interfaces`].
    pub fn interfaces(&self) -> Vec<&'static str> {
        self.options.interfaces()
    }

    /// The namespace of a client at `place`.
    pub fn at(&self, place: Place) -> &Netns {
        match place {
            Place::Outside => &self.client,
            Place::Pod => &self.a.pod,
            Place::Node => &self.a.ns,
        }
    }

    /// The address that a client at `place` uses for a Service.
    pub fn service(&self, service: Service, place: Place, family: Family) -> SocketAddr {
        let (port, _, node_port) = service.ports();
        match (place, family) {
            (Place::Outside, Family::V4) => ([192, 0, 2, 1], node_port).into(),
            (Place::Outside, Family::V6) => ([0x2001, 0xdb8, 0, 0, 0, 0, 0, 1], node_port).into(),
            _ => (service.cluster_ip(family), port).into(),
        }
    }

    /// Starts the agent on node A, attached to all of [`Cluster::interfaces`].
    ///
    /// # Errors
    /// Fails as [`Agent::start`] does.
    pub fn agent(&self) -> Result<Agent> {
        self.agent_with(&[])
    }

    /// Same as [`Cluster::agent`], with more arguments.
    ///
    /// # Errors
    /// Fails as [`Agent::start`] does.
    pub fn agent_with(&self, extra: &[&str]) -> Result<Agent> {
        Agent::start_with(&self.a.ns, self.a.name, &self.interfaces(), &self.cluster_file(), extra)
    }
}
