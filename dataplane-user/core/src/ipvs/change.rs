use std::net::SocketAddr;

use super::{Destination, Service, ServiceKey};

/// One change of the table. A change of a destination writes all of its fields: read it first, and leave the other fields as they are.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Change {
    /// Add a service.
    NewService(Service),
    /// Change a service.
    SetService(Service),
    /// Delete a service with its destinations.
    DeleteService(ServiceKey),
    /// Add a destination. One that was deleted less than two minutes ago and still has connections is *revived* with them
    /// (`ip_vs_trash_get_dest`, ip_vs_ctl.c).
    NewDestination(ServiceKey, Destination),
    /// Change a destination.
    SetDestination(ServiceKey, Destination),
    /// Delete a destination. Where `net.ipv4.vs.expire_nodest_conn` is 1 its connections follow a moment later (Linux 5.9).
    DeleteDestination(ServiceKey, SocketAddr),
}

/// The outcome of a change. Others (kube-proxy) change the same table, so a thing that is there already, or gone, is no error.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum ChangeOutcome {
    /// Changed.
    Done,
    /// Nothing changed: the service or destination to add is there already (EEXIST).
    Exists,
    /// Nothing changed: there is no such service (ESRCH).
    NoService,
    /// Nothing changed: there is no such destination (ENOENT).
    NoDestination,
    /// Nothing changed: the kernel refused it with this error number.
    Refused(i32),
    /// Not known: the change was never sent, or the kernel's answer was lost. Read the table.
    Unknown,
}
