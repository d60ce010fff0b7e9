//! Requests of the API server, and errors that name what was asked for.

use std::{fmt::Debug, time::Duration};

use http::Request;
use jiff::Timestamp;
use kube::{
    Api, Client, Resource,
    api::{DeleteParams, ListParams, Patch, PatchParams, PostParams},
    client::Body,
};
use serde::{Serialize, de::DeserializeOwned};
use serde_json::Value;

use super::error::Error;
use crate::source::kubernetes;

/// Who owns the fields that are written.
const MANAGER: &str = "kubectl-nodefence";
/// How many objects a page of a list has.
const PAGE: u32 = 1_000;
/// How long the whole of one request may take.
const PATIENCE: Duration = Duration::from_secs(30);

/// A kind of objects without parameters of its own.
pub(super) trait Kind: Resource<DynamicType = ()> + Clone + Debug + DeserializeOwned {}
impl<K: Resource<DynamicType = ()> + Clone + Debug + DeserializeOwned> Kind for K {}

/// The objects as RBAC names them.
fn resource<K: Kind>() -> String {
    match &*K::group(&()) {
        "" => K::plural(&()).into_owned(),
        group => format!("{}.{group}", K::plural(&())),
    }
}

/// The roles for people of the chart.
pub(super) const ROLES: [&str; 4] = [
    "the ClusterRole nodefence-view",
    "the ClusterRole nodefence-operate",
    "the ClusterRole nodefence-view-agents, bound in the namespace of the agents",
    "the ClusterRole nodefence-preflight (in the chart; before an install: docs/kubectl.md)",
];

/// The role that allows a request.
fn role<K: Kind>(verb: &str) -> &'static str {
    match (&*K::group(&()), &*K::plural(&()), verb) {
        ("nodefence.io", _, "get" | "list") => ROLES[0],
        ("nodefence.io", ..) => ROLES[1],
        ("", "pods", _) => ROLES[2],
        _ => ROLES[3],
    }
}

/// Waits for an answer, and names what was asked for where it is an error.
async fn answer<K: Kind, T>(
    verb: &'static str,
    asked: impl Future<Output = Result<T, kube::Error>>,
) -> Result<T, Error> {
    match tokio::time::timeout(PATIENCE, asked).await {
        Ok(answer) => answer.map_err(|error| Error::of(verb, resource::<K>(), role::<K>(verb), error)),
        Err(late) => Err(Error::Request { verb, resource: resource::<K>(), source: Box::new(late) }),
    }
}

/// All objects that fit.
pub(super) async fn list<K: Kind>(api: &Api<K>, params: ListParams) -> Result<Vec<K>, Error> {
    let mut params = params.limit(PAGE);
    let mut all = Vec::new();
    loop {
        let page = answer::<K, _>("list", api.list(&params)).await?;
        all.extend(page.items);
        match page.metadata.continue_.filter(|more| !more.is_empty()) {
            Some(more) => params = params.continue_token(&more),
            None => return Ok(all),
        }
    }
}

/// One object. `None` where there is none.
pub(super) async fn get<K: Kind>(api: &Api<K>, name: &str) -> Result<Option<K>, Error> {
    answer::<K, _>("get", api.get_opt(name)).await
}

/// Creates an object.
pub(super) async fn create<K: Kind + Serialize>(api: &Api<K>, object: &K, dry: bool) -> Result<K, Error> {
    let params = PostParams { dry_run: dry, field_manager: Some(MANAGER.to_owned()) };
    answer::<K, _>("create", api.create(&params, object)).await
}

/// Deletes an object. Returns whether it was there.
pub(super) async fn delete<K: Kind>(api: &Api<K>, name: &str) -> Result<bool, Error> {
    let deleted = async {
        match api.delete(name, &DeleteParams::default()).await {
            Ok(_) => Ok(true),
            Err(kube::Error::Api(status)) if status.code == 404 => Ok(false),
            Err(error) => Err(error),
        }
    };
    answer::<K, _>("delete", deleted).await
}

/// Changes fields of an object. `None` where there is no such object. A change whose `metadata.resourceVersion` is not the object's any more
/// is an answer of its own.
pub(super) async fn patch<K: Kind>(api: &Api<K>, name: &str, fields: &Value) -> Result<Patched<K>, Error> {
    let params = PatchParams { field_manager: Some(MANAGER.to_owned()), ..PatchParams::default() };
    let patched = async {
        match api.patch(name, &params, &Patch::Merge(fields)).await {
            Ok(object) => Ok(Patched::Done(Box::new(object))),
            Err(kube::Error::Api(status)) if status.code == 404 => Ok(Patched::Missing),
            Err(kube::Error::Api(status)) if status.code == 409 => Ok(Patched::Changed),
            Err(error) => Err(error),
        }
    };
    answer::<K, _>("patch", patched).await
}

/// What became of a change.
#[derive(Debug)]
pub(super) enum Patched<K> {
    /// The object has it.
    Done(Box<K>),
    /// There is no such object.
    Missing,
    /// Somebody else changed the object meanwhile.
    Changed,
}

/// What an answer of the API server says of the server itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Server {
    /// The time by the server's clock.
    pub(super) now: Timestamp,
    /// The version. `None` where it was not told.
    pub(super) version: Option<String>,
}

/// Asks the API server for its time and version.
pub(super) async fn server(client: &Client) -> Result<Server, Error> {
    let failed = |source: Box<dyn std::error::Error + Send + Sync>| Error::Request {
        verb: "get",
        resource: "/version".to_owned(),
        source,
    };
    let request = Request::get("/version").body(Body::empty()).map_err(|error| failed(error.into()))?;
    let asked = async {
        let answer = client.send(request).await.map_err(|error| failed(error.into()))?;
        let now = kubernetes::shown(answer.headers()).ok_or(Error::NoDate)?;
        // An error has no version, and its `Date` is right all the same.
        let body = answer.into_body().collect_bytes().await.map_err(|error| failed(error.into()))?;
        let info: Option<Value> = serde_json::from_slice(&body).ok();
        let version = info.and_then(|info| info["gitVersion"].as_str().map(str::to_owned));
        Ok(Server { now, version })
    };
    tokio::time::timeout(PATIENCE, asked).await.map_err(|late| failed(late.into()))?
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::{Node, Pod};

    use super::*;
    use crate::{crds::NodeFlag, source::kubernetes::instant};

    #[test]
    fn the_date_of_an_answer_is_read() {
        let wanted: Timestamp = "2026-11-28T15:48:48Z".parse().unwrap();
        assert_eq!(instant("Sat, 28 Nov 2026 15:48:48 GMT"), Some(wanted));
        assert_eq!(instant("soon"), None);
    }

    #[test]
    fn each_kind_has_its_name_and_role() {
        assert_eq!(resource::<NodeFlag>(), "nodeflags.nodefence.io");
        assert_eq!(resource::<Node>(), "nodes");
        assert_eq!(role::<NodeFlag>("list"), "the ClusterRole nodefence-view");
        assert_eq!(role::<NodeFlag>("create"), "the ClusterRole nodefence-operate");
        assert!(role::<Pod>("list").contains("nodefence-view-agents"));
        let before = "the ClusterRole nodefence-preflight (in the chart; before an install: docs/kubectl.md)";
        assert_eq!(role::<Node>("list"), before);
    }
}
