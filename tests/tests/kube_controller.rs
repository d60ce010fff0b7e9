//! `nodefence controller` beside a real API server, where no other controller runs.

use std::{sync::Arc, time::Duration};

use anyhow::{Context as _, Result, ensure};
use nix::sys::signal::Signal;
use nodefence_tests::{
    Netns, Node,
    audit::BOTH,
    client::wait_until,
    kube::{
        Alone, ControlPlane, Controller,
        alone::{backends_on, lists},
        members::MEMBERS,
        objects,
    },
    topology::Service,
};
use serde_json::{Value, json};

/// A generous limit, since the machine may be busy.
const LIMIT: Duration = Duration::from_secs(120);
/// How long another controller may take to work: the Lease has 15 s, a look at it comes each 4 s, and the machine may be busy.
const TAKEN_OVER: Duration = Duration::from_secs(40);
const NODES: &str = "/api/v1/nodes";
const FLAGS: &str = "/apis/nodefence.io/v1alpha1/nodeflags";
const SETTINGS: &str = "/apis/nodefence.io/v1alpha1/nodefencesettings/default";

/// An API server, and a controller that leads.
fn begin() -> Result<(ControlPlane, Controller)> {
    let ns = Arc::new(Netns::new("control")?);
    let control = ControlPlane::start(&ns)?;
    control.crds()?;
    let controller = lead(&control)?;
    Ok((control, controller))
}

fn lead(control: &ControlPlane) -> Result<Controller> {
    control.rights()?;
    let mut controller = Controller::start(control, "first")?;
    controller.wait_for("controller-leads")?;
    Ok(controller)
}

/// Waits until a member has this content, or is gone (null).
fn member_is(control: &ControlPlane, controller: &Controller, name: &str, wanted: &Value) -> Result<()> {
    let found = || match control.api.get(MEMBERS) {
        Ok(list) => {
            let items = list["items"].as_array().cloned().unwrap_or_default();
            items.into_iter().find(|item| item["metadata"]["name"] == name).unwrap_or(Value::Null)
        }
        Err(error) => json!(error.to_string()),
    };
    let is_so = |found: &Value| match wanted.is_null() {
        true => found.is_null(),
        false => {
            let owner = json!([{
                "apiVersion": "v1", "kind": "Node", "name": name, "uid": wanted["uid"],
            }]);
            found["spec"] == *wanted && found["metadata"]["ownerReferences"] == owner
        }
    };
    wait_until(&format!("the member {name}"), LIMIT, || is_so(&found()))
        .map(drop)
        .with_context(|| format!("wanted {wanted}, found {}\n{}", found(), controller.log()))
}

/// Waits until the status of a flag has this state. Returns its message.
fn flag_is(control: &ControlPlane, controller: &Controller, name: &str, state: &str) -> Result<String> {
    let found = || control.api.get(&format!("{FLAGS}/{name}"));
    wait_until(&format!("the flag {name} is {state}"), LIMIT, || {
        found().is_ok_and(|flag| {
            flag["status"]["state"] == state
                && flag["status"]["observedGeneration"] == flag["metadata"]["generation"]
        })
    })
    .with_context(|| format!("{:?}\n{}", found(), controller.log()))?;
    Ok(found()?["status"]["message"].as_str().unwrap_or_default().to_owned())
}

fn uid(control: &ControlPlane, node: &str) -> Result<String> {
    let node = control.api.get(&format!("{NODES}/{node}"))?;
    Ok(node["metadata"]["uid"].as_str().context("no uid")?.to_owned())
}

fn set_addresses(control: &ControlPlane, node: &str, addresses: &[&str]) -> Result<()> {
    let rows: Vec<Value> =
        addresses.iter().map(|address| json!({"type": "InternalIP", "address": address})).collect();
    control.api.merge(&format!("{NODES}/{node}/status"), &json!({"status": {"addresses": rows}}))
}

