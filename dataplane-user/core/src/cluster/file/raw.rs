//! The file's shape.

use std::collections::BTreeMap;

use serde::Deserialize;

use super::{
    super::service::TrafficPolicy,
    values::{Address, Affinity, AffinitySeconds, ClusterIp, Port, Time, Transport},
};

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RawFile {
    #[serde(default)]
    pub(super) nodes: Option<Vec<RawNode>>,
    /// `Some(None)` where it stands there without a value.
    #[serde(default, deserialize_with = "there")]
    pub(super) services: Option<Option<Vec<RawService>>>,
    #[serde(default)]
    pub(super) flags: Option<Vec<RawFlag>>,
}

fn there<'a, T: Deserialize<'a>, D: serde::Deserializer<'a>>(from: D) -> Result<Option<T>, D::Error> {
    T::deserialize(from).map(Some)
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RawNode {
    pub(super) name: String,
    #[serde(default)]
    pub(super) address: Option<Address>,
    #[serde(default)]
    pub(super) addresses: Option<Vec<Address>>,
    #[serde(default)]
    pub(super) zone: Option<String>,
    #[serde(default)]
    pub(super) pool: Option<String>,
    #[serde(default)]
    pub(super) backends: Option<Vec<RawBackend>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub(super) struct RawBackend {
    pub(super) address: Address,
    #[serde(default)]
    pub(super) port: Option<Port>,
    #[serde(default)]
    pub(super) protocol: Option<Transport>,
    #[serde(default)]
    pub(super) host_network: bool,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RawFlag {
    pub(super) node: String,
    #[serde(default)]
    pub(super) until: Option<Time>,
    #[serde(default)]
    pub(super) reason: Option<String>,
}

/// How a Service is left out.
#[derive(Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum RawMode {
    Observe,
    Off,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RawService {
    pub(super) name: String,
    #[serde(default, rename = "clusterIPs")]
    pub(super) cluster_ips: Option<Vec<ClusterIp>>,
    #[serde(default, rename = "externalIPs")]
    pub(super) external_ips: Option<Vec<Address>>,
    #[serde(default, rename = "loadBalancerIPs")]
    pub(super) load_balancer_ips: Option<Vec<Address>>,
    #[serde(default, rename = "sessionAffinity")]
    pub(super) session_affinity: Option<Affinity>,
    #[serde(default, rename = "sessionAffinityTimeoutSeconds")]
    pub(super) affinity_seconds: Option<AffinitySeconds>,
    #[serde(default, rename = "internalTrafficPolicy")]
    pub(super) internal: Option<TrafficPolicy>,
    #[serde(default, rename = "externalTrafficPolicy")]
    pub(super) external: Option<TrafficPolicy>,
    #[serde(default)]
    pub(super) mode: Option<RawMode>,
    pub(super) ports: Vec<RawPort>,
    #[serde(default)]
    pub(super) endpoints: Option<Vec<RawEndpoint>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub(super) struct RawPort {
    #[serde(default)]
    pub(super) name: Option<String>,
    pub(super) port: Port,
    #[serde(default)]
    pub(super) target_port: Option<Port>,
    #[serde(default)]
    pub(super) node_port: Option<Port>,
    #[serde(default)]
    pub(super) protocol: Option<Transport>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub(super) struct RawEndpoint {
    pub(super) address: Address,
    #[serde(default)]
    pub(super) node: Option<String>,
    #[serde(default)]
    pub(super) host_network: bool,
    #[serde(default)]
    pub(super) zone: Option<String>,
    #[serde(default)]
    pub(super) ports: Option<BTreeMap<String, Port>>,
    #[serde(default)]
    pub(super) ready: Option<bool>,
    #[serde(default)]
    pub(super) serving: Option<bool>,
    #[serde(default)]
    pub(super) terminating: Option<bool>,
    #[serde(default)]
    pub(super) hints: Option<Box<RawHints>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RawHints {
    #[serde(default)]
    pub(super) zones: Option<Vec<String>>,
    #[serde(default)]
    pub(super) nodes: Option<Vec<String>>,
}

/// A file of the largest cluster (16,384 nodes, 262,144 backends and more) stays far below these; they only stop an
/// input that was made to exhaust memory.
pub(super) fn options() -> serde_saphyr::Options {
    serde_saphyr::options! {
        budget: serde_saphyr::budget! {
            max_events: 64_000_000,
            max_nodes: 32_000_000,
            max_total_scalar_bytes: 256 << 20,
        },
        with_snippet: false,
        merge_keys: serde_saphyr::options::MergeKeyPolicy::Error,
    }
}
