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
    /// It is an endpoint still, and kube-proxy gives it nothing new.
    Ending,
    /// It is none of the Service.
    Gone,
}

/// Which destinations kube-proxy wants on this node, as far as the view knows: a weight is restored only where it does. One that has left is
/// kube-proxy's to drain and to remove.
#[derive(Debug, Default)]
pub struct WantedDestinations {
    view: Arc<ClusterView>,
    node: NodeName,
    addresses: Arc<VirtualAddresses>,
}

impl WantedDestinations {
    /// For kube-proxy on the node of this name. `addresses`: of the view's Services.
    pub fn new(view: Arc<ClusterView>, addresses: Arc<VirtualAddresses>, node: &NodeName) -> Self {
        Self { view, node: node.clone(), addresses }
    }

    /// The same, of which nobody else has the addresses. Costs in proportion to the Services.
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
        let (service, port) = (services.get(place.service as usize)?, place.port as usize);
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
