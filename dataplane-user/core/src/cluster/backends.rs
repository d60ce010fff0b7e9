//! Whose backend a socket is: all parts of the agent decide this here.

use std::{collections::HashMap, net::SocketAddr};

use foldhash::fast::RandomState;
use nodefence_common::{Addr, PortKey};

use super::{Backend, Protocol, Scope};
use crate::{conntrack::Flow, ipvs::ServiceKey};

/// Backends, each with its owner: a node, where that matters. Exempt backends are not among them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Backends<T> {
    whole: HashMap<Addr, T, RandomState>,
    ports: HashMap<PortKey, T, RandomState>,
}

impl<T> Default for Backends<T> {
    fn default() -> Self {
        Self { whole: HashMap::default(), ports: HashMap::default() }
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
        let by_port = || if self.ports.is_empty() { None } else { self.ports.get(&key()) };
        self.whole.get(&addr).or_else(by_port)
    }

    /// Whose backend answers a flow: the source of the reply direction is the backend after every translation.
    pub fn of_flow(&self, flow: &Flow) -> Option<&T> {
        self.of(flow.reply.src, flow.reply.src_port, flow.reply.protocol)
    }

    /// Whose backend a destination of an IPVS service is.
    pub(crate) fn of_destination(&self, service: &ServiceKey, destination: SocketAddr) -> Option<&T> {
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
