//! The rights that the chart gives at the API server: each is used by somebody, nobody lacks one, and a stolen agent's token changes nothing. The API server's
//! audit log says who asked for what. `chart::rights` has the rights of the chart's hooks.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::Ipv4Addr,
    os::unix::process::CommandExt as _,
    process::Stdio,
    sync::Arc,
    time::Duration,
};

use anyhow::{Context as _, Result, ensure};
use nix::sys::signal::Signal;
use nodefence_tests::{
    Netns,
    audit::BOTH,
    client::wait_until,
    kube::{
        Alone, ControlPlane, Controller,
        control::PORT,
        manifests::MANIFESTS,
        members::MEMBERS,
        objects,
        orders::{FLAGS, SETTINGS},
        rights::{AGENT, Asked, CONTROLLER, PEOPLE, THIEF},
    },
    nodefence_command,
};
use serde::Deserialize;
use serde_json::{Value, json};

/// A generous limit, since the machine may be busy.
const LIMIT: Duration = Duration::from_secs(60);
const NODES: &str = "/api/v1/nodes";
const PAGE: &str = include_str!("../../docs/kubernetes.md");

/// Roles of people, who read our kinds by plain kubectl too (`get NAME`, `get --watch`, `describe`).
const READERS: [&str; 2] = ["nodefence-view", "nodefence-operate"];
/// What these people read by plain kubectl alone.
const PLAIN: [&str; 6] = [
    "get nodeflags",
    "get nodemembers",
    "list nodefencesettings",
    "watch nodefencesettings",
    "watch nodeflags",
    "watch nodemembers",
];

/// A role of the manifests.
#[derive(Debug, Deserialize)]
struct Role {
    kind: String,
    metadata: Name,
    #[serde(default)]
    rules: Vec<Rule>,
}

#[derive(Debug, Deserialize)]
struct Name {
    name: String,
}

#[derive(Debug, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Rule {
    api_groups: Vec<String>,
    resources: Vec<String>,
    #[serde(default)]
    resource_names: Vec<String>,
    verbs: Vec<String>,
}

/// All roles of these YAML documents.
fn roles<'a>(documents: impl Iterator<Item = &'a str>) -> Result<Vec<Role>> {
    let is_role = |text: &&str| text.lines().any(|line| ["kind: ClusterRole", "kind: Role"].contains(&line));
    documents.filter(is_role).map(|text| serde_saphyr::from_str(text).context(text.to_owned())).collect()
}

fn roles_of_the_manifests() -> Result<Vec<Role>> {
    let roles = roles(MANIFESTS.split("\n---\n"))?;
    ensure!(roles.len() == 7, "{roles:#?}");
    Ok(roles)
}

/// A right, in words.
fn word(verb: &str, group: &str, resource: &str) -> String {
    format!("{verb} {resource}.{group}")
}

/// Rights of a role that none of these requests used.
fn unused(role: &Role, asked: &BTreeSet<&Asked>) -> Vec<String> {
    let mut unused = Vec::new();
    for rule in &role.rules {
        for group in &rule.api_groups {
            for resource in &rule.resources {
                for verb in &rule.verbs {
                    let uses = |asked: &&&Asked| {
                        let named =
                            rule.resource_names.is_empty() || rule.resource_names.contains(&asked.name);
                        asked.code != 403
                            && named
                            && [&asked.verb, &asked.group, &asked.resource] == [verb, group, resource]
                    };
                    if !asked.iter().any(|asked| uses(&asked)) {
                        unused.push(word(verb, group, resource));
                    }
                }
            }
        }
    }
    unused
}

/// Runs `kubectl nodefence` as a person, who must be allowed to do it.
fn kubectl(control: &ControlPlane, user: &str, words: &[&str]) -> Result<()> {
    let mut command = nodefence_command()?;
    command.arg0("kubectl-nodefence").args(words).env("KUBECONFIG", control.kubeconfig_as(user)?);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    // The wait is outside of the namespace's thread, since others need that thread meanwhile.
    let child = control.ns.run(move || command.spawn()).context("start kubectl nodefence")?;
    let output = child.wait_with_output()?;
    let told = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success() && !told.contains("you may not"), "{user}: {words:?}: {output:?}");
    Ok(())
}

