//! Asks the agents for their state, through the API server's proxy of pods.

use std::{collections::BTreeMap, time::Duration};

use futures::{Stream, StreamExt as _, stream};
use http::Request;
use k8s_openapi::api::{apps::v1::DaemonSet, core::v1::Pod};
use kube::{Api, Client, ResourceExt as _, api::ListParams};
use serde_json::Value;

use super::{agent_rows::AgentRow, ask, error::Error};

/// The labels of the agents' pods.
pub(super) const LABELS: &str = "app.kubernetes.io/name=nodefence,app.kubernetes.io/component=agent";
/// The annotation of a pod whose agent serves HTTP at another port than the usual one.
const PORT_ANNOTATION: &str = "nodefence.io/http-port";
const PORT: u16 = 9_478;
/// How many agents are asked at once. The API server holds a connection for each.
const AT_ONCE: usize = 50;
/// How long an agent may take. That of a hung node does not answer at all.
const PATIENCE: Duration = Duration::from_secs(5);

/// An agent's pod, and where the agent serves HTTP.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Place {
    pub(super) pod: String,
    pub(super) node: String,
    port: u16,
}

/// Asks the agents of these nodes, or of all. Returns what each has said, by node.
///
/// # Errors
/// Where the pods cannot be listed, or where there are none. An agent that does not answer is no error.
pub(super) async fn agents(
    client: &Client,
    namespace: &str,
    is_wanted: impl Fn(&str) -> bool,
) -> Result<BTreeMap<String, AgentRow>, Error> {
    let places = places_in(client, namespace).await?;
    if places.is_empty() {
        return Err(Error::NoAgents(namespace.to_owned()));
    }
    let wanted = places.into_values().filter(|place| is_wanted(&place.node)).collect();
    let answers = answers(client, namespace, wanted);
    Ok(answers.map(|(place, answer)| (place.node, AgentRow::new(place.pod, answer))).collect().await)
}

/// The agents' pods, by node.
///
/// # Errors
/// Where the pods cannot be listed.
pub(super) async fn places_in(client: &Client, namespace: &str) -> Result<BTreeMap<String, Place>, Error> {
    let pods: Api<Pod> = Api::namespaced(client.clone(), namespace);
    let pods = ask::list(&pods, ListParams::default().labels(LABELS)).await?;
    Ok(places(&pods))
}

/// On how many nodes there are pods of agents, or should be, as the DaemonSet's controller says it.
///
/// # Errors
/// Where the DaemonSet cannot be read, or is not there.
pub(super) async fn wanted(client: &Client, namespace: &str) -> Result<usize, Error> {
    let sets: Api<DaemonSet> = Api::namespaced(client.clone(), namespace);
    let sets = ask::list(&sets, ListParams::default().labels(LABELS)).await?;
    if sets.is_empty() {
        return Err(Error::NoAgents(namespace.to_owned()));
    }
    let statuses = sets.iter().filter_map(|set| set.status.as_ref());
    // A pod that is on a node by mistake is counted among the pods, too. That of a hung node stays there for long.
    let all: i32 = statuses.map(|status| status.desired_number_scheduled + status.number_misscheduled).sum();
    Ok(usize::try_from(all).unwrap_or(0))
}

/// Asks these agents, some at once. Each one's status, or why there is none, comes as soon as it is known.
pub(super) fn answers(
    client: &Client,
    namespace: &str,
    places: Vec<Place>,
) -> impl Stream<Item = (Place, Result<Value, String>)> {
    let asked = stream::iter(places).map(async |place| {
        let answer = tokio::time::timeout(PATIENCE, status(client, namespace, &place)).await;
        (place, answer.unwrap_or_else(|_| Err(late())))
    });
    asked.buffer_unordered(AT_ONCE)
}

