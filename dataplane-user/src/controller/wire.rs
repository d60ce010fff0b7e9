//! Objects as the API server sends them: the fields that the controller reads, and no others.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::Resource;
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// A Node (`v1`). The whole object has a list of the images on the node.
#[derive(Clone, Debug, Default, Deserialize, Resource)]
#[resource(inherit = k8s_openapi::api::core::v1::Node)]
pub(super) struct Node {
    pub(super) metadata: ObjectMeta,
    #[serde(default)]
    pub(super) status: NodeStatus,
}

#[derive(Clone, Debug, Default, Deserialize)]
pub(super) struct NodeStatus {
    pub(super) addresses: Option<Vec<NodeAddress>>,
}

#[derive(Clone, Debug, Deserialize)]
pub(super) struct NodeAddress {
    #[serde(rename = "type")]
    pub(super) type_: String,
    pub(super) address: String,
}

/// A NodeMember. The definition at the API server may be another version's: content that cannot be read is written anew.
#[derive(Clone, Debug, Default, Serialize, Deserialize, Resource)]
#[resource(inherit = crate::crds::NodeMember)]
pub(super) struct Member {
    pub(super) metadata: ObjectMeta,
    #[serde(default)]
    pub(super) spec: Value,
}

/// A NodeFlag. One that cannot be read must not spoil the list.
#[derive(Clone, Debug, Default, Deserialize, Resource)]
#[resource(inherit = crate::crds::NodeFlag)]
pub(super) struct Flag {
    pub(super) metadata: ObjectMeta,
    #[serde(default)]
    pub(super) spec: Value,
    #[serde(default)]
    pub(super) status: Value,
}

/// NodefenceSettings.
#[derive(Clone, Debug, Default, Deserialize, Resource)]
#[resource(inherit = crate::crds::NodefenceSettings)]
pub(super) struct Settings {
    pub(super) metadata: ObjectMeta,
    #[serde(default)]
    pub(super) spec: Value,
}
