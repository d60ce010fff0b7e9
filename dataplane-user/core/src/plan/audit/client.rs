use std::{
    fmt,
    net::{IpAddr, SocketAddr},
};

use crate::{cluster::Protocol, proxy::Endpoint};

/// A client that kube-proxy keeps at one endpoint of a Service.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Client {
    /// Its address.
    pub address: IpAddr,
    service: Box<str>,
    port: Box<str>,
    protocol: Protocol,
    socket: SocketAddr,
}

impl Client {
    /// The client of this address at this endpoint.
    pub fn new(address: IpAddr, endpoint: &Endpoint<'_>) -> Self {
        let Endpoint { service, port, protocol, socket } = *endpoint;
        Self { address, service: service.into(), port: port.into(), protocol, socket }
    }

    /// The endpoint to which the client sticks.
    pub fn endpoint(&self) -> Endpoint<'_> {
        let Self { service, port, protocol, socket, .. } = self;
        Endpoint { service, port, protocol: *protocol, socket: *socket }
    }

    /// The Service's port, for people.
    pub fn service(&self) -> String {
        if self.port.is_empty() {
            self.service.to_string()
        } else {
            format!("{}:{}", self.service, self.port)
        }
    }
}

impl fmt::Display for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { address, protocol, socket, .. } = self;
        write!(f, "client {address} of {} {protocol} -> {socket}", self.service())
    }
}
