//! `mode off --wait`: waits until each agent that answers is off, and has taken back all that it did.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use futures::StreamExt as _;
use kube::{ResourceExt as _, api::ListParams};
use tokio::time::{Instant, sleep, sleep_until, timeout_at};

use super::{
    agents::{Place, answers, places_in},
    ask,
    error::Error,
    off_rows::{LeftAgent, Said, Waited, said},
    session::Session,
};

/// How soon agents are asked again.
const AGAIN: Duration = Duration::from_secs(1);
/// For how long an agent must have been silent to be given up before the wait is over. One that turns itself off or starts anew is silent for a moment.
const GIVEN_UP: Duration = Duration::from_secs(15);

/// Why an agent is named that was not heard before the wait was over.
pub(super) const UNHEARD: &str = "it has not answered";

/// Waits for so long at most. Returns which agents are off and which are not, and which nodes have no agent; none of this is an error.
///
/// # Errors
/// Where the agents' pods cannot be listed.
pub(super) async fn wait(session: &Session, namespace: &str, patience: Duration) -> Result<Waited, Error> {
    let client = &session.client;
    let ends = Instant::now() + patience;
    let mut off: BTreeSet<String> = BTreeSet::new();
    let mut with_pod: BTreeSet<String> = BTreeSet::new();
    let mut silent: BTreeMap<String, Instant> = BTreeMap::new();
    // What each agent said last, or why it did not answer.
    let mut last: BTreeMap<String, String> = BTreeMap::new();
    loop {
        let places = match places_in(client, namespace).await {
            Ok(places) => places,
            // The API server may be away for a moment.
            Err(Error::Request { .. }) if Instant::now() < ends => {
                sleep(AGAIN).await;
                continue;
            }
            Err(error) => return Err(error),
        };
        with_pod.extend(places.keys().cloned());
        let asked: Vec<Place> = places.into_values().filter(|place| !off.contains(&place.node)).collect();
        let begun = Instant::now();
        let mut left: BTreeMap<String, String> =
            asked.iter().map(|Place { node, pod, .. }| (node.clone(), pod.clone())).collect();
        let mut answers = std::pin::pin!(answers(client, namespace, asked));
        // Those that have not answered by the end stay in the list.
        while let Ok(Some((place, answer))) = timeout_at(ends, answers.next()).await {
            let why = match said(answer) {
                Said::Off => {
                    silent.remove(&place.node);
                    left.remove(&place.node);
                    off.insert(place.node);
                    continue;
                }
                Said::NotYet(why) => {
                    silent.remove(&place.node);
                    why
                }
                Said::Silent(why) => {
                    silent.entry(place.node.clone()).or_insert(begun);
                    why
                }
            };
            last.insert(place.node, why);
        }
        let is_given_up = |node: &String| silent.get(node).is_some_and(|since| since.elapsed() >= GIVEN_UP);
        if Instant::now() >= ends || left.keys().all(is_given_up) {
            let named = |(node, pod): (String, String)| {
                let why = last.remove(&node).unwrap_or_else(|| UNHEARD.to_owned());
                LeftAgent { node, pod, why }
            };
            let left = left.into_iter().map(named).collect();
            let (without_pod, members_unknown) = match without_pod(session, &with_pod).await {
                Ok(nodes) => (nodes, None),
                // A removal must not wait for it.
                Err(error) => (Vec::new(), Some(error.to_string())),
            };
            return Ok(Waited { off: off.len(), left, without_pod, members_unknown });
        }
        sleep_until(ends.min(Instant::now() + AGAIN)).await;
    }
}

/// The nodes that have no agent's pod. An earlier agent may have left something there, as where the nodes for agents were chosen anew.
async fn without_pod(session: &Session, with_pod: &BTreeSet<String>) -> Result<Vec<String>, Error> {
    let members = ask::list(&session.members(), ListParams::default()).await?;
    let mut names: Vec<String> = members.iter().map(|member| member.name_any()).collect();
    names.retain(|name| !with_pod.contains(name));
    Ok(names)
}

#[cfg(test)]
mod tests {
    use http::Method;
    use serde_json::{Value, json};

    use super::{
        super::server_for_tests::{MEMBERS, PODS, Server, failure},
        *,
    };

    const PATIENCE: Duration = Duration::from_secs(60);

    fn path(pod: &str) -> String {
        format!("{PODS}/http:{pod}:9478/proxy/v1/status")
    }

    /// A server with these agents' pods, each on a node of the same letter.
    fn server(pods: &[&str]) -> Server {
        let server = Server::new();
        let node = |pod: &str| pod.replace("agent", "node");
        let pod = |pod: &&str| json!({ "metadata": { "name": pod }, "spec": { "containers": [], "nodeName": node(pod) } });
        let items: Vec<Value> = pods.iter().map(pod).collect();
        let list = json!({ "apiVersion": "v1", "kind": "PodList", "metadata": {}, "items": items });
        server.answer(Method::GET, PODS, 200, list);
        server
    }

