//! Nodes and pods whose state changes, beside a real API server, kube-proxy and the controller. Traffic goes where kube-proxy alone would send it, and no node is
//! cut that bears no flag.

use std::{
    collections::BTreeMap,
    net::{IpAddr, SocketAddr},
    thread::sleep,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, ensure};
use nodefence_tests::{
    Agent, Conn, Family, Node, Place,
    audit::BOTH,
    checks::SOON,
    client::wait_until,
    kube::{
        Alone, Beside, ControlPlane, Controller, Mode, Setup, Source, Wire,
        alone::{backends, faster},
        forwards::{V4, endpoint, object, slice},
        members::MEMBERS,
        objects::{self, Endpoint, Slice},
        wire,
    },
    promises::WATCHED,
    topology::Service,
    watch::wait_within,
};
use serde_json::{Value, json};

/// A generous limit, since the machine may be busy.
const LIMIT: Duration = Duration::from_secs(120);
/// A watch whose connection ended is begun anew after at most this time: the first pause, which is at most twice 800 ms, and the time of a change.
const BEGUN_ANEW: Duration = Duration::from_secs(5);
/// The number of connections that show which nodes answer. Each of two nodes is missed by all of them with a chance of 2 in 10^12.
const CONNECTIONS: usize = 40;
const NODES: &str = "/api/v1/nodes";

/// A cluster whose members the controller writes, by the Nodes.
struct World {
    beside: Beside,
    controller: Controller,
}

impl World {
    fn new() -> Result<Self> {
        let setup = Setup { families: V4, source: Source::ApiServer, ..Setup::default() };
        let beside = Beside::new(Mode::Nftables, setup)?;
        let mut controller = Controller::start(&beside.control, "first")?;
        controller.wait_for("controller-leads")?;
        let this = Self { beside, controller };
        for node in ["node-a", "node-b", "node-c"] {
            this.member_follows(node)?;
        }
        Ok(this)
    }

    fn control(&self) -> &ControlPlane {
        &self.beside.control
    }

    fn agent(&self) -> &Agent {
        &self.beside.agent
    }

    /// Waits until a Node's member is of the same machine, and the agent has its addresses. Returns the uid.
    fn member_follows(&self, name: &str) -> Result<String> {
        let node = self.control().api.get(&format!("{NODES}/{name}"))?;
        let (uid, rows) = (&node["metadata"]["uid"], &node["status"]["addresses"]);
        let rows: Vec<&Value> = rows.as_array().into_iter().flatten().map(|row| &row["address"]).collect();
        let member = || self.control().api.get(&format!("{MEMBERS}/{name}")).unwrap_or_default();
        let follows = || {
            let known = self.agent().node(name).map(|row| row["addresses"].clone()).unwrap_or_default();
            member()["spec"]["uid"] == *uid
                && known.as_array().is_some_and(|all| all.iter().eq(rows.iter().copied()))
        };
        wait_until(&format!("the member {name} follows"), LIMIT, follows)
            .with_context(|| format!("{rows:?}\n{}\n{}", member(), self.controller.log()))?;
        Ok(uid.as_str().context("no uid")?.to_owned())
    }

    /// Waits until the controller and the agent have done whatever they do about what was changed so far: a later Node has come through both.
    fn settle(&self, last: u8) -> Result<()> {
        let name = format!("later-{last}");
        self.control().node(&name, [10, 2, 9, last].into(), None)?;
        self.member_follows(&name).map(drop)
    }

    /// How often each node answers new connections to a Service, from outside.
    fn answers(&self, service: Service) -> Result<BTreeMap<String, usize>> {
        let cluster = &self.beside.cluster;
        let to = cluster.service(service, Place::Outside, Family::V4);
        let mut answers = BTreeMap::new();
        for _ in 0..CONNECTIONS {
            let who = Conn::connect(cluster.at(Place::Outside), to, SOON)?.who()?;
            *answers.entry(who).or_default() += 1;
        }
        Ok(answers)
    }