/// An agent and a controller do all that they do, beside a server with these options. `meanwhile` comes before the controller.
fn live(options: &[&str], meanwhile: impl FnOnce(&ControlPlane) -> Result<()>) -> Result<BTreeSet<Asked>> {
    let (mut alone, ()) =
        Alone::behind(options, 1, |_| Ok((format!("https://{}:{PORT}", Ipv4Addr::LOCALHOST), ())))?;
    alone.agent.ready()?;
    let Alone { agent, control, cluster } = &alone;
    meanwhile(control)?;
    // The members of the test have other UIDs than the Nodes.
    control.nodes(cluster)?;
    let uid = |path: &str, field: &str| -> Option<String> {
        let object = control.api.get(path).ok()?;
        object[field]["uid"].as_str().map(str::to_owned)
    };
    let mut controller = Controller::start(control, "first")?;
    controller.wait_for("controller-leads")?;
    for node in [&cluster.a, &cluster.b, &cluster.c] {
        let is_mended = || {
            let of_node = uid(&format!("{NODES}/{}", node.name), "metadata");
            of_node.is_some() && uid(&format!("{MEMBERS}/{}", node.name), "spec") == of_node
        };
        wait_until("the member is its Node's", LIMIT, is_mended).with_context(|| controller.log())?;
    }
    control.api.create(NODES, &objects::node("d", &[[10, 2, 0, 14].into()], None))?;
    let member = format!("{MEMBERS}/d");
    wait_until("a member is created", LIMIT, || control.api.get(&member).is_ok())
        .with_context(|| controller.log())?;
    control.api.delete(&format!("{NODES}/d"))?;
    wait_until("a member is deleted", LIMIT, || control.api.get(&member).is_err())
        .with_context(|| controller.log())?;
    let settings = format!("{SETTINGS}/default");
    // It may be there already: `meanwhile` may have made it.
    let _none = control.api.delete(&settings);
    wait_until("the settings are made", LIMIT, || control.api.get(&settings).is_ok())
        .with_context(|| controller.log())?;
    control.api.merge(&settings, &json!({"spec": {"mode": "enforce"}}))?;
    let uid = uid(&format!("{MEMBERS}/{}", cluster.b.name), "spec").context("no uid")?;
    for (name, until) in [("holds", "2099-01-01T00:00:00Z"), ("old", "2020-01-01T00:00:00Z")] {
        let flag = json!({
            "apiVersion": "nodefence.io/v1alpha1", "kind": "NodeFlag", "metadata": {"name": name},
            "spec": {"node": cluster.b.name, "uid": uid, "until": until, "long": true},
        });
        control.object(FLAGS, &flag)?;
    }
    let flag = |name: &str| control.api.get(&format!("{FLAGS}/{name}"));
    wait_until("the flag has a status", LIMIT, || flag("holds").is_ok_and(|flag| flag["status"].is_object()))
        .with_context(|| controller.log())?;
    wait_until("the old flag is deleted", LIMIT, || flag("old").is_err())
        .with_context(|| controller.log())?;
    let cuts = || agent.node(cluster.b.name).is_ok_and(|node| node["action"] == "refuse");
    wait_until("the agent cuts", LIMIT, cuts).with_context(|| agent.log())?;
    controller.end(Signal::SIGTERM)?;
    control.nobody_lacked_a_right()?;
    control.asked()
}