    fn off(taken_back: bool) -> Value {
        json!({ "state": "off", "taken_back": taken_back, "problems": [] })
    }

    fn runs() -> Value {
        json!({ "state": "ok", "mode": "enforce" })
    }

    async fn waited(server: &Server) -> (Waited, Duration) {
        let session = server.session().await.unwrap();
        let begun = Instant::now();
        let waited = wait(&session, "nodefence", PATIENCE).await.unwrap();
        (waited, begun.elapsed())
    }

    fn left(waited: &Waited) -> Vec<String> {
        waited.left.iter().map(|left| format!("{}: {}", left.node, left.why)).collect()
    }

    #[tokio::test(start_paused = true)]
    async fn it_ends_once_all_have_taken_back_what_they_did() {
        let server = server(&["agent-a", "agent-b"]);
        for body in [runs(), off(false), off(true)] {
            server.then(Method::GET, &path("agent-a"), 200, body);
        }
        server.answer(Method::GET, &path("agent-b"), 200, off(true));
        let (waited, took) = waited(&server).await;
        assert_eq!((waited.off, left(&waited)), (2, Vec::new()));
        assert_eq!(took, 2 * AGAIN, "asked three times");
    }

    #[tokio::test(start_paused = true)]
    async fn an_agent_that_is_silent_for_a_moment_is_not_given_up() {
        let server = server(&["agent-a"]);
        for _ in 0..5 {
            server.then(Method::GET, &path("agent-a"), 503, failure(503, "ServiceUnavailable", "refused"));
        }
        server.then(Method::GET, &path("agent-a"), 200, off(true));
        let (waited, _) = waited(&server).await;
        assert_eq!((waited.off, left(&waited)), (1, Vec::new()));
    }

    #[tokio::test(start_paused = true)]
    async fn an_agent_that_hangs_is_named_and_does_not_hold_the_wait_up() {
        let server = server(&["agent-a", "agent-b"]);
        server.answer(Method::GET, &path("agent-a"), 200, off(true));
        server.answer(Method::GET, &path("agent-b"), 0, Value::Null);
        let (waited, took) = waited(&server).await;
        assert_eq!((waited.off, left(&waited)), (1, vec!["node-b: no answer within 5 s".to_owned()]));
        assert!(took >= GIVEN_UP && took < PATIENCE / 2, "{took:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn an_agent_that_goes_on_is_named_at_the_end() {
        let server = server(&["agent-a", "agent-b", "agent-c"]);
        server.answer(Method::GET, &path("agent-a"), 200, runs());
        server.answer(Method::GET, &path("agent-b"), 0, Value::Null);
        server.answer(Method::GET, &path("agent-c"), 200, off(true));
        let (waited, took) = waited(&server).await;
        assert_eq!(waited.off, 1);
        assert!(took >= PATIENCE && took < PATIENCE + AGAIN, "{took:?}");
        let names: Vec<&str> = waited.left.iter().map(|left| left.node.as_str()).collect();
        assert_eq!(names, ["node-a", "node-b"]);
        assert_eq!(waited.left[0].why, "the agent is not off");
    }

    #[tokio::test(start_paused = true)]
    async fn without_agents_nothing_is_waited_for_and_without_the_right_it_fails() {
        let server = server(&[]);
        let (waited, took) = waited(&server).await;
        let without_pod = ["node-a", "node-b", "node-c"].map(str::to_owned).into();
        assert_eq!((waited, took), (Waited { without_pod, ..Waited::default() }, Duration::ZERO));
        server.answer(Method::GET, PODS, 403, failure(403, "Forbidden", "no"));
        let session = server.session().await.unwrap();
        let error = wait(&session, "nodefence", PATIENCE).await.unwrap_err();
        assert!(matches!(error, Error::Forbidden { .. }), "{error}");
    }

    #[tokio::test(start_paused = true)]
    async fn a_node_without_pod_is_named_and_members_that_may_not_be_listed_are_no_error() {
        let server = server(&["agent-a", "agent-b"]);
        server.answer(Method::GET, &path("agent-a"), 200, off(true));
        server.answer(Method::GET, &path("agent-b"), 200, off(true));
        let (found, _) = waited(&server).await;
        assert_eq!((found.off, found.without_pod), (2, vec!["node-c".to_owned()]));
        server.answer(Method::GET, MEMBERS, 403, failure(403, "Forbidden", "no"));
        let (found, _) = waited(&server).await;
        assert_eq!((found.off, found.without_pod.len()), (2, 0));
        assert!(found.members_unknown.unwrap().contains("you may not list nodemembers"));
    }
}