/// The pod of each node that has one. Of two, as during a rollout, the one that is ready, since the other stands by. Else the older one: it
/// holds the node until it hands over.
fn places(pods: &[Pod]) -> BTreeMap<String, Place> {
    let is_alive = |pod: &&Pod| {
        let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref());
        !matches!(phase, Some("Succeeded" | "Failed"))
    };
    let mut alive: Vec<&Pod> = pods.iter().filter(is_alive).collect();
    let created = |pod: &Pod| pod.metadata.creation_timestamp.as_ref().map(|created| created.0);
    // Of pods on one node the last one stays in the map.
    alive.sort_by_key(|pod| (is_ready(pod), std::cmp::Reverse(created(pod))));
    let place = |pod: &Pod| {
        let node = pod.spec.as_ref()?.node_name.clone()?;
        let port = pod.annotations().get(PORT_ANNOTATION).and_then(|port| port.parse().ok());
        Some((node.clone(), Place { pod: pod.name_any(), node, port: port.unwrap_or(PORT) }))
    };
    alive.into_iter().filter_map(place).collect()
}

/// Whether the pod takes part, by its readiness probe.
fn is_ready(pod: &Pod) -> bool {
    let conditions = pod.status.as_ref().and_then(|status| status.conditions.as_ref());
    conditions.into_iter().flatten().any(|condition| condition.type_ == "Ready" && condition.status == "True")
}

/// What one agent says.
async fn status(client: &Client, namespace: &str, place: &Place) -> Result<Value, String> {
    let Place { pod, port, .. } = place;
    let path = format!("/api/v1/namespaces/{namespace}/pods/http:{pod}:{port}/proxy/v1/status");
    let request = Request::get(path).body(Vec::new()).map_err(|error| error.to_string())?;
    client.request::<Value>(request).await.map_err(|error| match error {
        kube::Error::Api(status) if status.code == 403 => may_not(),
        kube::Error::Api(status) => status.message,
        kube::Error::SerdeError(_) => no_status(),
        error => error.to_string(),
    })
}

/// Why an agent counts as silent: it takes too long.
pub(super) fn late() -> String {
    format!("no answer within {} s", PATIENCE.as_secs())
}

/// Why an agent counts as silent: the user may not ask it.
pub(super) fn may_not() -> String {
    "you may not get pods/proxy (expected: the ClusterRole nodefence-view-agents)".to_owned()
}

/// Why an agent counts as silent: something else answers.
pub(super) fn no_status() -> String {
    "the answer is no status of an agent".to_owned()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn pod(name: &str, node: Option<&str>, created: &str, more: Value) -> Pod {
        let mut pod = json!({
            "metadata": { "name": name, "creationTimestamp": created },
            "spec": { "containers": [], "nodeName": node },
        });
        for (field, value) in more.as_object().unwrap() {
            pod[field] = value.clone();
        }
        if let Some(annotations) = more.get("annotations") {
            pod["metadata"]["annotations"] = annotations.clone();
        }
        serde_json::from_value(pod).unwrap()
    }

    #[test]
    fn each_node_has_the_pod_that_holds_it() {
        let early = "2026-12-01T08:00:00Z";
        let late = "2026-12-01T09:00:00Z";
        let ready =
            |ready: &str| json!({ "status": { "conditions": [{ "type": "Ready", "status": ready }] } });
        let found = places(&[
            pod("old", Some("a"), early, json!({})),
            pod("new", Some("a"), late, json!({})),
            pod("ended", Some("b"), early, json!({ "status": { "phase": "Failed" } })),
            pod("b-1", Some("b"), late, json!({ "annotations": { PORT_ANNOTATION: "9000" } })),
            pod("waits", None, late, json!({})),
            pod("stands-by", Some("c"), early, ready("False")),
            pod("took-over", Some("c"), late, ready("True")),
        ]);
        let of = |node: &str| found.get(node).map(|place| (place.pod.as_str(), place.port));
        assert_eq!((of("a"), of("b"), found.len()), (Some(("old", PORT)), Some(("b-1", 9_000)), 3));
        assert_eq!(of("c"), Some(("took-over", PORT)));
    }
}