#[test]
fn an_agent_works_with_members_of_the_controller() -> Result<()> {
    let mut leading = None;
    let alone = Alone::with(|control, cluster| {
        let controller = lead(control)?;
        control.nodes(cluster)?;
        for node in [&cluster.a, &cluster.b, &cluster.c] {
            let addresses = BOTH.map(|family| node.address(family).to_string());
            let wanted = json!({"uid": uid(control, node.name)?, "addresses": addresses});
            member_is(control, &controller, node.name, &wanted)?;
        }
        leading = Some(controller);
        Ok(())
    })?;
    let Alone { agent, control, cluster } = &alone;
    let controller = leading.context("no controller")?;
    let all = |nodes: &[&Node]| lists(agent, &backends_on(nodes, &[Service::Web, Service::Host]));
    all(&[&cluster.b, &cluster.c])?;
    control.api.delete(&format!("{NODES}/{}", cluster.b.name))?;
    member_is(control, &controller, cluster.b.name, &Value::Null)?;
    all(&[&cluster.c])?;
    controller.end(Signal::SIGTERM)
}

#[test]
fn members_follow_their_nodes() -> Result<()> {
    let (control, controller) = begin()?;
    let control = &control;
    let is = |name: &str, wanted: &Value| member_is(control, &controller, name, wanted);
    // A member that a person made, and one whose Node went while no controller ran.
    let labels = json!({"kubernetes.io/os": "linux", "example.com/pool": "front"});
    for name in ["d", "gone"] {
        control.member(name, &[[10, 2, 0, 99].into()])?;
    }
    let mut node = objects::node("d", &[[10, 2, 0, 14].into()], Some("z1"));
    for (label, value) in labels.as_object().context("no labels")? {
        node["metadata"]["labels"][label] = value.clone();
    }
    control.api.create(NODES, &node)?;
    let mut wanted =
        json!({"uid": uid(control, "d")?, "addresses": ["10.2.0.14"], "zone": "z1", "pool": "front"});
    is("d", &wanted).context("a member that a person made is taken over")?;
    is("gone", &Value::Null).context("a member without a Node is deleted")?;

    set_addresses(control, "d", &["10.2.0.15", "fd00::15"])?;
    wanted["addresses"] = json!(["10.2.0.15", "fd00::15"]);
    is("d", &wanted).context("another address")?;
    set_addresses(control, "d", &[])?;
    control.api.merge(
        &format!("{NODES}/d"),
        &json!({"metadata": {"labels": {"topology.kubernetes.io/zone": "z2"}}}),
    )?;
    wanted["zone"] = json!("z2");
    is("d", &wanted).context("the last addresses stay")?;
    let fields = json!({"spec": {"addresses": ["10.2.0.99"], "pool": null}});
    control.api.merge(&format!("{MEMBERS}/d"), &fields)?;
    // The Node tells no addresses, so a person's change of them stays until it does.
    set_addresses(control, "d", &["10.2.0.16"])?;
    wanted["addresses"] = json!(["10.2.0.16"]);
    is("d", &wanted).context("a person's change is mended")?;
    control.delete_member("d")?;
    is("d", &wanted).context("a deleted member comes back")?;

    control.api.delete(&format!("{NODES}/d"))?;
    node["status"]["addresses"] = json!([{"type": "InternalIP", "address": "10.2.0.17"}]);
    control.api.create(NODES, &node)?;
    let wanted =
        json!({"uid": uid(control, "d")?, "addresses": ["10.2.0.17"], "zone": "z1", "pool": "front"});
    is("d", &wanted).context("a Node made again under its name")?;
    control.api.delete(&format!("{NODES}/d"))?;
    is("d", &Value::Null).context("a Node that is gone")?;
    controller.end(Signal::SIGTERM)
}

#[test]
fn the_settings_are_made_once() -> Result<()> {
    let (control, controller) = begin()?;
    let control = &control;
    let settings = || control.api.get(SETTINGS);
    let mode_is = |mode: &str| settings().is_ok_and(|settings| settings["spec"]["mode"] == mode);
    wait_until("the settings", LIMIT, || mode_is("observe")).with_context(|| controller.log())?;
    control.api.merge(SETTINGS, &json!({"spec": {"mode": "enforce", "limit": "1/2"}}))?;
    let version = settings()?["metadata"]["resourceVersion"].clone();
    // Whatever the controller does about the change, it has done before the member of a later Node.
    control.node("d", [10, 2, 0, 14].into(), None)?;
    let wanted = json!({"uid": uid(control, "d")?, "addresses": ["10.2.0.14"]});
    member_is(control, &controller, "d", &wanted)?;
    ensure!(settings()?["metadata"]["resourceVersion"] == version, "{}", controller.log());
    control.api.delete(SETTINGS)?;
    wait_until("the settings are back", LIMIT, || mode_is("observe")).with_context(|| controller.log())?;
    controller.end(Signal::SIGTERM)
}

