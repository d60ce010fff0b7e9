//! Services and EndpointSlices as the API server sends them: the fields that are read, and no others. A cluster may have 150,000 endpoints,
//! and the whole types take five times as much memory.

use k8s_openapi::apimachinery::pkg::{apis::meta::v1::ObjectMeta, util::intstr::IntOrString};
use kube::Resource;
use serde::Deserialize;

/// A NodeMember. The API server checks its content by the definition that it has, which may be another version's: what cannot be read is found
/// out later, so that one object does not spoil the list.
#[derive(Clone, Debug, Default, Deserialize, Resource)]
#[resource(inherit = crate::crds::NodeMember)]
pub(super) struct Member {
    pub(super) metadata: ObjectMeta,
    #[serde(default)]
    pub(super) spec: serde_json::Value,
}

/// The content of a NodeMember.
#[derive(Clone, Debug, Default, Deserialize)]
pub(super) struct MemberSpec {
    #[serde(default)]
    pub(super) uid: String,
    pub(super) addresses: Vec<String>,
    pub(super) zone: Option<String>,
    pub(super) pool: Option<String>,
}

/// A NodeFlag. As with members, what cannot be read is found out later.
#[derive(Clone, Debug, Default, Deserialize, Resource)]
#[resource(inherit = crate::crds::NodeFlag)]
pub(super) struct Flag {
    pub(super) metadata: ObjectMeta,
    #[serde(default)]
    pub(super) spec: serde_json::Value,
}

/// A NodefenceSettings. As with members, what cannot be read is found out later.
#[derive(Clone, Debug, Default, Deserialize, Resource)]
#[resource(inherit = crate::crds::NodefenceSettings)]
pub(super) struct Settings {
    pub(super) metadata: ObjectMeta,
    #[serde(default)]
    pub(super) spec: serde_json::Value,
}

/// An EndpointSlice (`discovery.k8s.io/v1`).
#[derive(Clone, Debug, Default, Deserialize, Resource)]
#[resource(inherit = k8s_openapi::api::discovery::v1::EndpointSlice)]
#[serde(rename_all = "camelCase")]
pub(super) struct Slice {
    pub(super) metadata: ObjectMeta,
    #[serde(default)]
    pub(super) address_type: String,
    /// The API server may send null for an empty list.
    pub(super) endpoints: Option<Vec<Endpoint>>,
    pub(super) ports: Option<Vec<EndpointPort>>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Endpoint {
    pub(super) addresses: Option<Vec<String>>,
    #[serde(default)]
    pub(super) conditions: Conditions,
    pub(super) hints: Option<Hints>,
    pub(super) node_name: Option<String>,
    pub(super) target_ref: Option<TargetRef>,
    pub(super) zone: Option<String>,
}

/// The object that an endpoint stands for.
#[derive(Clone, Copy, Debug, Deserialize)]
pub(super) struct TargetRef {
    pub(super) kind: Option<TargetKind>,
}

/// The kind of that object.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
pub(super) enum TargetKind {
    Pod,
    #[serde(other)]
    Other,
}

#[derive(Clone, Copy, Debug, Default, Deserialize)]
pub(super) struct Conditions {
    pub(super) ready: Option<bool>,
    pub(super) serving: Option<bool>,
    pub(super) terminating: Option<bool>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Hints {
    pub(super) for_zones: Option<Vec<Named>>,
    pub(super) for_nodes: Option<Vec<Named>>,
}

#[derive(Clone, Debug, Deserialize)]
pub(super) struct Named {
    pub(super) name: String,
}

#[derive(Clone, Debug, Deserialize)]
pub(super) struct EndpointPort {
    pub(super) name: Option<String>,
    pub(super) port: Option<i32>,
}

/// A Service (`v1`).
#[derive(Clone, Debug, Default, Deserialize, Resource)]
#[resource(inherit = k8s_openapi::api::core::v1::Service)]
pub(super) struct Service {
    pub(super) metadata: ObjectMeta,
    #[serde(default)]
    pub(super) spec: ServiceSpec,
    #[serde(default)]
    pub(super) status: ServiceStatus,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct ServiceSpec {
    #[serde(rename = "clusterIP")]
    pub(super) cluster_ip: Option<String>,
    #[serde(rename = "clusterIPs")]
    pub(super) cluster_ips: Option<Vec<String>>,
    #[serde(rename = "externalIPs")]
    pub(super) external_ips: Option<Vec<String>>,
    pub(super) external_traffic_policy: Option<String>,
    pub(super) internal_traffic_policy: Option<String>,
    pub(super) ports: Option<Vec<ServicePort>>,
    pub(super) session_affinity: Option<String>,
    pub(super) session_affinity_config: Option<AffinityConfig>,
    #[serde(rename = "type")]
    pub(super) type_: Option<String>,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct ServicePort {
    pub(super) name: Option<String>,
    pub(super) node_port: Option<i32>,
    pub(super) port: i32,
    pub(super) protocol: Option<String>,
    pub(super) target_port: Option<IntOrString>,
}

#[derive(Clone, Copy, Debug, Default, Deserialize)]
pub(super) struct AffinityConfig {
    #[serde(rename = "clientIP")]
    pub(super) client_ip: Option<ClientIp>,
}

#[derive(Clone, Copy, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct ClientIp {
    pub(super) timeout_seconds: Option<u32>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct ServiceStatus {
    #[serde(default)]
    pub(super) load_balancer: LoadBalancer,
}

#[derive(Clone, Debug, Default, Deserialize)]
pub(super) struct LoadBalancer {
    pub(super) ingress: Option<Vec<Ingress>>,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Ingress {
    pub(super) ip: Option<String>,
    pub(super) ip_mode: Option<String>,
}