    /// Waits until exactly these nodes answer new connections to Web.
    fn answered_by(&self, what: &str, nodes: &[&str]) -> Result<()> {
        let are = || self.answers(Service::Web).is_ok_and(|found| found.keys().eq(nodes.iter()));
        wait_until(&format!("{what}: answered by {nodes:?}"), LIMIT, are).map(drop).with_context(|| {
            format!("{:?}\n{}\n{}", self.answers(Service::Web), self.agent().log(), self.beside.proxy.log())
        })
    }

    /// Flags the machine that a Node is now.
    fn flag(&self, name: &str, node: &str) -> Result<()> {
        let uid = self.member_follows(node)?;
        self.control().flag(name, node, json!({"uid": uid}))
    }

    /// Waits until new connections from node A to an endpoint are refused, or are answered by `node`, within the promised time from `since`.
    fn becomes(&self, to: SocketAddr, answered_by: Option<&str>, since: Instant) -> Result<()> {
        becomes(self.agent(), &self.beside.cluster.a, to, answered_by, WATCHED, since)
    }
}

fn becomes(
    agent: &Agent,
    a: &Node,
    to: SocketAddr,
    answered_by: Option<&str>,
    promised: Duration,
    since: Instant,
) -> Result<()> {
    let is_so = || match Conn::connect(&a.ns, to, SOON) {
        Ok(mut conn) => conn.who().is_ok_and(|who| Some(&*who) == answered_by),
        Err(error) => answered_by.is_none() && error.kind() == std::io::ErrorKind::ConnectionRefused,
    };
    wait_within(&format!("{to} is answered by {answered_by:?}"), promised, since, is_so)
        .map(drop)
        .with_context(|| format!("{:?}\n{}", agent.json(&["nodes"]), agent.log()))
}

/// The endpoint of Web on a node whose pod ends, and still answers.
fn ending(node: &Node) -> Endpoint {
    Endpoint { ready: Some(false), terminating: Some(true), ..endpoint(Service::Web, node, Family::V4) }
}

fn web(node: &Node) -> SocketAddr {
    node.endpoint(Service::Web, Family::V4)
}

/// A Node is cordoned, gets taints, is not ready and then unknown. Its pods serve, and the slices say so.
#[test]
fn what_a_node_says_of_itself_changes_nothing() -> Result<()> {
    let world = World::new()?;
    let both = ["node-b", "node-c"];
    world.answered_by("at first", &both)?;
    let before = backends(world.agent())?;
    let taint = |key: &str, effect: &str| json!({"spec": {"taints": [{"key": key, "effect": effect}]}});
    let ready = |status: &str| json!({"status": {"conditions": [{"type": "Ready", "status": status, "reason": "Test", "message": ""}]}});
    let changes = [
        ("cordoned", "", json!({"spec": {"unschedulable": true}})),
        ("tainted", "", taint("node.kubernetes.io/unreachable", "NoExecute")),
        ("not ready", "/status", ready("False")),
        ("unknown", "/status", ready("Unknown")),
    ];
    for (number, (what, part, change)) in (1..).zip(changes) {
        world.control().api.merge(&format!("{NODES}/node-b{part}"), &change)?;
        world.settle(number)?;
        ensure!(backends(world.agent())? == before, "{what}: {:#?}", backends(world.agent())?);
        world.answered_by(what, &both)?;
        let row = world.agent().node("node-b")?;
        ensure!(row["action"] != "refuse" && row["claims"] == json!([]), "{what}: {row}");
    }
    // A flag cuts such a node as any other.
    let begun = Instant::now();
    world.flag("one", "node-b")?;
    world.becomes(web(&world.beside.cluster.b), None, begun)?;
    world.answered_by("flagged", &["node-c"])?;
    world.controller.lacks_no_right()
}

