//! An agent that takes nodes, Services and EndpointSlices from a real API server, and has no cluster file.

use std::{
    collections::BTreeSet,
    net::{IpAddr, SocketAddr},
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, ensure};
use nodefence_tests::{
    Agent, Conn, Family, Netns, Node,
    audit::{Audit, BOTH, FAULT_AFTER},
    checks::SOON,
    client::wait_until,
    kube::{
        Alone, Beside, ControlPlane, Mode, Setup, Source,
        alone::{backend, backends, backends_on, lists},
        control::{SERVICES, SLICES},
        forwards::{endpoint, object, slice},
        hang, in_nftables_mode,
        objects::{self, Endpoint, Port, Slice},
    },
    promises::WATCHED,
    topology::{NODE_PORT_OF_ITS_OWN, Service},
    watch::wait_within,
};
use serde_json::{Value, json};

/// A generous limit, since the machine may be busy.
const LIMIT: Duration = Duration::from_secs(120);
/// Longer than a difference takes to become a fault with [`FAULT_AFTER`].
const FAULTS_FOUND: Duration = Duration::from_secs(4);
/// The Services whose backends differ: Dns has those of Web.
const SERVICES_APART: [Service; 2] = [Service::Web, Service::Host];

/// The addresses of a node that the agent lists. `None` if it does not list the node.
fn addresses(agent: &Agent, node: &str) -> Result<Option<Value>> {
    let list = agent.json(&["nodes"])?;
    let rows = list["items"].as_array().context("no nodes")?;
    Ok(rows.iter().find(|row| row["name"] == node).map(|row| row["addresses"].clone()))
}

/// Waits until the agent lists the node with these addresses, or does not list it.
fn knows(agent: &Agent, node: &str, wanted: Option<&[IpAddr]>) -> Result<()> {
    let wanted = wanted.map(|addresses| json!(addresses));
    let same = || addresses(agent, node).is_ok_and(|found| found == wanted);
    wait_within("the addresses of the node are these", WATCHED, Instant::now(), same)
        .map(drop)
        .with_context(|| format!("{node}: {wanted:?}, found {:?}\n{}", addresses(agent, node), agent.log()))
}

/// Waits until the source's row in `status` has this number of conflicts. Returns the row.
fn conflicts(agent: &Agent, wanted: usize) -> Result<Value> {
    let row = || agent.status().map(|status| status["cluster"].clone());
    let same = || row().is_ok_and(|row| row["conflicts"] == wanted);
    wait_within("the number of conflicts", WATCHED, Instant::now(), same)
        .with_context(|| format!("wanted {wanted}: {:?}\n{}", row(), agent.log()))?;
    row()
}

/// Checks that this node answers at this address.
fn answers(ns: &Netns, to: SocketAddr, node: &Node) -> Result<()> {
    let who = Conn::connect(ns, to, SOON).and_then(|mut conn| conn.who());
    let who = who.with_context(|| format!("{to} of {}", node.name))?;
    ensure!(who == node.name, "{who} answered at {to}");
    Ok(())
}

#[test]
fn an_agent_without_a_file_knows_the_cluster() -> Result<()> {
    let alone = Alone::new()?;
    let Alone { agent, control, cluster } = &alone;
    let b = &cluster.b;
    let c = &cluster.c;
    for node in [&cluster.a, b, c] {
        knows(agent, node.name, Some(&BOTH.map(|family| node.address(family))))?;
    }
    let whole = backends_on(&[b, c], &SERVICES_APART);
    lists(agent, &whole)?;
    let row = conflicts(agent, 0)?;
    ensure!(row["nodes"] == 3 && row["file"].is_null() && row["error"].is_null(), "{row}");

    let added = |address: [u8; 4], node: &Node| {
        let endpoints = vec![Endpoint::ready(address, node.name)];
        let slice = Slice::new(&object(Service::Web, &BOTH), endpoints);
        control.slice(&Slice { name: "web-more".to_owned(), ..slice })
    };
    let with = |more: &str| -> BTreeSet<String> {
        let more = more.to_owned();
        whole.iter().cloned().chain([more]).collect()
    };
    added([10, 244, 2, 77], b)?;
    lists(agent, &with("node-b at 10.244.2.77")).context("a new slice")?;
    added([10, 244, 3, 77], c)?;
    lists(agent, &with("node-c at 10.244.3.77")).context("a changed slice")?;
    control.delete_slice("web-more")?;
    lists(agent, &whole).context("a deleted slice")?;
    control.delete_service("host")?;
    lists(agent, &backends_on(&[b, c], &[Service::Web])).context("a deleted Service")?;
    control.service(&object(Service::Host, &BOTH))?;
    lists(agent, &whole).context("a new Service")?;

    for address in [[10, 2, 0, 14], [10, 2, 0, 15]] {
        let address = IpAddr::from(address);
        control.member("node-d", &[address])?;
        knows(agent, "node-d", Some(&[address]))?;
    }
    control.delete_member("node-d")?;
    knows(agent, "node-d", None)
}

