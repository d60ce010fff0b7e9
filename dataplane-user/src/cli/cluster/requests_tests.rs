//! The verbs against an API server that only this test has.

use http::Method;
use serde_json::{Value, json};

use super::{
    args::{FlagNode, ListNodes, PauseAgents, UnflagNode},
    error::Error,
    flag, node_rows, overview,
    samples::{member, now, settings},
    server_for_tests::{FLAGS, MEMBERS, PODS, REVIEWS, SETTINGS, Server, failure, list},
    settings as verbs,
};
use crate::{
    cli::{args::Format, exit::Exit},
    crds::{FlagState, SettingsMode},
};

fn stored(name: &str, node: &str, by: &str) -> Value {
    let mut flag = json!(super::samples::flag(node, by));
    flag["metadata"]["name"] = json!(name);
    flag
}

fn args(node: &str) -> FlagNode {
    FlagNode {
        node: node.to_owned(),
        reason: "disk is gone".to_owned(),
        lasts: None,
        until: None,
        force: false,
        long: false,
        dry_run: false,
        wait: false,
    }
}

#[tokio::test]
async fn a_flag_has_uid_author_and_an_end_by_the_servers_clock() {
    let server = Server::new();
    let session = server.session().await.unwrap();
    let report = flag::flag(&session, &args("node-b")).await.unwrap();
    let (_, path, sent) = server.last(Method::POST);
    assert!(!path.contains("dryRun"), "{path}");
    let spec = &sent["spec"];
    assert_eq!(sent["metadata"]["generateName"], "node-b-");
    assert_eq!((&spec["uid"], &spec["by"]), (&json!("uid-node-b"), &json!("alice")));
    assert_eq!(spec["until"], "2026-12-01T09:00:00Z");
    assert_eq!(
        (report.flag.name.as_str(), report.agents.as_str()),
        ("node-b-7xk2p", "the mode is enforce: agents cut")
    );
    assert_eq!(server.changes(), [format!("POST {FLAGS}")]);
}

#[tokio::test]
async fn a_second_flag_of_the_same_user_replaces_the_first_once_it_is_there() {
    let server = Server::new();
    let other = stored("node-b-bob", "node-b", "bob");
    server.flags(json!([stored("node-b-old", "node-b", "alice"), other]));
    let session = server.session().await.unwrap();
    let report = flag::flag(&session, &args("node-b")).await.unwrap();
    assert_eq!(report.replaced, ["node-b-old"]);
    assert_eq!(server.changes(), [format!("POST {FLAGS}"), format!("DELETE {FLAGS}/node-b-old")]);
    // Whoever may not delete it still has the new flag.
    server.answer(Method::DELETE, &format!("{FLAGS}/node-b-old"), 403, failure(403, "Forbidden", "no"));
    let report = flag::flag(&session, &args("node-b")).await.unwrap();
    assert!(report.replaced.is_empty() && report.warnings[0].contains("node-b-old stays"), "{report:?}");
}

#[tokio::test]
async fn without_a_name_nothing_is_replaced() {
    let server = Server::new();
    server.answer(Method::POST, REVIEWS, 403, failure(403, "Forbidden", "no"));
    server.flags(json!([stored("node-b-old", "node-b", "alice")]));
    let session = server.session().await.unwrap();
    let report = flag::flag(&session, &args("node-b")).await.unwrap();
    assert_eq!((report.flag.by, report.replaced), (None, Vec::new()));
}

#[tokio::test]
async fn a_dry_run_changes_nothing() {
    let server = Server::new();
    server.flags(json!([stored("node-b-old", "node-b", "alice")]));
    let session = server.session().await.unwrap();
    let report = flag::flag(&session, &FlagNode { dry_run: true, ..args("node-b") }).await.unwrap();
    assert_eq!(report.replaced, ["node-b-old"]);
    let (_, path, _) = server.last(Method::POST);
    assert!(path.contains("dryRun=All"), "{path}");
    assert_eq!(server.changes(), [format!("POST {FLAGS}")]);
}

