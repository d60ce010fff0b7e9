//! The kind NodeFlag: what one node is flagged for in the whole cluster.

use jiff::{SignedDuration, Timestamp};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::end::until;
use crate::{
    cluster::NodeName,
    enforce::{ClaimCause, ClaimSource, NewClaim},
};

/// A node to which every agent stops sending traffic, until when, and who wants it.
// The bounds limit what one object can cost the agents.
#[derive(kube::CustomResource, Serialize, Deserialize, JsonSchema, Clone, Debug, PartialEq)]
#[kube(
    group = "nodefence.io",
    version = "v1alpha1",
    kind = "NodeFlag",
    plural = "nodeflags",
    shortname = "nff",
    status = "NodeFlagStatus",
    doc = "A node to which every agent stops sending traffic. Deleting the object ends that.",
    derive = "PartialEq",
    validation = Rule::new("self.spec.until < timestamp('9999-01-01T00:00:00Z')").message("spec.until: expected a time before the year 9999"),
    printcolumn(name = "Node", type_ = "string", json_path = ".spec.node"),
    printcolumn(name = "State", type_ = "string", json_path = ".status.state"),
    printcolumn(name = "By", type_ = "string", json_path = ".spec.by"),
    printcolumn(name = "Until", type_ = "string", json_path = ".spec.until"),
    printcolumn(name = "Reason", type_ = "string", json_path = ".spec.reason"),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp")
)]
#[serde(rename_all = "camelCase")]
pub struct NodeFlagSpec {
    /// The name of the node.
    #[schemars(length(min = 1, max = 253))]
    pub node: String,
    /// The UID of the Node. A flag does not hold for another machine that gets the same name later.
    #[schemars(length(min = 1, max = 64))]
    pub uid: String,
    /// Why, for people.
    #[serde(default)]
    #[schemars(length(max = 1000))]
    pub reason: String,
    /// What kind of author the flag has.
    #[serde(default)]
    pub cause: FlagCause,
    /// Who flagged the node: the name by which the API server knows whoever created the object.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 253))]
    pub by: Option<String>,
    /// Cut the node even where the limits of claims that no person made would be exceeded.
    #[serde(default)]
    pub force: bool,
    /// When the flag ends. It counts by the API server's clock. At most 24 hours after the creation, unless `long` is set.
    #[serde(deserialize_with = "until")]
    pub until: Timestamp,
    /// Allow an end that is more than 24 hours after the creation.
    #[serde(default)]
    pub long: bool,
}

/// How long after its creation a flag ends at the latest that is not `long`.
const LONGEST: SignedDuration = SignedDuration::from_hours(24);

impl NodeFlagSpec {
    /// When the flag ends. The admission policy refuses a later end than [`LONGEST`] allows, but a cluster may lack the policy.
    pub fn ends(&self, created: Option<Timestamp>) -> Timestamp {
        let latest = created.filter(|_| !self.long).and_then(|created| created.checked_add(LONGEST).ok());
        latest.map_or(self.until, |latest| latest.min(self.until))
    }

    /// The claim of a flag of this name that ends then.
    pub(crate) fn claim(&self, name: &str, until: Timestamp) -> (NodeName, NewClaim) {
        let uid = Some(self.uid.as_str().into());
        let cause = self.cause.into();
        let source = ClaimSource::Object { name: name.into(), cause, forced: self.force, uid };
        let claim = NewClaim {
            source,
            by: self.by.as_deref().unwrap_or_default().into(),
            reason: self.reason.as_str().into(),
            evidence: None,
            lasts: None,
            until: Some(until),
        };
        (self.node.as_str().into(), claim)
    }
}

/// What kind of author a flag has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum FlagCause {
    /// A person.
    #[default]
    Operator,
    /// Another system.
    External,
}

impl From<FlagCause> for ClaimCause {
    fn from(cause: FlagCause) -> Self {
        match cause {
            FlagCause::Operator => Self::Operator,
            FlagCause::External => Self::External,
        }
    }
}

/// What agents make of the flag, as the controller works it out.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct NodeFlagStatus {
    /// What agents do about the flag.
    pub state: FlagState,
    /// The same in words, with the reason.
    #[serde(default)]
    pub message: String,
    /// The generation of the object to which this applies.
    #[serde(default)]
    pub observed_generation: i64,
}

/// What agents do about a flag.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum FlagState {
    /// Nobody has looked at it yet.
    #[default]
    Pending,
    /// Agents cut the node, as far as their mode lets them.
    Accepted,
    /// Too many nodes are claimed: a limit withholds it. `force` overrides the limit.
    Withheld,
    /// There is no NodeMember of that name with that UID.
    NodeUnknown,
    /// Its end has passed.
    Over,
}
