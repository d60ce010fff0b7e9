//! Clients that use a Service through a real kube-proxy on node A, while node B or node A hangs.

use std::{
    sync::atomic::{AtomicBool, AtomicU64, Ordering},
    thread::sleep,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, ensure};
use nodefence_common::Reason;

use super::{
    Beside, Mode, Setup,
    clients::{AFTER, AFTER_A_RENEWAL, LIMIT, Wait, hangs},
    own,
};
use crate::{
    Conn, Family, Node, Options, Overlay, Place,
    audit::BOTH,
    client::{UdpConn, wait_until},
    load::{repeat, under},
    promises::{FOLLOWED, RESTORED},
    tcp_info,
    topology::{NODE_PORT_OF_ITS_OWN, Service},
    watch::wait_within,
};

/// Thaws and unflags the node, and waits until it gets new connections within the promised time.
pub(super) fn recovers(beside: &Beside, hung: &Node) -> Result<()> {
    let cluster = &beside.cluster;
    hung.thaw()?;
    let unflagged = Instant::now();
    beside.agent.expect(&["unflag", hung.name])?;
    // A drained destination with connections is restored only once the source has confirmed it.
    beside.confirm()?;
    for family in BOTH {
        let to = cluster.service(Service::Web, Place::Outside, family);
        let answers = || {
            let who = Conn::connect(&cluster.client, to, LIMIT).and_then(|mut conn| conn.who());
            who.is_ok_and(|who| who == hung.name)
        };
        wait_within("the node gets new connections again", RESTORED, unflagged, answers)?;
    }
    Ok(())
}

/// Waits until the agent is ready to rescue.
pub(super) fn rescues(beside: &Beside) -> Result<()> {
    let idle = || beside.status().is_ok_and(|status| status["rescue"]["idle"].is_null());
    wait_until("an agent that rescues", LIMIT, idle).map(drop).with_context(|| beside.agent.log())
}

/// Diagnostics for an error: the mode, the client's place, the counters and the agent's log.
fn details(beside: &Beside, place: Place) -> String {
    let counters = beside.agent.expect(&["counters"]).unwrap_or_default();
    format!("{}, client: {place:?}\n{counters}\n{}", beside.proxy.mode, beside.agent.log())
}

/// Checks what `status` says of own sockets once a client in the host network has met the cut. Clients of [`hangs`] have met it, except in IPVS mode, where no
/// new flow goes to the drained endpoint.
fn own_sockets(beside: &Beside, service: Service, hung: &Node, live: &Node) -> Result<()> {
    if beside.proxy.mode != Mode::Ipvs {
        own::says(beside, own::BALANCED).with_context(|| details(beside, Place::Node))?;
    }
    own::is_balanced(beside, service, hung, live).with_context(|| details(beside, Place::Node))
}

/// Checks clients while kube-proxy still lists the hung endpoints. No established client waits for longer than a second after the flag. No new connection fails
/// or needs a second SYN. A live backend answers the next query of a client that uses UDP from one port.
///
/// # Errors
/// The error names the failed check.
pub fn clients_go_on(mode: Mode) -> Result<()> {
    clients_go_on_with(mode, Setup::default())
}

/// Same as [`clients_go_on`], with another setup of Services without affinity and with policies Cluster.
///
/// # Errors
/// The error names the failed check.
pub fn clients_go_on_with(mode: Mode, setup: Setup<'_>) -> Result<()> {
    let beside = Beside::new(mode, setup)?;
    rescues(&beside)?;
    let b = &beside.cluster.b;
    let c = &beside.cluster.c;
    for place in Place::ALL {
        // The host network is the last place, so no own socket has met the cut before.
        own::says(&beside, own::NOT_TRIED).with_context(|| details(&beside, place))?;
        let after = if place == Place::Outside { AFTER_A_RENEWAL } else { AFTER };
        hangs(&beside, place, b, c, after, || beside.agent.flag_by_socket(b.name))
            .with_context(|| details(&beside, place))?;
        if place == Place::Node {
            own_sockets(&beside, Service::Web, b, c)?;
        }
        recovers(&beside, b)?;
    }
    the_next_query_is_answered(&beside)
}

