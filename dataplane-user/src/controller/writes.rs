//! The controller's writes at the API server.

use kube::{
    Api, Client,
    api::{DeleteParams, Patch, PatchParams, PostParams, Preconditions},
    core::{ObjectMeta, Status},
};
use serde_json::json;
use tokio::time::timeout;

use super::{
    client::PATIENCE,
    members::Wanted,
    wire::{Flag, Member, Node},
};
use crate::{
    causes::causes,
    crds::{NodeFlagStatus, NodeMember, NodefenceSettings, NodefenceSettingsSpec, SETTINGS_NAME},
};

/// Who owns the fields that the controller writes.
const MANAGER: &str = "nodefence-controller";
/// HTTP's codes for a missing right, and for an object that is gone or another one.
const FORBIDDEN: u16 = 403;
const NOT_FOUND: u16 = 404;
const STALE: [u16; 2] = [NOT_FOUND, 409];

/// Why something was not written.
#[derive(Debug)]
pub(super) enum Failed {
    /// The object is another one by now, or gone: what the watches bring decides anew.
    Stale,
    /// The controller lacks a right, or something else went wrong.
    Refused { verb: &'static str, resource: &'static str, is_forbidden: bool, error: String },
}

/// The collections that the controller writes.
pub(super) struct Writes {
    nodes: Api<Node>,
    members: Api<Member>,
    /// The members once more, by the type that has all that an object needs.
    made: Api<NodeMember>,
    flags: Api<Flag>,
    settings: Api<NodefenceSettings>,
}

impl Writes {
    pub(super) fn new(client: &Client) -> Self {
        Self {
            nodes: Api::all(client.clone()),
            members: Api::all(client.clone()),
            made: Api::all(client.clone()),
            flags: Api::all(client.clone()),
            settings: Api::all(client.clone()),
        }
    }

    /// The UID of the Node of this name, if there is one. The watches of Nodes and of other kinds may be apart by moments.
    pub(super) async fn node_uid(&self, name: &str) -> Result<Option<String>, Failed> {
        let found = bounded("get", "nodes", self.nodes.get_opt(name)).await?;
        Ok(found.and_then(|node| node.metadata.uid))
    }

    pub(super) async fn create_member(&self, name: &str, wanted: &Wanted) -> Result<Member, Failed> {
        let mut member = NodeMember::new(name, wanted.spec.clone());
        member.metadata.owner_references = Some(vec![wanted.owner.clone()]);
        let params = posting();
        let made = bounded("create", "nodemembers", self.made.create(&params, &member)).await?;
        let spec = serde_json::to_value(&made.spec).unwrap_or_default();
        Ok(Member { metadata: made.metadata, spec })
    }

    /// Changes a member, unless it is another one by now. What others wrote besides is kept.
    pub(super) async fn change_member(
        &self,
        name: &str,
        before: &Member,
        wanted: &Wanted,
    ) -> Result<Member, Failed> {
        let patch = json!({
            "metadata": {
                "resourceVersion": before.metadata.resource_version,
                "ownerReferences": [wanted.owner],
            },
            // A null deletes the field.
            "spec": {
                "uid": wanted.spec.uid, "addresses": wanted.spec.addresses,
                "zone": wanted.spec.zone, "pool": wanted.spec.pool,
            },
        });
        let params = patching();
        let patch = Patch::Merge(patch);
        let patched = self.members.patch(name, &params, &patch);
        bounded("patch", "nodemembers", patched).await
    }

    pub(super) async fn delete_member(&self, name: &str, before: &Member) -> Result<(), Failed> {
        let this = of_this(&before.metadata);
        let deleted = self.members.delete(name, &this);
        bounded("delete", "nodemembers", deleted).await.map(drop)
    }

    /// Creates the settings with the defaults.
    pub(super) async fn create_settings(&self) -> Result<(), Failed> {
        let settings = NodefenceSettings::new(SETTINGS_NAME, NodefenceSettingsSpec::default());
        let params = posting();
        let created = self.settings.create(&params, &settings);
        bounded("create", "nodefencesettings", created).await.map(drop)
    }

    /// Changes the status of a flag, unless the flag is another one by now.
    pub(super) async fn set_status(
        &self,
        name: &str,
        before: &Flag,
        status: &NodeFlagStatus,
    ) -> Result<Flag, Failed> {
        let patch = json!({
            "metadata": { "resourceVersion": before.metadata.resource_version },
            "status": status,
        });
        let params = patching();
        let patch = Patch::Merge(patch);
        let patched = self.flags.patch_status(name, &params, &patch);
        bounded("patch", "nodeflags/status", patched).await
    }

    /// Deletes a flag, unless somebody changed it meanwhile.
    pub(super) async fn delete_flag(&self, name: &str, before: &Flag) -> Result<(), Failed> {
        let this = of_this(&before.metadata);
        bounded("delete", "nodeflags", self.flags.delete(name, &this)).await.map(drop)
    }
}

/// Sends a request. An answer that does not come to its end is a failure.
async fn bounded<T>(
    verb: &'static str,
    resource: &'static str,
    request: impl Future<Output = kube::Result<T>>,
) -> Result<T, Failed> {
    let refused = |is_forbidden, error| Failed::Refused { verb, resource, is_forbidden, error };
    match timeout(2 * PATIENCE, request).await {
        Ok(Ok(answer)) => Ok(answer),
        Ok(Err(kube::Error::Api(status))) if STALE.contains(&status.code) && !is_missing_kind(&status) => {
            Err(Failed::Stale)
        }
        Ok(Err(kube::Error::Api(status))) => Err(refused(status.code == FORBIDDEN, status.message)),
        Ok(Err(error)) => Err(refused(false, causes(&error.into()))),
        Err(_) => Err(refused(false, "the answer did not come to its end".to_owned())),
    }
}

/// Whether the API server lacks the kind itself. Where it lacks only the object, it names the object.
fn is_missing_kind(status: &Status) -> bool {
    let names_object = status.details.as_ref().is_some_and(|details| !details.name.is_empty());
    status.code == NOT_FOUND && !names_object
}

fn posting() -> PostParams {
    PostParams { field_manager: Some(MANAGER.to_owned()), ..PostParams::default() }
}

fn patching() -> PatchParams {
    PatchParams { field_manager: Some(MANAGER.to_owned()), ..PatchParams::default() }
}

/// Deletes this very object alone, as it was last seen.
fn of_this(before: &ObjectMeta) -> DeleteParams {
    let this = Preconditions { uid: before.uid.clone(), resource_version: before.resource_version.clone() };
    DeleteParams { preconditions: Some(this), ..DeleteParams::default() }
}