/// People do all that `kubectl nodefence` can do. Each has the role that is for it.
fn people(control: &ControlPlane) -> Result<()> {
    for (user, role) in PEOPLE {
        let namespace = (user == "watcher").then_some("nodefence");
        control.bind(user, role, namespace)?;
    }
    control.bind("watcher", "nodefence-view", None)?;
    control.holds("viewer", "list", "nodefence.io", "nodeflags")?;
    control.holds("operator", "create", "nodefence.io", "nodeflags")?;
    control.holds("installer", "list", "", "nodes")?;
    control.holds("watcher", "list", "", "pods")?;
    control.holds("watcher", "list", "nodefence.io", "nodeflags")?;
    for words in [&["flags"][..], &["settings"]] {
        kubectl(control, "viewer", words)?;
    }
    for words in [
        &["mode", "enforce"][..],
        &["flag", "node-b", "--reason", "test"],
        &["flag", "node-b", "--reason", "again"],
        &["unflag", "node-b"],
        &["pause", "--reason", "test"],
        &["resume"],
        &["mode", "observe"],
    ] {
        kubectl(control, "operator", words)?;
    }
    // Nobody answers at the pod's address, and the API server says so.
    let labels = json!({"app.kubernetes.io/name": "nodefence", "app.kubernetes.io/component": "agent"});
    let pod = json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": "agent-b", "labels": labels},
        "spec": {"nodeName": "node-b", "hostNetwork": true, "containers": [{"name": "agent", "image": "none"}]},
    });
    control.api.create("/api/v1/namespaces/nodefence/pods", &pod)?;
    let ip = json!({"podIP": "10.2.0.12", "podIPs": [{"ip": "10.2.0.12"}], "phase": "Running"});
    let status = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "agent-b"}, "status": ip});
    control.api.apply("/api/v1/namespaces/nodefence/pods/agent-b/status", &status)?;
    kubectl(control, "watcher", &["nodes"])?;
    kubectl(control, "installer", &["preflight"])?;
    // A Node that never has a NodeMember: its UID is that of the Node itself.
    let labels = json!({"kubernetes.io/os": "windows"});
    let windows =
        json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "node-w", "labels": labels}});
    control.api.create("/api/v1/nodes", &windows)?;
    control.bind("installer", "nodefence-operate", None)?;
    control.holds("installer", "create", "nodefence.io", "nodeflags")?;
    kubectl(control, "installer", &["flag", "node-w", "--reason", "test"])
}

/// Who uses a role.
fn user_of(role: &Role) -> Option<&str> {
    match role.metadata.name.as_str() {
        "nodefence-agent" => Some(AGENT),
        "nodefence-controller" => Some(CONTROLLER),
        name => PEOPLE.iter().find(|(_, role)| *role == name).map(|(user, _)| *user),
    }
}

#[test]
fn each_right_is_used() -> Result<()> {
    let mut asked = live(&[], people)?;
    // Where the server streams no lists, they are asked for page by page.
    asked.extend(live(&["--feature-gates=WatchList=false"], |_| Ok(()))?);
    let mut of: BTreeMap<&str, BTreeSet<&Asked>> = BTreeMap::new();
    for one in &asked {
        of.entry(&one.user).or_default().insert(one);
    }
    let mut unused_rights = BTreeSet::new();
    for role in roles_of_the_manifests()? {
        let user = user_of(&role).with_context(|| format!("nobody has the role {role:?}"))?;
        let requests = of.get(user).with_context(|| format!("{user} has asked for nothing"))?;
        for right in unused(&role, requests) {
            unused_rights.insert((role.metadata.name.clone(), right));
        }
    }
    let plain = |role: &'static str| PLAIN.map(|right| (role.to_owned(), format!("{right}.nodefence.io")));
    let known: BTreeSet<_> = READERS.into_iter().flat_map(plain).collect();
    ensure!(unused_rights == known, "not used: {unused_rights:#?}\nknown: {known:#?}");
    Ok(())
}