#[test]
fn a_flag_reaches_clients_as_with_a_file() -> Result<()> {
    in_nftables_mode(|mode| {
        hang::clients_go_on_with(mode, Setup { source: Source::ApiServer, ..Setup::default() })
    })
}

#[test]
fn an_endpoint_of_no_member_is_never_cut() -> Result<()> {
    let alone = Alone::with(|control, cluster| {
        control.member_of(&cluster.a)?;
        control.member_of(&cluster.b)
    })?;
    let Alone { agent, control, cluster } = &alone;
    let a = &cluster.a;
    let b = &cluster.b;
    let c = &cluster.c;
    lists(agent, &backends_on(&[b], &SERVICES_APART))?;
    // Each of the two Services has such an endpoint of each IP version.
    let has_four = || agent.status().is_ok_and(|status| status["cluster"]["skipped"] == 4);
    wait_until("4 endpoints are skipped", LIMIT, has_four).with_context(|| agent.log())?;
    // They are no fault.
    let row = conflicts(agent, 0)?;
    ensure!(agent.warning("NF11")?.is_none(), "{row}");
    let examples = row["skipped_examples"].as_array().context("no examples")?;
    let of_c = |example: &Value| example["message"].as_str().is_some_and(|text| text.contains(c.name));
    ensure!(examples.len() == 4 && examples.iter().all(of_c), "{row}");
    // One node of two is more than a third, so the flag needs `force`.
    agent.flag_by_socket(b.name)?;
    for service in SERVICES_APART {
        for family in BOTH {
            Conn::refused_at_once(&a.ns, b.endpoint(service, family), SOON)
                .with_context(|| format!("a backend of the flagged node\n{}", agent.log()))?;
            answers(&a.ns, c.endpoint(service, family), c)?;
        }
    }
    control.member_of(c)?;
    lists(agent, &backends_on(&[b, c], &SERVICES_APART))?;
    let row = conflicts(agent, 0)?;
    ensure!(row["skipped"] == 0, "{row}");
    Ok(())
}

#[test]
fn an_endpoint_without_a_node_at_a_members_address_is_that_members() -> Result<()> {
    let alone = Alone::new()?;
    let Alone { agent, control, cluster } = &alone;
    let a = &cluster.a;
    let b = &cluster.b;
    let c = &cluster.c;
    for name in ["host", "host-v6"] {
        control.delete_slice(name)?;
    }
    lists(agent, &backends_on(&[b, c], &[Service::Web]))?;
    for family in BOTH {
        let endpoints = [b, c].map(|node| Endpoint { node: None, ..endpoint(Service::Host, node, family) });
        slice(control, Service::Host, endpoints.into())?;
    }
    lists(agent, &backends_on(&[b, c], &SERVICES_APART))?;
    conflicts(agent, 0)?;
    agent.flag(b.name)?;
    for family in BOTH {
        Conn::refused_at_once(&a.ns, b.endpoint(Service::Host, family), SOON)
            .with_context(|| format!("a backend of the flagged node\n{}", agent.log()))?;
        let other_port = SocketAddr::from((b.address(family), NODE_PORT_OF_ITS_OWN));
        answers(&a.ns, other_port, b)?;
        answers(&a.ns, c.endpoint(Service::Host, family), c)?;
    }
    agent.unflag(b.name)?;
    BOTH.into_iter().try_for_each(|family| answers(&a.ns, b.endpoint(Service::Host, family), b))
}