/// Waits until kube-proxy sends connections to these nodes alone, and the agent lists their pods.
pub(super) fn follow(beside: &Beside, nodes: &[&Node]) -> Result<()> {
    let cluster = &beside.cluster;
    let known = || {
        let text = beside.agent.expect(&["backends"]).unwrap_or_default();
        nodes
            .iter()
            .all(|node| BOTH.iter().all(|family| text.contains(&node.pod_address(*family).to_string())))
    };
    let reaches_others = |family| -> std::io::Result<bool> {
        let to = cluster.service(Service::Web, Place::Node, family);
        let names = (0..20).map(|_| Conn::connect(cluster.at(Place::Node), to, LIMIT)?.who());
        Ok(names
            .collect::<std::io::Result<Vec<String>>>()?
            .iter()
            .any(|name| nodes.iter().all(|node| node.name != name)))
    };
    wait_until("kube-proxy and the agent follow", Duration::from_secs(60), || {
        known() && BOTH.into_iter().all(|family| reaches_others(family).is_ok_and(|reaches| !reaches))
    })
    .map(drop)
}

/// Checks clients that enter through a node whose own pods hang, while its agent lives. Packets that the rules send to these pods go elsewhere. Packets that
/// the node itself sends straight to the pods, as the kubelet's probes are, still reach them.
///
/// # Errors
/// The error names the failed check.
pub fn clients_of_the_hung_node_go_on(mode: Mode) -> Result<()> {
    let mut beside = Beside::new(mode, Setup { extra: &["--interface", "auto"], ..Setup::default() })?;
    beside.cluster.serve_on_a()?;
    rescues(&beside)?;
    let a = &beside.cluster.a;
    let c = &beside.cluster.c;
    beside.set_endpoints(&[a, c])?;
    follow(&beside, &[a, c])?;
    let by_request = || beside.agent.flag_by_socket(a.name);
    let by_file = || {
        let renamed = Instant::now();
        beside.flag_in_file(&[a, c], &[a])?;
        wait_within("its pods are cut off", FOLLOWED, renamed, || {
            let list = beside.agent.json(&["backends"]).unwrap_or_default();
            let its = list["items"]
                .as_array()
                .into_iter()
                .flatten()
                .filter(|row| row["node"] == a.name && row["port"].is_null());
            let cut: Vec<bool> =
                its.map(|row| row["flagged"] == true && row["interface"].is_string()).collect();
            !cut.is_empty() && cut.iter().all(|cut| *cut)
        })?;
        Ok(Instant::now())
    };
    for (place, after, flag) in [
        (Place::Outside, AFTER, &by_request as &dyn Fn() -> Result<Instant>),
        (Place::Node, AFTER_A_RENEWAL, &by_file),
    ] {
        own::says(&beside, own::NOT_TRIED).with_context(|| details(&beside, place))?;
        hangs(&beside, place, a, c, after, flag).with_context(|| details(&beside, place))?;
        if place == Place::Node {
            own_sockets(&beside, Service::Web, a, c)?;
        }
        for pod in BOTH.map(|family| a.endpoint(Service::Web, family)) {
            let passed = beside.agent.counter(Reason::OwnSocket)?;
            Conn::connect(&a.ns, pod, LIMIT).context("a probe of the kubelet's")?;
            ensure!(beside.agent.counter(Reason::OwnSocket)? > passed, "{pod}\n{}", details(&beside, place));
            Conn::refused_at_once(&beside.cluster.c.ns, pod, LIMIT).context("a pod of the flagged node")?;
        }
        beside.flag_in_file(&[a, c], &[])?;
        recovers(&beside, a)?;
    }
    Ok(())
}

/// Checks clients that use UDP: the first query after the flag is answered by the live node.
fn the_next_query_is_answered(beside: &Beside) -> Result<()> {
    let cluster = &beside.cluster;
    let mode = beside.proxy.mode;
    for place in Place::ALL {
        let to = BOTH.map(|family| cluster.service(Service::Dns, place, family));
        let mut conns = Vec::new();
        for to in to.into_iter().cycle().take(10) {
            conns.push(UdpConn::connect_to(cluster.at(place), to, cluster.b.name, LIMIT)?);
        }
        cluster.b.freeze()?;
        beside.agent.flag(cluster.b.name)?;
        let mut longest = Wait::default();
        for (at, conn) in conns.iter().enumerate() {
            let begun = Instant::now();
            let who = conn.who().with_context(|| format!("query {at}\n{}", details(beside, place)))?;
            ensure!(who == cluster.c.name, "{place:?}: query {at} was answered by {who}");
            longest = longest.max(Wait::since(begun));
        }
        longest.held("slowest answer to the first query after the flag")?;
        println!("{mode}, {place:?}: the next queries were answered within {longest:?}");
        if place == Place::Node {
            own::is_balanced(beside, Service::Dns, &cluster.b, &cluster.c)
                .with_context(|| details(beside, place))?;
        }
        recovers(beside, &cluster.b)?;
    }
    Ok(())
}