#[tokio::test]
async fn what_is_unwise_is_refused_before_anything_is_written() {
    let server = Server::new();
    server.flags(json!([stored("node-a-1", "node-a", "bob")]));
    let session = server.session().await.unwrap();
    let error = flag::flag(&session, &args("node-b")).await.unwrap_err();
    assert!(matches!(error, Error::Unwise { .. }) && error.exit() == Exit::Refused, "{error}");
    let later = Some("2026-12-02T08:00:01Z".parse().unwrap());
    let long = flag::flag(&session, &FlagNode { until: later, force: true, ..args("node-b") }).await;
    assert!(matches!(long, Err(Error::TooLong)), "{long:?}");
    let past = flag::flag(&session, &FlagNode { until: Some(now()), ..args("node-b") }).await;
    assert!(matches!(past, Err(Error::Past { .. })), "{past:?}");
    let unknown = flag::flag(&session, &FlagNode { force: true, ..args("node-x") }).await.unwrap_err();
    assert_eq!(unknown.exit(), Exit::Unknown);
    assert_eq!(server.changes(), [""; 0]);
    flag::flag(&session, &FlagNode { force: true, ..args("node-b") }).await.unwrap();
    assert_eq!(server.last(Method::POST).2["spec"]["force"], true);
    let day = Some("2026-12-02T08:00:00Z".parse().unwrap());
    flag::flag(&session, &FlagNode { until: day, force: true, ..args("node-b") }).await.unwrap();
    flag::flag(&session, &FlagNode { until: later, long: true, force: true, ..args("node-b") })
        .await
        .unwrap();
}

#[tokio::test]
async fn a_node_without_member_is_flagged_by_the_uid_of_the_node() {
    let server = Server::new();
    let node =
        json!({ "apiVersion": "v1", "kind": "Node", "metadata": { "name": "node-x", "uid": "uid-x" } });
    server.answer(Method::GET, "/api/v1/nodes/node-x", 200, node);
    let session = server.session().await.unwrap();
    let report = flag::flag(&session, &args("node-x")).await.unwrap();
    assert_eq!(report.flag.uid, "uid-x");
    assert!(report.warnings[0].contains("no NodeMember"), "{report:?}");
}

#[tokio::test]
async fn who_may_not_read_a_node_without_member_is_told_so() {
    let server = Server::new();
    let refused = json!({
        "apiVersion": "v1", "kind": "Status", "status": "Failure", "code": 403, "reason": "Forbidden",
        "message": "nodes is forbidden",
    });
    server.answer(Method::GET, "/api/v1/nodes/node-x", 403, refused);
    let session = server.session().await.unwrap();
    let error = flag::flag(&session, &args("node-x")).await.unwrap_err();
    assert!(error.to_string().contains("you may not get nodes"), "{error}");
    assert!(error.to_string().contains("nodefence-preflight"), "{error}");
}

#[tokio::test(start_paused = true)]
async fn a_flag_is_waited_for_until_it_is_judged() {
    let server = Server::new();
    let session = server.session().await.unwrap();
    let one = format!("{FLAGS}/node-b-7xk2p");
    let mut judged = stored("node-b-7xk2p", "node-b", "alice");
    server.answer(Method::GET, &one, 200, judged.clone());
    let waits = FlagNode { wait: true, ..args("node-b") };
    let report = flag::flag(&session, &waits).await.unwrap();
    assert!(report.warnings[0].contains("within 10 s"), "{report:?}");
    judged["status"] = json!({ "state": "Accepted", "message": "cut", "observedGeneration": 1 });
    server.then(Method::GET, &one, 200, judged);
    let report = flag::flag(&session, &waits).await.unwrap();
    assert_eq!((report.flag.state, report.warnings.len()), (FlagState::Accepted, 0));
}

#[tokio::test]
async fn unflag_deletes_what_is_meant() {
    let server = Server::new();
    let flags = json!([
        stored("a-1", "node-a", "bob"),
        stored("b-1", "node-b", "alice"),
        stored("b-2", "node-b", "bob")
    ]);
    server.flags(flags);
    let session = server.session().await.unwrap();
    let meant = |node: Option<&str>, name: Option<&str>, all| UnflagNode {
        node: node.map(str::to_owned),
        name: name.map(str::to_owned),
        all,
    };
    for (which, deleted) in [
        (meant(Some("node-b"), None, false), vec!["b-1", "b-2"]),
        (meant(None, Some("a-1"), false), vec!["a-1"]),
        (meant(None, None, true), vec!["a-1", "b-1", "b-2"]),
        (meant(Some("node-c"), None, false), vec![]),
    ] {
        server.asked.lock().unwrap().clear();
        let report = flag::unflag(&session, &which).await.unwrap();
        let names: Vec<&str> = report.items.iter().map(|row| row.name.as_str()).collect();
        assert_eq!((names, report.not_flagged.is_some()), (deleted.clone(), deleted.is_empty()));
        let wanted: Vec<String> = deleted.iter().map(|name| format!("DELETE {FLAGS}/{name}")).collect();
        assert_eq!(server.changes(), wanted);
    }
    for which in [meant(Some("node-x"), None, false), meant(None, Some("x-1"), false)] {
        assert_eq!(flag::unflag(&session, &which).await.unwrap_err().exit(), Exit::Unknown);
    }
}

