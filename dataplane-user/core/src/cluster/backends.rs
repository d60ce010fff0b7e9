//! Whose backend a socket is: all parts of the agent decide this here.

use std::{
    collections::{HashMap, HashSet},
    net::SocketAddr,
};

use foldhash::fast::RandomState;
use nodefence_common::{Addr, PortKey};

use super::{Backend, Protocol, Scope};
use crate::{conntrack::Flow, ipvs::ServiceKey};

/// Backends, each with its owner: a node, where that matters. Exempt backends are not among them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Backends<T> {
    whole: HashMap<Addr, T, RandomState>,
    ports: HashMap<PortKey, T, RandomState>,
    /// Ports that are nobody's, though their address may be a backend.
    spared: HashSet<PortKey, RandomState>,
}

impl<T> Default for Backends<T> {
    fn default() -> Self {
        Self { whole: HashMap::default(), ports: HashMap::default(), spared: HashSet::default() }
    }
}

impl<T> Backends<T> {
    /// None yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds one.
    pub fn add(&mut self, backend: &Backend, owner: T) {
        match backend.scope {
            Scope::Address => self.add_address(backend.addr(), owner),
            Scope::Port(port, protocol) => {
                self.add_port(PortKey::endpoint(backend.addr(), port, protocol.number()), owner);
            }
        }
    }

    /// Adds a backend that owns its address: every port and protocol is the backend's.
    pub fn add_address(&mut self, addr: Addr, owner: T) {
        self.whole.insert(addr, owner);
    }

    /// Adds a host-network backend, or a port that is cut although its address passes: only this address, port and protocol.
    pub fn add_port(&mut self, port: PortKey, owner: T) {
        self.ports.insert(port, owner);
    }

    /// Leaves a port out, whoever has it or its address.
    pub(crate) fn spare(&mut self, port: &Backend) {
        if let Scope::Port(number, protocol) = port.scope {
            self.spared.insert(PortKey::endpoint(port.addr(), number, protocol.number()));
        }
    }

    /// Whether a destination of an IPVS service is a port that is left out.
    pub(crate) fn spares(&self, service: &ServiceKey, destination: SocketAddr) -> bool {
        let by = |protocol: u8| {
            let key = PortKey::endpoint(destination.ip().into(), destination.port(), protocol);
            self.spared.contains(&key)
        };
        match service {
            _ if self.spared.is_empty() => false,
            ServiceKey::Address { protocol, .. } => u8::try_from(protocol.0).is_ok_and(by),
            // A mark says nothing of the protocol.
            ServiceKey::Mark { .. } => {
                [Protocol::Tcp, Protocol::Udp, Protocol::Sctp].into_iter().any(|one| by(one.number()))
            }
        }
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.whole.is_empty() && self.ports.is_empty()
    }

