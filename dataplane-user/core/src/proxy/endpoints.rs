use std::net::SocketAddr;

use super::Endpoint;
use crate::cluster::{Protocol, Service};

/// The endpoints of a Service's ports that `ours` takes.
pub fn endpoints<'a>(
    service: &'a Service,
    ours: impl Fn(Protocol, SocketAddr) -> bool + Copy,
) -> impl Iterator<Item = Endpoint<'a>> {
    service.ports.iter().enumerate().flat_map(move |(at, port)| {
        let sockets = service.endpoints.iter().filter_map(move |endpoint| service.socket(at, endpoint));
        let sockets = sockets.filter(move |socket| ours(port.protocol, *socket));
        sockets.map(|socket| Endpoint {
            service: &service.name,
            port: &port.name,
            protocol: port.protocol,
            socket,
        })
    })
}