#[tokio::test]
async fn a_forbidden_says_who_may() {
    let server = Server::new();
    let session = server.session().await.unwrap();
    server.answer(Method::POST, FLAGS, 403, failure(403, "Forbidden", "User \"alice\" cannot create"));
    let error = flag::flag(&session, &args("node-b")).await.unwrap_err();
    let wanted = "you may not create nodeflags.nodefence.io: User \"alice\" cannot create (expected: the ClusterRole nodefence-operate)";
    assert_eq!((error.to_string().as_str(), error.exit()), (wanted, Exit::Refused));
    server.answer(Method::GET, FLAGS, 404, json!({ "code": 404, "message": "the server could not find it" }));
    let error = flag::flags(&session).await.unwrap_err();
    assert!(matches!(error, Error::NoKind { .. }), "{error:?}");
}

#[tokio::test]
async fn all_pages_of_a_list_are_read() {
    let server = Server::new();
    let session = server.session().await.unwrap();
    let mut first = list("NodeFlag", json!([stored("a-1", "node-a", "bob")]));
    first["metadata"]["continue"] = json!("more");
    server.answer(Method::GET, FLAGS, 200, first);
    server.then(Method::GET, FLAGS, 200, list("NodeFlag", json!([stored("b-1", "node-b", "bob")])));
    assert_eq!(flag::flags(&session).await.unwrap().items.len(), 2);
    let asked = server.asked.lock().unwrap();
    assert!(asked.iter().any(|(_, path, _)| path.contains("continue=more")), "{asked:?}");
}

#[tokio::test]
async fn agents_are_asked_through_the_proxy_and_one_may_be_silent() {
    let server = Server::new();
    let pod = |name: &str, node: &str| json!({ "metadata": { "name": name }, "spec": { "containers": [], "nodeName": node } });
    let mut other_port = pod("agent-c", "node-c");
    other_port["metadata"]["annotations"] = json!({ "nodefence.io/http-port": "9000" });
    let pods = json!({
        "apiVersion": "v1", "kind": "PodList", "metadata": {},
        "items": [pod("agent-a", "node-a"), pod("agent-b", "node-b"), other_port],
    });
    server.answer(Method::GET, PODS, 200, pods);
    let status = json!({ "version": "0.1.0", "mode": "enforce", "state": "ok" });
    server.answer(Method::GET, &format!("{PODS}/http:agent-a:9478/proxy/v1/status"), 200, status.clone());
    server.answer(Method::GET, &format!("{PODS}/http:agent-c:9000/proxy/v1/status"), 200, status);
    let unreachable = failure(503, "ServiceUnavailable", "no route to host");
    server.answer(Method::GET, &format!("{PODS}/http:agent-b:9478/proxy/v1/status"), 503, unreachable);
    let session = server.session().await.unwrap();
    let all = ListNodes { names: Vec::new(), flagged: false };
    let found = overview::nodes(&session, "nodefence", &all).await.unwrap();
    let agents: Vec<_> = found.items.iter().map(|row| row.agent.as_ref().unwrap()).collect();
    assert_eq!(agents[0].health.as_deref(), Some("ok"));
    assert_eq!(agents[1].silent.as_deref(), Some("no route to host"));
    assert_eq!(agents[2].version.as_deref(), Some("0.1.0"));
    let asked = server.asked.lock().unwrap().iter().any(|(_, path, _)| path.contains("component%3Dagent"));
    assert!(asked, "the pods are not chosen by label");

    // The flagged node's own agent is silent. Whether the others cut is told all the same.
    server.flags(json!([stored("b-1", "node-b", "bob")]));
    let flagged = ListNodes { names: Vec::new(), flagged: true };
    let found = overview::nodes(&session, "nodefence", &flagged).await.unwrap();
    let table = node_rows::nodes(&found, Format::Table);
    let rows: Vec<&str> = table.lines().collect();
    assert!(rows.len() == 3 && rows[1].starts_with("node-b") && rows[1].contains("no answer"), "{table}");
    assert_eq!(rows[2], "2 of 3 agents answer: 2 enforce; no answer from node-b");
    server.flags(json!([]));

    let problems = overview::status(&session, "nodefence").await.unwrap().problems;
    assert_eq!(problems, ["1 node with an agent that does not answer: node-b"]);
    // A new node gets no pod where the DaemonSet leaves it out.
    server.answer(
        Method::GET,
        MEMBERS,
        200,
        list(
            "NodeMember",
            json!(["node-a", "node-b", "node-c", "node-d"].map(|name| member(name, None, None))),
        ),
    );
    let counts = |wanted: u32| {
        let status = json!({ "desiredNumberScheduled": wanted, "currentNumberScheduled": 3, "numberMisscheduled": 0, "numberReady": 3 });
        let set = json!({ "metadata": { "name": "nodefence-agent" }, "status": status });
        json!({ "apiVersion": "apps/v1", "kind": "DaemonSetList", "metadata": {}, "items": [set] })
    };
    let sets = "/apis/apps/v1/namespaces/nodefence/daemonsets";
    for (wanted, problems) in [(3, 1), (4, 2)] {
        server.answer(Method::GET, sets, 200, counts(wanted));
        assert_eq!(
            overview::status(&session, "nodefence").await.unwrap().problems.len(),
            problems,
            "{wanted}"
        );
    }
    let nobody = json!({ "apiVersion": "v1", "kind": "PodList", "metadata": {}, "items": [] });
    server.answer(Method::GET, PODS, 200, nobody);
    let found = overview::nodes(&session, "nodefence", &all).await.unwrap();
    let notes = node_rows::notes(&found).join("\n");
    assert!(notes.contains("no agent's pod in namespace nodefence"), "{notes}");
    server.answer(Method::GET, PODS, 403, failure(403, "Forbidden", "no"));
    let found = overview::nodes(&session, "nodefence", &all).await.unwrap();
    assert_eq!(found.items.len(), 4);
    assert!(found.agents_unknown.unwrap().contains("nodefence-view-agents"));
}

