//! What clients of a Service without a cluster IP go to. DNS tells them the addresses of its endpoints, and kube-proxy has no part in it: no policy, no hints, no endpoints that
//! end (CoreDNS, plugin/kubernetes/object/endpoint.go).

use crate::cluster::{Endpoint, Family, Service};

/// Of each port in each IP version, its index and the endpoints that DNS names: those that are ready. Of a Service with `publishNotReadyAddresses` each is said to be ready
/// (`podToEndpoint`, staging/src/k8s.io/endpointslice/utils.go). Nothing of a Service that has a cluster IP.
pub fn published(service: &Service) -> impl Iterator<Item = (usize, Vec<&Endpoint>)> {
    let families = Family::ALL.into_iter().filter(move |_| service.is_headless());
    families.flat_map(move |family| {
        (0..service.ports.len()).map(move |port| {
            let named = service.endpoints.iter().filter(move |endpoint| {
                endpoint.ready
                    && Family::of(endpoint.address) == family
                    && service.target(port, endpoint).is_some()
            });
            (port, named.collect())
        })
    })
}
