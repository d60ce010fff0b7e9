use std::sync::Arc;

use crate::{
    cluster::{ClusterView, Family, NodeName, Protocol},
    ipvs::ServiceKey,
    ledger::Pair,
    plan::{Proxy, Target, VirtualAddresses, usable},
    proxy::Mode,
};

/// What the view says of a destination.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Endpoint {
    /// kube-proxy uses it.
    Used,
    /// It is still an endpoint, but kube-proxy sends it no new traffic.
    Ending,
    /// It is no endpoint of the Service.
    Gone,
}

/// The destinations that kube-proxy wants on this node, as far as the view knows: only their weights are restored. A destination whose endpoint has left is
/// kube-proxy's to drain and to remove.
#[derive(Debug, Default)]
pub struct WantedDestinations {
    view: Arc<ClusterView>,
    node: NodeName,
    addresses: Arc<VirtualAddresses>,
}

impl WantedDestinations {
    /// The destinations for kube-proxy on the node of this name. `addresses`: those of the view's Services.
    pub fn new(view: Arc<ClusterView>, addresses: Arc<VirtualAddresses>, node: &NodeName) -> Self {
        Self { view, node: node.clone(), addresses }
    }

    /// As [`Self::new`], where the addresses must be made first. Costs in proportion to the Services.
    pub fn of(view: &Arc<ClusterView>, node: &NodeName) -> Self {
        let addresses = VirtualAddresses::new(view.services.as_deref().unwrap_or_default());
        Self::new(Arc::clone(view), Arc::new(addresses), node)
    }

    /// What the view says of the destination; `None` where it does not know the virtual server.
    pub(crate) fn endpoint(&self, pair: &Pair) -> Option<Endpoint> {
        let ServiceKey::Address { address, protocol } = pair.service else { return None };
        let protocol = Protocol::of(u8::try_from(protocol.0).ok()?)?;
        let family = Family::of(address.ip());
        let services = self.view.services.as_deref()?;
        let place = self.addresses.at(services, address, protocol)?;
        let service = services.get(place.service as usize)?;
        let port = place.port as usize;
        let target = Target { service, port, family, policy: place.policy };
        let used = usable(&target, &Proxy::of(&self.view, &self.node, Mode::Ipvs), |_| true);
        let is = |endpoint| service.socket(port, endpoint) == Some(pair.destination);
        Some(if used.into_iter().any(is) {
            Endpoint::Used
        } else if service.endpoints.iter().any(is) {
            Endpoint::Ending
        } else {
            Endpoint::Gone
        })
    }
}