#[test]
fn a_flag_has_the_status_that_follows() -> Result<()> {
    let (control, controller) = begin()?;
    let control = &control;
    for last in 1..=6_u8 {
        control.node(&format!("n{last}"), [10, 2, 1, last].into(), None)?;
    }
    let flag = |name: &str, node: &str, uid: &str, until: &str| {
        let flag = json!({
            "apiVersion": "nodefence.io/v1alpha1", "kind": "NodeFlag", "metadata": {"name": name},
            "spec": {"node": node, "uid": uid, "until": until, "long": true},
        });
        control.object(FLAGS, &flag)
    };
    let later = "2099-01-01T00:00:00Z";
    let is = |name: &str, state: &str| flag_is(control, &controller, name, state);
    let [n1, n2, n3] = ["n1", "n2", "n3"].map(|node| uid(control, node));
    let [n1, n2, n3] = [n1?, n2?, n3?];
    let wanted = json!({"uid": uid(control, "n6")?, "addresses": ["10.2.1.6"]});
    member_is(control, &controller, "n6", &wanted)?;
    flag("f1", "n1", &n1, later)?;
    let accepted = is("f1", "Accepted")?;
    ensure!(accepted.contains("observe"), "{accepted}");
    flag("f2", "n2", "of-another-machine", later)?;
    let unknown = is("f2", "NodeUnknown")?;
    ensure!(unknown.contains(&n2) && unknown.contains("of-another-machine"), "{unknown}");
    flag("f3", "nobody", &n3, later)?;
    let unknown = is("f3", "NodeUnknown")?;
    ensure!(unknown.contains("nobody"), "{unknown}");
    flag("f2", "n2", &n2, later)?;
    is("f2", "Accepted")?;
    // Of six nodes two may be claimed.
    flag("f3", "n3", &n3, later)?;
    for name in ["f1", "f2", "f3"] {
        let withheld = is(name, "Withheld")?;
        ensure!(withheld.contains("all nodes"), "{withheld}");
    }
    control.api.merge(&format!("{FLAGS}/f3"), &json!({"spec": {"force": true}}))?;
    is("f3", "Accepted")?;
    // A flag that ended less than an hour ago stays, and an older one goes.
    let node = control.api.get(&format!("{NODES}/n1"))?;
    let recently = node["metadata"]["creationTimestamp"].as_str().context("no time of the creation")?;
    flag("recent", "n1", &n1, recently)?;
    flag("old", "n1", &n1, "2020-01-01T00:00:00Z")?;
    is("recent", "Over")?;
    let is_gone = || control.api.get(&format!("{FLAGS}/old")).is_err();
    wait_until("the old flag is deleted", LIMIT, is_gone).with_context(|| controller.log())?;
    is("recent", "Over")?;
    controller.end(Signal::SIGTERM)
}

#[test]
fn another_controller_takes_over() -> Result<()> {
    let (control, first) = begin()?;
    let control = &control;
    let mut second = Controller::start(control, "second")?;
    second.wait_for("controller-waits")?;
    let holds =
        |wanted: &str| Controller::holder(control).is_ok_and(|holder| holder.as_deref() == Some(wanted));
    ensure!(holds("first"), "{:?}", Controller::holder(control));
    // One that is told to end gives the Lease up.
    first.end(Signal::SIGTERM)?;
    wait_until("the second one leads", TAKEN_OVER, || holds("second")).with_context(|| second.log())?;
    second.wait_for("controller-leads")?;
    control.node("d", [10, 2, 0, 14].into(), None)?;
    let wanted = json!({"uid": uid(control, "d")?, "addresses": ["10.2.0.14"]});
    member_is(control, &second, "d", &wanted)?;
    // One that dies does not.
    let mut third = Controller::start(control, "third")?;
    third.wait_for("controller-waits")?;
    ensure!(holds("second"), "{:?}", Controller::holder(control));
    second.end(Signal::SIGKILL)?;
    control.delete_member("d")?;
    wait_until("the third one leads", TAKEN_OVER, || holds("third")).with_context(|| third.log())?;
    member_is(control, &third, "d", &wanted)?;
    third.end(Signal::SIGTERM)
}
