use std::{collections::HashMap, sync::Arc};

use crate::{
    cluster::{ClusterView, Family, TrafficPolicy},
    ipvs::{Protocol, ServiceKey},
    ledger::Pair,
    plan::{Proxy, Target, usable},
    proxy::Mode,
};

/// Which destinations kube-proxy wants on this node, as far as the view knows: a weight is put back only where it does. One that has left is
/// kube-proxy's to drain and to remove.
#[derive(Debug, Default)]
pub struct Wanted {
    view: Arc<ClusterView>,
    node: String,
    addresses: HashMap<ServiceKey, Place>,
    /// By family and protocol: they are the same at each of the node's addresses.
    node_ports: HashMap<(Family, Protocol, u16), Place>,
}

/// Indices of a Service and of its port, and the policy of the virtual address.
type Place = (usize, usize, TrafficPolicy);

impl Wanted {
    /// For kube-proxy on the node of this name.
    pub fn new(view: &Arc<ClusterView>, node: &str) -> Self {
        let mut this = Self { view: Arc::clone(view), node: node.to_owned(), ..Self::default() };
        for (s, service) in view.services.iter().flatten().enumerate() {
            let outside = service.external_ips.iter().chain(&service.load_balancer_ips);
            let addresses = outside.map(|ip| (*ip, service.external));
            // Last, since an address is seldom both, and is treated as a cluster IP then.
            let addresses = addresses.chain(service.cluster_ips.iter().map(|ip| (*ip, service.internal)));
            let addresses: Vec<_> = addresses.filter(|(ip, _)| service.proxied(Family::of(*ip))).collect();
            for (p, port) in service.ports.iter().enumerate() {
                let protocol = Protocol(port.protocol.number().into());
                for (ip, policy) in &addresses {
                    let key = ServiceKey::Address { address: (*ip, port.port).into(), protocol };
                    this.addresses.insert(key, (s, p, *policy));
                }
                for family in Family::ALL.into_iter().filter(|family| service.proxied(*family)) {
                    if let Some(number) = port.node_port {
                        this.node_ports.insert((family, protocol, number), (s, p, service.external));
                    }
                }
            }
        }
        this
    }

    /// Whether kube-proxy has no use for the destination any more. False where the view does not know the service.
    pub fn has_left(&self, pair: &Pair) -> bool {
        let ServiceKey::Address { address, protocol } = pair.service else { return false };
        let family = Family::of(address.ip());
        let known = self.addresses.get(&pair.service);
        let Some(&(service, port, policy)) =
            known.or_else(|| self.node_ports.get(&(family, protocol, address.port())))
        else {
            return false;
        };
        let Some(service) = self.view.services.as_ref().and_then(|all| all.get(service)) else {
            return false;
        };
        let target = Target { service, port, family, policy };
        let used = usable(&target, &Proxy::of(&self.view, &self.node, Mode::Ipvs), |_| true);
        !used.into_iter().any(|endpoint| service.socket(port, endpoint) == Some(pair.destination))
    }
}
