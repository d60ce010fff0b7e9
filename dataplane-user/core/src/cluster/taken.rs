//! What Services may not share: the checker notes it here as it reads them.

use std::{collections::HashMap, net::IpAddr};

use super::protocol::Protocol;

/// What is unique among all Services, and on which line of the file it was taken.
#[derive(Default)]
pub(super) struct ServiceNames {
    pub(super) names: HashMap<String, u32>,
    pub(super) virtual_addresses: HashMap<(IpAddr, u16, Protocol), u32>,
    pub(super) node_ports: HashMap<(u16, Protocol), u32>,
    /// Of the Service that is being read: address, index of its port, target.
    pub(super) sockets: HashMap<(IpAddr, usize, u16), u32>,
}