#[tokio::test]
async fn settings_are_created_or_changed() {
    let server = Server::new();
    let session = server.session().await.unwrap();
    server.answer(Method::PATCH, SETTINGS, 200, json!(settings()));
    verbs::mode(&session, SettingsMode::Off).await.unwrap();
    let (_, _, sent) = server.last(Method::PATCH);
    assert_eq!(sent, json!({ "spec": { "mode": "off" } }));

    let missing = json!({ "kind": "Status", "code": 404, "reason": "NotFound", "message": "m", "details": { "name": "default" } });
    server.answer(Method::GET, SETTINGS, 404, missing);
    let collection = SETTINGS.trim_end_matches("/default");
    server.answer(Method::POST, collection, 201, json!(settings()));
    verbs::mode(&session, SettingsMode::Enforce).await.unwrap();
    let (_, _, sent) = server.last(Method::POST);
    assert_eq!((&sent["metadata"]["name"], &sent["spec"]["mode"]), (&json!("default"), &json!("enforce")));
}

#[tokio::test]
async fn a_pause_is_lost_to_no_other_change() {
    let server = Server::new();
    let session = server.session().await.unwrap();
    let version = |version: &str| {
        let mut found = json!(settings());
        found["metadata"]["resourceVersion"] = json!(version);
        found["spec"]["pauses"] = json!([super::samples::pause("bob")]);
        found
    };
    server.answer(Method::GET, SETTINGS, 200, version("1"));
    server.then(Method::GET, SETTINGS, 200, version("2"));
    server.answer(Method::PATCH, SETTINGS, 409, failure(409, "Conflict", "changed"));
    server.then(Method::PATCH, SETTINGS, 200, version("3"));
    let pause = PauseAgents { lasts: std::time::Duration::from_secs(60), reason: "test".to_owned() };
    verbs::pause(&session, &pause).await.unwrap();
    let (_, _, sent) = server.last(Method::PATCH);
    assert_eq!(sent["metadata"]["resourceVersion"], "2");
    let names: Vec<&Value> =
        sent["spec"]["pauses"].as_array().unwrap().iter().map(|pause| &pause["by"]).collect();
    assert_eq!(names, ["bob", "alice"]);

    // Bob's pause stays unless all are to end.
    server.asked.lock().unwrap().clear();
    let report = verbs::resume(&session, false).await.unwrap();
    assert!(report.ended.is_empty() && server.changes().is_empty());
    let report = verbs::resume(&session, true).await.unwrap();
    assert_eq!(report.ended.len(), 1);
    assert_eq!(server.last(Method::PATCH).2["spec"]["pauses"], json!([]));
    server.answer(Method::PATCH, SETTINGS, 409, failure(409, "Conflict", "changed"));
    assert!(matches!(verbs::resume(&session, true).await, Err(Error::Busy)));
}