/// Creates Services and slices that kube-proxy ignores, as a whole or in part.
fn what_kube_proxy_ignores(control: &ControlPlane) -> Result<()> {
    let other_proxy = "service.kubernetes.io/service-proxy-name";
    let ports = json!([{"name": "http", "port": 80, "protocol": "TCP"}]);
    let service = |name: &str, labels: Value, spec: Value| {
        let metadata = json!({"name": name, "labels": labels});
        let service = json!({"apiVersion": "v1", "kind": "Service", "metadata": metadata, "spec": spec});
        control.object(SERVICES, &service)
    };
    service("elsewhere", json!({}), json!({"type": "ExternalName", "externalName": "web.example.com"}))?;
    service("others", json!({(other_proxy): "another"}), json!({"ports": ports}))?;
    service("portless", json!({}), json!({"clusterIP": "None"}))?;

    let of = |service: &str| json!({"kubernetes.io/service-name": service});
    let of_others = json!({"kubernetes.io/service-name": "others", (other_proxy): "another"});
    let ports = json!([{"name": "http", "port": 8080, "protocol": "TCP"}]);
    for (name, labels, kind, address, ports) in [
        ("by-name", of("web"), "FQDN", "pod.example.com", &ports),
        ("elsewhere", of("elsewhere"), "IPv4", "10.244.2.96", &ports),
        ("others", of_others, "IPv4", "10.244.2.97", &ports),
        ("portless", of("portless"), "IPv4", "10.244.2.98", &json!([])),
        ("of-nobody", json!({}), "IPv4", "10.244.2.99", &ports),
    ] {
        let slice = json!({
            "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice",
            "metadata": {"name": name, "labels": labels}, "addressType": kind, "ports": ports,
            "endpoints": [{
                "addresses": [address], "conditions": {"ready": true}, "nodeName": "node-b",
                "targetRef": {"kind": "Pod", "namespace": "default", "name": name},
            }],
        });
        control.object(SLICES, &slice)?;
    }
    Ok(())
}

#[test]
fn what_kube_proxy_ignores_is_no_backend_of_its_tables() -> Result<()> {
    let extra = &["--fault-after", FAULT_AFTER];
    let setup = Setup { source: Source::ApiServer, extra, ..Setup::default() };
    let beside = Beside::new(Mode::Iptables, setup)?;
    let Beside { agent, control, cluster, .. } = &beside;
    let a = &cluster.a;
    let b = &cluster.b;
    let whole = backends_on(&[b, &cluster.c], &SERVICES_APART);
    lists(agent, &whole)?;
    what_kube_proxy_ignores(control)?;
    // These two come last, so the agent has all others once it lists their backend.
    let port = Port { name: "http", protocol: "TCP", port: 80, target: 8080, node_port: None };
    let last = objects::Service::new("last", [10, 96, 0, 30], vec![port]);
    control.service(&last)?;
    control.slice(&Slice::new(&last, vec![Endpoint::ready([10, 244, 3, 90], "node-c")]))?;
    let has_last = || backends(agent).is_ok_and(|found| found.contains("node-c at 10.244.3.90"));
    wait_until("the agent lists the last backend", LIMIT, has_last).with_context(|| agent.log())?;
    let found = backends(agent)?;
    ensure!(whole.is_subset(&found), "wanted {whole:#?}, found {found:#?}");
    for address in ["10.244.2.96", "10.244.2.99"] {
        let is_backend = found.iter().any(|backend| backend.ends_with(address));
        ensure!(!is_backend, "{address} is a backend: {found:#?}");
    }
    let row = conflicts(agent, 0)?;
    ensure!(row["error"].is_null() && row["left_out"] == 0, "{row}");

    let pod = b.endpoint(Service::Web, Family::V4);
    agent.flag(b.name)?;
    Conn::refused_at_once(&a.ns, pod, SOON).with_context(|| agent.log())?;
    agent.unflag(b.name)?;
    answers(&a.ns, pod, b)?;
    std::thread::sleep(FAULTS_FOUND);
    let audit = Audit::of(agent)?;
    ensure!(audit.code == 0, "{:#}\n{}", audit.report, agent.log());
    Ok(())
}

#[test]
fn no_services_no_view() -> Result<()> {
    let mut alone = Alone::without_members()?;
    alone.agent.wait_for_log("event=\"view-awaited\"")?;
    // The lists of Services and slices have come, and that of members cannot come.
    alone.agent.wait_for_log(": the first list of nodes event=\"view-awaited\"")?;
    ensure!(!alone.agent.socket().exists(), "the agent serves its socket before it knows the nodes");
    alone.control.crds()?;
    alone
        .agent
        .wait_for_log("there are no NodeMembers: does the controller run? (kubectl get nodemembers)")?;
    alone.control.members(&alone.cluster)?;
    alone.agent.ready()?;
    lists(&alone.agent, &backends_on(&[&alone.cluster.b, &alone.cluster.c], &SERVICES_APART))
}

/// Does not run in guests, whose API server runs outside.
mod away {
    use super::*;

    /// The kinds that the source watches, by their names in the log.
    const KINDS: [&str; 3] = ["members", "Services", "slices"];

    /// How often the log has an event for a kind.
    fn logged(agent: &Agent, event: &str, kind: &str) -> usize {
        let log = agent.log().replace('"', "");
        let wanted = [format!("event={event}"), format!("kind={kind}")];
        let has = |line: &&str| wanted.iter().all(|field| line.split_whitespace().any(|word| word == field));
        log.lines().filter(has).count()
    }