    /// Addresses, those of single ports included; some of them more than once.
    pub fn addresses(&self) -> impl Iterator<Item = Addr> + '_ {
        self.whole().chain(self.ports.keys().map(|port| port.addr))
    }

    /// Addresses that are backends as a whole.
    pub fn whole(&self) -> impl Iterator<Item = Addr> + '_ {
        self.whole.keys().copied()
    }

    /// Single ports that are backends.
    pub fn ports(&self) -> impl Iterator<Item = PortKey> + '_ {
        self.ports.keys().copied()
    }

    /// Whose backend this port is. Port and protocol (IP protocol number) in host order.
    pub fn of(&self, addr: Addr, port: u16, protocol: u8) -> Option<&T> {
        let key = || PortKey::endpoint(addr, port, protocol);
        if !self.spared.is_empty() && self.spared.contains(&key()) {
            return None;
        }
        let by_port = || if self.ports.is_empty() { None } else { self.ports.get(&key()) };
        self.whole.get(&addr).or_else(by_port)
    }

    /// Whose backend answers a flow: the source of the reply direction is the backend after every translation.
    pub fn of_flow(&self, flow: &Flow) -> Option<&T> {
        self.of(flow.reply.src, flow.reply.src_port, flow.reply.protocol)
    }

    /// Whose backend a destination of an IPVS service is.
    pub(crate) fn of_destination(&self, service: &ServiceKey, destination: SocketAddr) -> Option<&T> {
        if self.spares(service, destination) {
            return None;
        }
        let by = |protocol: u8| self.of(destination.ip().into(), destination.port(), protocol);
        match service {
            ServiceKey::Address { protocol, .. } => by(u8::try_from(protocol.0).ok()?),
            // A mark says nothing of the protocol.
            ServiceKey::Mark { .. } => {
                [Protocol::Tcp, Protocol::Udp, Protocol::Sctp].into_iter().find_map(|one| by(one.number()))
            }
        }
    }

    /// The backends at such addresses, whatever their owners.
    pub fn at(&self, wanted: impl Fn(Addr) -> bool) -> Backends<()> {
        Backends {
            whole: self.whole().filter(|addr| wanted(*addr)).map(|addr| (addr, ())).collect(),
            ports: self.ports.keys().filter(|port| wanted(port.addr)).map(|port| (*port, ())).collect(),
            spared: self.spared.iter().copied().filter(|port| wanted(port.addr)).collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;
    use crate::{conntrack::Tuple, ipvs};

    const POD: Addr = Addr::v4([10, 244, 2, 7]);
    const TCP: u8 = 6;

    #[test]
    fn a_socket_is_of_the_node_that_owns_its_address_or_its_port() {
        let mut backends = Backends::new();
        assert!(backends.is_empty());
        backends.add_address(POD, "whole");
        let node = Addr::v4([10, 2, 0, 12]);
        backends.add_port(PortKey::endpoint(node, 9_100, TCP), "port");
        assert_eq!(backends.of(POD, 1, 200), Some(&"whole"));
        assert_eq!(backends.of(node, 9_100, TCP), Some(&"port"));
        assert_eq!((backends.of(node, 9_100, 17), backends.of(node, 22, TCP)), (None, None));
        assert_eq!(backends.at(|addr| addr == node).addresses().collect::<Vec<_>>(), [node]);
    }

    #[test]
    fn a_destination_of_a_mark_may_be_of_any_protocol() {
        let mut backends = Backends::new();
        backends.add_port(PortKey::endpoint(POD, 53, 17), ());
        let destination = SocketAddr::from((Ipv4Addr::new(10, 244, 2, 7), 53));
        let server = |protocol| ServiceKey::Address { address: destination, protocol };
        let mark = ServiceKey::Mark { mark: 7, family: ipvs::Family::V4 };
        let is = |key: &ServiceKey| backends.of_destination(key, destination).is_some();
        assert!(is(&mark) && is(&server(ipvs::Protocol::UDP)) && !is(&server(ipvs::Protocol::TCP)));
        let other = SocketAddr::from((Ipv4Addr::new(10, 244, 2, 7), 54));
        assert_eq!(backends.of_destination(&mark, other), None);
    }

    #[test]
    fn a_port_that_is_left_out_is_of_nobody() {
        let mut backends = Backends::new();
        backends.add_address(POD, ());
        let address = Ipv4Addr::new(10, 244, 2, 7);
        backends.spare(&Backend { address: address.into(), scope: Scope::Port(53, Protocol::Udp) });
        assert_eq!((backends.of(POD, 53, 17), backends.of(POD, 53, TCP)), (None, Some(&())));
        let [port, other] = [53, 54].map(|port| SocketAddr::from((address, port)));
        let server = |protocol| ServiceKey::Address { address: port, protocol };
        let mark = ServiceKey::Mark { mark: 7, family: ipvs::Family::V4 };
        for (key, left_out) in
            [(server(ipvs::Protocol::UDP), true), (server(ipvs::Protocol::TCP), false), (mark, true)]
        {
            assert_eq!(backends.spares(&key, port), left_out, "{key}");
            assert_eq!(backends.of_destination(&key, port).is_none(), left_out, "{key}");
            assert!(!backends.spares(&key, other) && backends.of_destination(&key, other).is_some(), "{key}");
        }
    }

    #[test]
    fn a_flow_is_of_who_answers_it() {
        let tuple =
            |src| Tuple { src, dst: Addr::v4([10, 2, 0, 11]), src_port: 80, dst_port: 9, protocol: TCP };
        let service = Addr::v4([10, 96, 0, 1]);
        let flow = Flow::between(tuple(service), tuple(POD));
        let mut backends = Backends::new();
        backends.add_address(service, ());
        assert_eq!(backends.of_flow(&flow), None);
        backends.add_address(POD, ());
        assert_eq!(backends.of_flow(&flow), Some(&()));
    }
}