/// A flag that the API server took, and that has an end which cannot be read.
fn unreadable(name: &str, node: &str) -> Value {
    let mut flag = stored(name, node, "bob");
    flag["spec"]["until"] = json!("9999-12-31T23:59:59Z");
    flag
}

#[tokio::test]
async fn one_flag_that_cannot_be_read_is_named_and_the_others_are_read() {
    let server = Server::new();
    server.flags(json!([stored("a-1", "node-a", "bob"), unreadable("b-1", "node-b")]));
    let session = server.session().await.unwrap();
    let list = flag::flags(&session).await.unwrap();
    assert_eq!(list.items.iter().map(|row| row.name.as_str()).collect::<Vec<_>>(), ["a-1"]);
    let wanted = "NodeFlag/b-1 cannot be read, and agents leave it out: until: `9999-12-31T23:59:59Z`: expected a time";
    assert!(list.unread[0].starts_with(wanted), "{list:?}");
    let status = overview::status(&session, "nodefence").await.unwrap();
    assert!(status.problems[0].starts_with(wanted), "{status:?}");
    let nodes = ListNodes { names: Vec::new(), flagged: false };
    assert!(overview::nodes(&session, "nodefence", &nodes).await.unwrap().unread[0].starts_with(wanted));
    let flagged = flag::flag(&session, &FlagNode { force: true, ..args("node-c") }).await.unwrap();
    assert!(flagged.warnings.iter().any(|warning| warning.starts_with(wanted)), "{flagged:?}");
    // It can be deleted, by the node too. The API server answers with the object itself, where it has a finalizer.
    server.answer(Method::DELETE, &format!("{FLAGS}/b-1"), 200, unreadable("b-1", "node-b"));
    for (node, name) in [(Some("node-b"), None), (None, Some("b-1"))] {
        let which = UnflagNode { node: node.map(str::to_owned), name: name.map(str::to_owned), all: false };
        let report = flag::unflag(&session, &which).await.unwrap();
        assert_eq!((report.unread, report.items.len()), (vec!["b-1".to_owned()], 0));
    }
}

#[tokio::test]
async fn settings_that_cannot_be_read_take_a_mode_and_are_named() {
    let server = Server::new();
    let mut bad = json!(settings());
    bad["spec"]["pauses"] = json!([{ "by": "bob", "until": "9999-12-31T23:59:59Z" }]);
    server.answer(Method::GET, SETTINGS, 200, bad.clone());
    server.answer(Method::PATCH, SETTINGS, 200, bad);
    let session = server.session().await.unwrap();
    let report = verbs::mode(&session, SettingsMode::Off).await.unwrap();
    let (_, _, sent) = server.last(Method::PATCH);
    assert_eq!(sent, json!({ "spec": { "mode": "off" } }));
    let wanted = "NodefenceSettings/default cannot be read, and each agent goes by the last that it could read: until: `9999";
    assert!(report.settings.is_none() && report.agents.starts_with(wanted), "{report:?}");
    let status = overview::status(&session, "nodefence").await.unwrap();
    assert!(status.problems[0].starts_with(wanted), "{status:?}");
    assert!(!status.problems.iter().any(|problem| problem.contains("there is no Nodef")), "{status:?}");
    let pause = PauseAgents { lasts: std::time::Duration::from_secs(60), reason: String::new() };
    let error = verbs::pause(&session, &pause).await.unwrap_err();
    assert!(matches!(error, Error::UnreadSettings(_)), "{error}");
    assert!(error.to_string().contains("until: `9999-12-31T23:59:59Z`"), "{error}");
}

#[tokio::test]
async fn a_flag_without_force_does_not_replace_one_with_force() {
    let server = Server::new();
    let mut forced = stored("node-b-old", "node-b", "alice");
    forced["spec"]["force"] = json!(true);
    server.flags(json!([forced.clone()]));
    let session = server.session().await.unwrap();
    let error = flag::flag(&session, &args("node-b")).await.unwrap_err();
    assert!(matches!(&error, Error::Forced { flag, .. } if flag == "node-b-old"), "{error}");
    assert_eq!((error.exit(), server.changes().len()), (Exit::Refused, 0));
    let report = flag::flag(&session, &FlagNode { force: true, ..args("node-b") }).await.unwrap();
    assert_eq!(report.replaced, ["node-b-old"]);
    // One that is over is no reason.
    forced["spec"]["until"] = json!(now());
    server.flags(json!([forced]));
    let report = flag::flag(&session, &args("node-b")).await.unwrap();
    assert_eq!(report.replaced, ["node-b-old"]);
}