/// The page has the roles of the manifests for whoever installs without the chart.
#[test]
fn the_page_has_the_same_rights() -> Result<()> {
    let blocks = PAGE.split("```yaml\n").skip(1).filter_map(|block| block.split("```").next());
    let documents: Vec<&str> = blocks.flat_map(|block| block.split("---\n")).collect();
    let mut manifests = roles_of_the_manifests()?;
    let page = roles(documents.into_iter())?;
    ensure!(page.len() == 3, "{page:#?}");
    for role in page {
        let same = |other: &Role| other.kind == role.kind && other.metadata.name == role.metadata.name;
        let other = manifests.iter_mut().find(|other| same(other)).context(role.metadata.name.clone())?;
        let [page, manifest] = [role.rules, std::mem::take(&mut other.rules)].map(BTreeSet::from_iter);
        ensure!(
            page == manifest,
            "{}: {page:#?} on the page, {manifest:#?} in the manifests",
            role.metadata.name
        );
    }
    Ok(())
}

/// The path of a collection in the agents' namespace, or of all the cluster.
fn collection(path: &str, resource: &Value) -> Result<(String, String)> {
    let name = resource["name"].as_str().context("no name")?;
    let (plural, subresource) = name.split_once('/').map_or((name, None), |(name, sub)| (name, Some(sub)));
    let namespace = if resource["namespaced"] == true { "/namespaces/nodefence" } else { "" };
    let collection = format!("{path}{namespace}/{plural}");
    let object = match subresource {
        Some(subresource) => format!("{collection}/x/{subresource}"),
        None => format!("{collection}/x"),
    };
    Ok((collection, object))
}

/// Reviews that each account may ask for about itself. They are answered, and nothing is stored.
const ABOUT_ITSELF: [&str; 3] = ["selfsubjectaccessreviews", "selfsubjectrulesreviews", "selfsubjectreviews"];

/// Whoever has the token of an agent tries each verb that changes something on each kind.
#[test]
fn a_stolen_agent_s_token_changes_nothing() -> Result<()> {
    let control = ControlPlane::start(&Arc::new(Netns::new("thief")?))?;
    control.crds()?;
    control.member(
        "node-a",
        &BOTH.map(|family| match family {
            nodefence_tests::Family::V4 => [10, 2, 0, 11].into(),
            nodefence_tests::Family::V6 => [0xfd00, 0, 0, 0, 0, 0, 0, 11].into(),
        }),
    )?;
    control.rights()?;
    control.bind(THIEF, "nodefence-agent", None)?;
    control.holds(THIEF, "list", "nodefence.io", "nodemembers")?;
    let thief = control.api_as(THIEF)?;
    ensure!(thief.status("GET", MEMBERS, None)? == 200, "the token reads nothing");
    let mut versions = vec!["/api/v1".to_owned()];
    for group in control.api.get("/apis")?["groups"].as_array().context("no groups")? {
        for version in group["versions"].as_array().context("no versions")? {
            versions.push(format!("/apis/{}", version["groupVersion"].as_str().context("no version")?));
        }
    }
    let object = json!({"metadata": {"name": "x"}});
    let json = Some(("application/json", &object));
    let patch = Some(("application/merge-patch+json", &object));
    let mut tried = 0;
    let mut wrong = Vec::new();
    for version in &versions {
        for resource in control.api.get(version)?["resources"].as_array().context("no resources")? {
            let (collection, named) = collection(version, resource)?;
            let about_itself = ABOUT_ITSELF.iter().any(|name| resource["name"] == *name);
            let is_subresource = named.matches('/').count() > collection.matches('/').count() + 1;
            let creates = if is_subresource { &named } else { &collection };
            for (method, path, body) in [
                ("POST", creates, json),
                ("PUT", &named, json),
                ("PATCH", &named, patch),
                ("DELETE", &named, None),
                ("DELETE", &collection, None),
            ] {
                tried += 1;
                let status = thief.status(method, path, body)?;
                if status != 403 && !(about_itself && method == "POST") {
                    wrong.push(format!("{method} {path}: {status}"));
                }
            }
        }
    }
    ensure!(wrong.is_empty(), "not refused: {wrong:#?}");
    println!("{tried} requests were refused");
    ensure!(tried > 400, "only {tried} requests");
    Ok(())
}
