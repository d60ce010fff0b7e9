//! Service affinity where kube-proxy forwards by nftables or iptables: the clients that still stick to a backend of a flagged node. The clients of IPVS
//! are found by its destinations ([`super::Servers::look_at_templates`]).
use std::net::{IpAddr, SocketAddr};

use super::{Client, Difference, Found, Grace, Kind, Mend, Subject, flagged::flagged_backends};
use crate::{
    cluster::{Backends, ClusterView, NodeSet, Protocol},
    plan::Exemptions,
    proxy::{Endpoint, endpoints},
};

/// Finds clients that stick to an endpoint to which they should not.
#[derive(Debug)]
pub struct Affinities<'a> {
    view: &'a ClusterView,
    flagged: Backends<&'a str>,
    deletes: bool,
}

impl<'a> Affinities<'a> {
    /// `flagged`: nodes whose clients are to be deleted, but for those of `exemptions`. `deletes`: whether the agent does so.
    pub fn new(view: &'a ClusterView, flagged: &NodeSet, exemptions: &Exemptions, deletes: bool) -> Self {
        Self { view, flagged: flagged_backends(view, flagged, exemptions), deletes }
    }

    /// Whether there is anything to find.
    pub fn is_empty(&self) -> bool {
        self.flagged.is_empty()
    }

    /// Whether no client may stick to this endpoint.
    pub fn contains(&self, protocol: Protocol, socket: SocketAddr) -> bool {
        self.node(protocol, socket).is_some()
    }

    /// All such endpoints of the view's Services, also of Services without affinity there: kube-proxy may have newer knowledge.
    pub fn endpoints(&self) -> impl Iterator<Item = Endpoint<'a>> {
        let services = self.view.services.iter().flatten();
        services.flat_map(move |service| {
            endpoints(service, move |protocol, socket| self.contains(protocol, socket))
        })
    }

    /// Reports a client that sticks to an endpoint to which no client may stick.
    pub fn look(&self, endpoint: &Endpoint<'_>, client: IpAddr, out: &mut Found) {
        let Some(node) = self.node(endpoint.protocol, endpoint.socket) else { return };
        out.add(Kind::FlaggedAffinity, || {
            let client = Client::new(client, endpoint);
            Difference {
                kind: Kind::FlaggedAffinity,
                service: Some(client.service()),
                subject: Subject::Client(client),
                detail: format!("sticks to node {node}, which is flagged"),
                grace: Grace::Sync,
                mend: self.deletes.then_some(Mend::ForgetClient),
            }
        });
    }

    fn node(&self, protocol: Protocol, socket: SocketAddr) -> Option<&'a str> {
        self.flagged.of(socket.ip().into(), socket.port(), protocol.number()).copied()
    }
}