/// A flagged node is drained. Its pods that end are the last ones in the end, and kube-proxy uses them then.
#[test]
fn the_last_pods_that_end_are_reached() -> Result<()> {
    let world = World::new()?;
    let [b, c] = [&world.beside.cluster.b, &world.beside.cluster.c];
    let tell = |endpoints: &[Endpoint]| slice(world.control(), Service::Web, endpoints.to_vec());
    world.answered_by("at first", &["node-b", "node-c"])?;
    let of_c = endpoint(Service::Web, c, Family::V4);
    tell(&[ending(b), of_c.clone()])?;
    world.answered_by("node B is drained", &["node-c"])?;
    // A pod that ends is reached at its own address until it is gone.
    world.becomes(web(b), Some("node-b"), Instant::now())?;
    world.flag("one", "node-b")?;
    world.becomes(web(b), None, Instant::now())?;
    tell(&[ending(b)])?;
    world.answered_by("only pods that end are left", &["node-b"])?;
    tell(&[ending(b), ending(c)])?;
    world.answered_by("another pod that ends", &["node-c"])?;
    tell(&[ending(b), of_c])?;
    world.answered_by("node C is ready", &["node-c"])?;
    world.becomes(web(b), None, Instant::now())?;
    world.controller.lacks_no_right()
}

/// A flagged Node is deleted, and made anew under its name with another address. Another Node then gets the old address.
#[test]
fn a_node_that_is_made_anew_is_another_machine() -> Result<()> {
    let world = World::new()?;
    let [b, c] = [&world.beside.cluster.b, &world.beside.cluster.c];
    let host = b.endpoint(Service::Host, Family::V4);
    let control = world.control();
    world.flag("old", "node-b")?;
    for to in [web(b), host] {
        world.becomes(to, None, Instant::now())?;
    }
    let begun = Instant::now();
    control.api.delete(&format!("{NODES}/node-b"))?;
    let gone = || control.api.get(&format!("{MEMBERS}/node-b")).is_err();
    wait_until("the member goes with its Node", LIMIT, gone).with_context(|| world.controller.log())?;
    println!("the member was gone {:?} after its Node", begun.elapsed());
    let since = Instant::now();
    // No flag holds for a machine that is gone.
    for to in [web(b), host] {
        world.becomes(to, Some("node-b"), since)?;
    }
    world.answered_by("without a Node", &["node-b", "node-c"])?;

    control.api.create(NODES, &objects::node("node-b", &[IpAddr::from([10, 2, 0, 99])], None))?;
    world.member_follows("node-b")?;
    let passes = || -> Result<()> {
        for to in [web(b), host] {
            world.becomes(to, Some("node-b"), Instant::now())?;
        }
        world.answered_by("the old flag", &["node-b", "node-c"])
    };
    passes().context("the flag of the machine before")?;
    // Another machine has the old address before the slices tell.
    control.api.create(NODES, &objects::node("node-d", &[b.address(Family::V4)], None))?;
    // The address is then claimed by two, and counts for neither.
    let claimed =
        || -> Result<bool> { Ok(world.agent().status()?["cluster"]["conflicts"].as_u64() > Some(0)) };
    wait_until("the agent knows that two claim the address", LIMIT, || claimed().unwrap_or(false))
        .with_context(|| format!("{}\n{}", world.controller.log(), world.agent().log()))?;
    let begun = Instant::now();
    world.flag("new", "node-b")?;
    world.becomes(web(b), None, begun)?;
    world.becomes(host, Some("node-b"), Instant::now()).context("the address of a node without a flag")?;
    world.becomes(web(c), Some("node-c"), Instant::now())?;
    world.controller.lacks_no_right()
}

/// An agent behind a relay, which knows an address of node B that is flagged. Node C's pod has the same address, and node A's packets to it go to node C.
struct Moving {
    alone: Alone,
    wire: Wire,
}