/// Checks that other traffic to a flagged node's address goes on: a port that is no backend, such as ssh's or the kubelet's, and VXLAN.
///
/// # Errors
/// The error names the failed check.
pub fn other_ports_go_on(mode: Mode) -> Result<()> {
    let options = Options { overlay: Overlay::Vxlan, ..Options::default() };
    let beside = Beside::new(mode, Setup { options, ..Setup::default() })?;
    rescues(&beside)?;
    let cluster = &beside.cluster;
    // An address that is no backend, behind the tunnel to B.
    cluster.b.pod.ip("addr add 10.244.2.77/24 dev eth0\naddr add fd00:244:2::77/64 dev eth0 nodad")?;
    let ways = [
        (Place::Node, (cluster.b.address(Family::V4), NODE_PORT_OF_ITS_OWN)),
        (Place::Node, (cluster.b.address(Family::V6), NODE_PORT_OF_ITS_OWN)),
        (Place::Pod, ([10, 244, 2, 77].into(), 8080)),
        (Place::Pod, ([0xfd00, 0x244, 2, 0, 0, 0, 0, 0x77].into(), 8080)),
    ];
    let exchanged = [const { AtomicU64::new(0) }; 4];
    let uses = |place, to: (std::net::IpAddr, u16), done: &AtomicU64, stop: &AtomicBool| -> Result<u64> {
        let ns = cluster.at(place);
        let mut established = Conn::connect(ns, to.into(), LIMIT)?;
        // The first exchange discovers the path's MTU through the tunnel.
        established.echo(&[7; 3_000])?;
        let before = tcp_info::lost(&established.stream)?;
        let count = repeat(stop, || {
            established.echo(&[7; 3_000]).context("an exchange")?;
            let attempt = Conn::attempt(ns, to.into(), LIMIT);
            attempt.at_first_syn()?;
            attempt.conn?.who()?;
            done.fetch_add(1, Ordering::Relaxed);
            Ok(Duration::from_millis(10))
        })?;
        // This answer shows that all retransmissions have arrived.
        established.echo(&[7])?;
        let lost = tcp_info::lost(&established.stream)?.saturating_sub(before);
        ensure!(lost == 0, "{lost} segments were lost in {count} exchanges");
        Ok(count)
    };
    let flagged = || -> Result<()> {
        wait_until("each exchanges", LIMIT, || {
            exchanged.iter().all(|exchanged| exchanged.load(Ordering::Relaxed) > 2)
        })?;
        beside.agent.expect(&["flag", cluster.b.name, "--wait"])?;
        for family in BOTH {
            let to = cluster.service(Service::Host, Place::Outside, family);
            for _ in 0..20 {
                let mut conn = Conn::connect(&cluster.client, to, LIMIT)?;
                let who = conn.who()?;
                ensure!(who == cluster.c.name, "{who} answered");
            }
            let direct = cluster.b.endpoint(Service::Host, family);
            Conn::refused_at_once(&cluster.a.ns, direct, LIMIT).context("a backend of the flagged node")?;
        }
        // The connections must go on undisturbed for this time.
        sleep(Duration::from_secs(2));
        Ok(())
    };
    let uses = &uses;
    let users = ways.iter().zip(&exchanged);
    let users =
        users.map(|((place, to), exchanged)| move |stop: &AtomicBool| uses(*place, *to, exchanged, stop));
    let (result, counts) = under(users, flagged);
    result.with_context(|| details(&beside, Place::Outside))?;
    for ((_, to), count) in ways.into_iter().zip(counts) {
        let count = count.with_context(|| format!("{to:?}\n{}", details(&beside, Place::Outside)))?;
        println!("{mode}: {count} exchanges and as many connections to {to:?}");
        ensure!(count >= 10, "{count} exchanges with {to:?}");
    }
    Ok(())
}
