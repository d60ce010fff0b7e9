//! Stale flows: conntrack's entries to a backend that is none any more, or that is on a flagged node.
use std::{
    cell::RefCell,
    collections::{HashMap, HashSet},
    net::{IpAddr, SocketAddr},
};

use super::{Addresses, Difference, Found, Grace, Kind, Mend, Subject, flagged::flagged_backends};
use crate::{
    cluster::{Backends, ClusterView, NodeSet, Protocol},
    conntrack::{Flow, TcpState},
    plan::Exemptions,
};

/// Which entries of flagged nodes may be deleted.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct MayDelete {
    /// UDP and SCTP: where kube-proxy forwards by conntrack. In IPVS mode the entries follow IPVS' connections.
    pub datagrams: bool,
    /// TCP: also where kube-proxy forwards by conntrack, and only where packets in the middle of a flow may begin an entry
    /// (`nf_conntrack_tcp_loose`); else the client would hang.
    pub tcp: bool,
}

/// Finds flows to backends to which they should not go.
#[derive(Debug)]
pub struct StaleFlows<'a> {
    addresses: &'a Addresses<'a>,
    /// Whether any Service has a UDP port.
    udp: bool,
    /// The endpoints that serve a Service's UDP port, by the indices of Service and port; made when a flow needs them.
    serving: RefCell<HashMap<(u32, u32), HashSet<SocketAddr>>>,
    flagged: Backends<&'a str>,
    may_delete: MayDelete,
}

impl<'a> StaleFlows<'a> {
    /// `flagged`: nodes whose flows are to be deleted, but for those of `exemptions`.
    pub fn new(
        view: &'a ClusterView,
        addresses: &'a Addresses<'a>,
        flagged: &NodeSet,
        exemptions: &Exemptions,
        may_delete: MayDelete,
    ) -> Self {
        let udp = view.services.iter().flatten().flat_map(|service| &service.ports);
        let udp = udp.into_iter().any(|port| port.protocol == Protocol::Udp);
        let flagged = flagged_backends(view, flagged, exemptions);
        Self { addresses, udp, serving: RefCell::default(), flagged, may_delete }
    }

    /// Whether there is anything to find.
    pub fn is_empty(&self) -> bool {
        !self.udp && self.flagged.is_empty()
    }

    /// What is wrong with a flow.
    pub fn kind(&self, flow: &Flow) -> Option<Kind> {
        if self.is_stale(flow) {
            return Some(Kind::StaleUdp);
        }
        self.flagged_node(flow).map(|_| Kind::FlaggedFlow)
    }

    /// Reports a flow if something is wrong with it.
    pub fn look(&self, flow: &Flow, out: &mut Found) {
        let Some(kind) = self.kind(flow) else { return };
        let service = || {
            let to = SocketAddr::new(IpAddr::from(flow.orig.dst), flow.orig.dst_port);
            self.addresses.find(to, flow.orig.protocol).map(|(place, _)| self.addresses.name(place))
        };
        out.add(kind, || Difference {
            kind,
            subject: Subject::flow(flow),
            service: service(),
            detail: match self.flagged_node(flow) {
                Some(node) if kind == Kind::FlaggedFlow => format!("goes to node {node}, which is flagged"),
                _ if !flow.is_balanced() => "is not translated, though the Service has endpoints".to_owned(),
                _ => "goes to what is no endpoint of the Service that serves".to_owned(),
            },
            grace: Grace::Sync,
            mend: match (kind, flow.tcp) {
                (Kind::StaleUdp, _) => true,
                (_, None) => self.may_delete.datagrams,
                (_, Some(_)) => self.may_delete.tcp,
            }
            .then_some(Mend::Forget(*flow)),
        });
    }

    fn is_stale(&self, flow: &Flow) -> bool {
        if Protocol::of(flow.orig.protocol) != Some(Protocol::Udp) {
            return false;
        }
        let to = SocketAddr::new(IpAddr::from(flow.orig.dst), flow.orig.dst_port);
        let Some((place, _)) = self.addresses.find(to, flow.orig.protocol) else { return false };
        let mut all = self.serving.borrow_mut();
        let serving = all.entry((place.service, place.port)).or_insert_with(|| {
            let service = self.addresses.service(place);
            // As kube-proxy does, regardless of policies and hints: `CleanStaleEntries` (pkg/proxy/conntrack/cleanup.go, Kubernetes 1.36).
            let serve = service.endpoints.iter().filter(|endpoint| endpoint.ready || endpoint.serving);
            serve.filter_map(|endpoint| service.socket(place.port as usize, endpoint)).collect()
        });
        // A Service without endpoints: a flow that is not translated is refused.
        !serving.contains(&flow.backend()) && !(serving.is_empty() && !flow.is_balanced())
    }

    /// The flagged node to which a Service's flow goes. An entry in CLOSE or TIME_WAIT carries nothing more.
    fn flagged_node(&self, flow: &Flow) -> Option<&'a str> {
        if !flow.is_balanced()
            || Protocol::of(flow.orig.protocol).is_none()
            || matches!(flow.tcp, Some(TcpState::Close | TcpState::TimeWait))
        {
            return None;
        }
        self.flagged.of_flow(flow).copied()
    }
}
