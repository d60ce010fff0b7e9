use std::{net::SocketAddr, sync::Arc};

use crate::{
    cluster::{ClusterView, Family, NodeName, Protocol},
    ipvs::ServiceKey,
    ledger::Pair,
    plan::{Proxy, Target, VirtualAddresses, usable},
    proxy::Mode,
};

/// Which destinations kube-proxy wants on this node, as far as the view knows: a weight is put back only where it does. One that has left is
/// kube-proxy's to drain and to remove.
#[derive(Debug, Default)]
pub struct Wanted {
    view: Arc<ClusterView>,
    node: NodeName,
    addresses: Arc<VirtualAddresses>,
}

impl Wanted {
    /// For kube-proxy on the node of this name. `addresses`: of the view's Services.
    pub fn new(view: Arc<ClusterView>, addresses: Arc<VirtualAddresses>, node: &NodeName) -> Self {
        Self { view, node: node.clone(), addresses }
    }

    /// The same, of which nobody else has the addresses. Costs in proportion to the Services.
    pub fn of(view: &Arc<ClusterView>, node: &NodeName) -> Self {
        let addresses = VirtualAddresses::new(view.services.as_deref().unwrap_or_default());
        Self::new(Arc::clone(view), Arc::new(addresses), node)
    }

    /// Whether kube-proxy has no use for the destination any more. False where the view does not know the service.
    pub(crate) fn has_left(&self, pair: &Pair) -> bool {
        let ServiceKey::Address { address, protocol } = pair.service else { return false };
        self.left(address, u8::try_from(protocol.0).unwrap_or(0), pair.destination).unwrap_or(false)
    }

    /// `None` where the view does not know it.
    fn left(&self, address: SocketAddr, protocol: u8, destination: SocketAddr) -> Option<bool> {
        let (protocol, family) = (Protocol::of(protocol)?, Family::of(address.ip()));
        let services = self.view.services.as_deref()?;
        let place = self.addresses.at(services, address, protocol)?;
        let (service, port) = (services.get(place.service as usize)?, place.port as usize);
        let target = Target { service, port, family, policy: place.policy };
        let used = usable(&target, &Proxy::of(&self.view, &self.node, Mode::Ipvs), |_| true);
        Some(!used.into_iter().any(|endpoint| service.socket(port, endpoint) == Some(destination)))
    }
}