    /// Waits until the log has an event for each kind.
    fn wait_for_each(agent: &Agent, event: &str) -> Result<()> {
        let all = || KINDS.iter().all(|kind| logged(agent, event, kind) > 0);
        wait_until(&format!("{event} for each kind"), LIMIT, all).map(drop).with_context(|| agent.log())
    }

    /// Waits until `status` says that the API server is away, or that it is not.
    fn says_away(agent: &Agent, wanted: bool) -> Result<()> {
        let row = || agent.status().map(|status| status["cluster"].clone());
        let says = || row().is_ok_and(|row| row["away"].is_string() == wanted && row["error"].is_null());
        wait_within("status says whether the server is away", WATCHED, Instant::now(), says)
            .map(drop)
            .with_context(|| format!("wanted {wanted}: {:?}\n{}", row(), agent.log()))
    }

    /// What `status` says of nodes, Services and endpoints, and the backends.
    fn view(agent: &Agent) -> Result<(Value, BTreeSet<String>)> {
        let row = agent.status()?["cluster"].clone();
        Ok((json!([row["nodes"], row["services"], row["endpoints"]]), backends(agent)?))
    }

    /// Checks that the view is this one, and that a flag cuts by it.
    fn stays(alone: &Alone, wanted: &(Value, BTreeSet<String>)) -> Result<()> {
        let Alone { agent, cluster, .. } = alone;
        let now = view(agent)?;
        ensure!(now == *wanted, "{now:#?} in place of {wanted:#?}\n{}", agent.log());
        let [of_b, of_c] = [&cluster.b, &cluster.c].map(|node| node.endpoint(Service::Web, Family::V4));
        agent.flag(cluster.b.name)?;
        Conn::refused_at_once(&cluster.a.ns, of_b, SOON).with_context(|| agent.log())?;
        answers(&cluster.a.ns, of_c, &cluster.c)?;
        agent.unflag(cluster.b.name)?;
        answers(&cluster.a.ns, of_b, &cluster.b)
    }

    #[test]
    fn while_the_api_server_is_away_the_view_stays() -> Result<()> {
        let mut alone = Alone::new()?;
        let whole = backends_on(&[&alone.cluster.b, &alone.cluster.c], &SERVICES_APART);
        lists(&alone.agent, &whole)?;
        let before = view(&alone.agent)?;
        alone.control.freeze_server()?;
        stays(&alone, &before).context("the API server is frozen")?;
        alone.control.kill_server()?;
        wait_for_each(&alone.agent, "api-server-away")?;
        says_away(&alone.agent, true)?;
        stays(&alone, &before).context("the API server was killed")?;
        alone.control.start_server()?;
        wait_for_each(&alone.agent, "api-server-answers")?;
        says_away(&alone.agent, false)?;
        let Alone { agent, control, cluster } = &alone;
        stays(&alone, &before).context("the API server is back")?;

        let web_on = |nodes: &[&Node], family: Family| -> Result<()> {
            let endpoints = nodes.iter().map(|node| endpoint(Service::Web, node, family));
            slice(control, Service::Web, endpoints.collect())
        };
        let address = IpAddr::from([10, 2, 0, 14]);
        BOTH.into_iter().try_for_each(|family| web_on(&[&cluster.c], family))?;
        control.delete_service("host")?;
        control.member("node-d", &[address])?;
        let only_c = backends_on(&[&cluster.c], &[Service::Web]);
        // A server that was restarted may want a new list. Each watch waits for its backoff before it gets one.
        let follows = || {
            let has_member = addresses(agent, "node-d").is_ok_and(|found| found.is_some());
            has_member && backends(agent).is_ok_and(|found| found == only_c)
        };
        wait_until("all watches go on", LIMIT, follows).with_context(|| agent.log())?;
        // From then on changes come as soon as before.
        control.service(&object(Service::Host, &BOTH))?;
        let with_host = &only_c | &backends_on(&[&cluster.b, &cluster.c], &[Service::Host]);
        lists(agent, &with_host).context("a new Service")?;
        web_on(&[&cluster.b, &cluster.c], Family::V4)?;
        let with_b = BTreeSet::from([backend(&cluster.b, Service::Web, Family::V4)]);
        lists(agent, &(&with_host | &with_b)).context("a changed slice")?;
        control.delete_member("node-d")?;
        knows(agent, "node-d", None)?;
        for event in ["api-server-away", "api-server-answers"] {
            for kind in KINDS {
                let count = logged(agent, event, kind);
                ensure!(count == 1, "{event} is logged {count} times for {kind}\n{}", agent.log());
            }
        }
        Ok(())
    }
}