/// The address that is used again.
const USED_AGAIN: [u8; 4] = [10, 244, 2, 77];

impl Moving {
    fn new() -> Result<Self> {
        let (mut alone, wire) = Alone::behind(&[], faster(), |control| {
            Ok((format!("https://127.0.0.1:{}", wire::PORT), Wire::start(&control.ns)?))
        })?;
        alone.agent.ready()?;
        alone.control.enforce()?;
        wait_until("the agent enforces", LIMIT, || {
            alone.agent.json(&["mode"]).is_ok_and(|mode| mode["mode"] == "enforce")
        })?;
        let [a, c] = [&alone.cluster.a, &alone.cluster.c];
        c.pod.ip("addr add 10.244.2.77/32 dev eth0")?;
        c.ns.ip(&format!("route add 10.244.2.77/32 via {}", c.pod_address(Family::V4)))?;
        a.ns.ip(&format!("route add 10.244.2.77/32 via {}", c.address(Family::V4)))?;
        let this = Self { alone, wire };
        this.is_on("first", "node-b")?;
        this.alone.agent.flag("node-b")?;
        this.is(None, WATCHED, Instant::now()).context("it is node B's")?;
        Ok(this)
    }

    /// Makes a slice that has the address on this node.
    fn is_on(&self, name: &str, node: &str) -> Result<()> {
        let endpoints = vec![Endpoint::ready(USED_AGAIN, node)];
        let slice = Slice { name: name.to_owned(), ..Slice::new(&object(Service::Web, &BOTH), endpoints) };
        self.alone.control.slice(&slice)
    }

    fn is(&self, answered_by: Option<&str>, promised: Duration, since: Instant) -> Result<()> {
        let Alone { agent, cluster, .. } = &self.alone;
        becomes(agent, &cluster.a, SocketAddr::from((USED_AGAIN, 8080)), answered_by, promised, since)
    }

    /// The address stays with the node that has no flag.
    fn stays(&self) -> Result<()> {
        let since = Instant::now();
        while since.elapsed() < WATCHED * 2 {
            self.is(Some("node-c"), Duration::ZERO.max(SOON), Instant::now())?;
            sleep(Duration::from_millis(50));
        }
        Ok(())
    }
}

/// The address is used again at once, and the agent hears of it in either order.
#[test]
fn an_address_that_is_used_again_goes_with_its_new_node() -> Result<()> {
    let moving = Moving::new()?;
    let begun = Instant::now();
    moving.alone.control.delete_slice("first")?;
    moving.is_on("second", "node-c")?;
    moving.is(Some("node-c"), WATCHED, begun).context("the old slice goes first")?;
    moving.stays()?;
    moving.alone.control.delete_slice("second")?;
    moving.is_on("first", "node-b")?;
    moving.is(None, WATCHED, Instant::now())?;
    // Two nodes claim it for a while: it is cut for neither.
    let begun = Instant::now();
    moving.is_on("second", "node-c")?;
    moving.is(Some("node-c"), WATCHED, begun).context("the new slice comes first")?;
    moving.stays()?;
    moving.alone.control.delete_slice("first")?;
    moving.stays()
}

/// The same while the agent's watch is dead. Once the watch is begun anew, the address is the new node's, whatever the agent missed.
#[test]
fn an_address_that_was_used_again_unheard_goes_with_its_new_node() -> Result<()> {
    let moving = Moving::new()?;
    moving.wire.reset();
    moving.alone.control.delete_slice("first")?;
    moving.is_on("second", "node-c")?;
    moving.wire.heal();
    moving.is(Some("node-c"), BEGUN_ANEW, Instant::now())?;
    moving.stays()?;
    let found = backends(&moving.alone.agent)?;
    ensure!(
        found.contains("node-c at 10.244.2.77") && !found.contains("node-b at 10.244.2.77"),
        "{found:#?}"
    );
    Ok(())
}
