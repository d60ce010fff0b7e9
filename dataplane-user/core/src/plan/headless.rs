//! The endpoints that clients of a Service without a cluster IP use. DNS tells them the addresses of its endpoints. kube-proxy has no part in it: there is no
//! policy, no hints, no terminating endpoints (CoreDNS, plugin/kubernetes/object/endpoint.go).

use crate::cluster::{Endpoint, Family, Service};

/// For each port in each IP version, its index and the endpoints that DNS names: the ready ones. In a Service with `publishNotReadyAddresses` each endpoint is said
/// to be ready (`podToEndpoint`, staging/src/k8s.io/endpointslice/utils.go). Nothing for a Service that has a cluster IP.
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
