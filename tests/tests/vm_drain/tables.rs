//! A flag leaves no flow and no weight of the node, and touches nothing of other nodes. An unflag restores everything.

use std::{
    collections::BTreeSet,
    sync::atomic::AtomicBool,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, ensure};
use nodefence::ipvs::{self, Change, Destination, Ipvs, ServiceKey};
use nodefence_tests::{
    Conn, Family, Netns, Outcome, Place,
    client::{UdpConn, wait_until},
    ipvs::Snapshot,
    load::{repeat, under},
    promises::UNDONE,
    topology::Service,
    watch::{held, within},
};

use super::common::{
    LIMIT, ONLY_B, addresses, agent, agent_with, answered_by_c, cluster, connections, saved, status,
    untouched, wait_drained, wait_same,
};

#[test]
fn flows_templates_and_weights_go_and_come_back() -> Result<()> {
    let cluster = cluster()?;
    let ns = &cluster.a.ns;
    let before = saved(ns)?;
    let agent = agent(&cluster)?;
    let mut idle = Vec::new();
    let mut others = Vec::new();
    let mut datagrams = Vec::new();
    for family in [Family::V4, Family::V6] {
        let web = cluster.service(Service::Web, Place::Pod, family);
        let dns = cluster.service(Service::Dns, Place::Pod, family);
        for _ in 0..4 {
            let mut conn = Conn::connect_to(cluster.at(Place::Pod), web, "node-b", LIMIT)?;
            conn.long_poll()?;
            idle.push(conn);
            others.push(Conn::connect_to(cluster.at(Place::Pod), web, "node-c", LIMIT)?);
            datagrams.push(UdpConn::connect_to(cluster.at(Place::Pod), dns, "node-b", LIMIT)?);
        }
    }
    // A template keeps a client at its first backend. At least one of three clients gets node B, which has more weight.
    let sticky = "10.96.0.30:80".parse()?;
    let mut stuck = None;
    for place in Place::ALL {
        let first = Conn::connect(cluster.at(place), sticky, LIMIT);
        if first.is_ok_and(|mut conn| conn.who().is_ok_and(|who| who == "node-b")) {
            stuck = stuck.or(Some(place));
        }
    }
    let stuck = stuck.context("no client got node B")?;
    ensure!(Conn::connect(cluster.at(stuck), sticky, LIMIT)?.who()? == "node-b", "there is no template");
    let to_b = addresses(&cluster.b);
    let to_c = addresses(&cluster.c);
    ensure!(connections(ns, &to_b)?.len() >= 16, "{:?}", connections(ns, &to_b)?);
    let of_c = connections(ns, &to_c)?.len();

    let flagged = Instant::now();
    agent.flag("node-b")?;
    let gone = wait_until("node B's connections are gone", LIMIT, || {
        connections(ns, &to_b).is_ok_and(|left| left.is_empty())
    })
    .with_context(|| format!("{:?}\n{}", connections(ns, &to_b), agent.log()))?;
    wait_drained(&cluster, &agent)?;
    println!("connections gone after {gone:?}, drained after {:?}", flagged.elapsed());
    for conn in &mut idle {
        let outcome = conn.wait_end(LIMIT);
        ensure!(outcome == Outcome::Reset, "an idle client: {outcome:?}\n{}", agent.log());
    }
    for conn in &mut others {
        conn.echo(b"untouched").context("a connection to node C")?;
    }
    // The clients have the same sockets and source ports as before.
    answered_by_c(&datagrams).with_context(|| agent.log())?;
    ensure!(connections(ns, &to_c)?.len() >= of_c, "node C lost connections");
    let mut again = Conn::connect(cluster.at(stuck), sticky, LIMIT)?;
    ensure!(again.who()? == "node-c", "the template still holds");
    let flows = agent.expect(&["flows", "--node", "node-b", "-o", "json"])?;
    let flows: serde_json::Value = serde_json::from_str(&flows)?;
    let left: Vec<_> =
        flows["items"].as_array().into_iter().flatten().filter(|flow| flow["state"] != "close").collect();
    ensure!(left.is_empty(), "conntrack still has {left:?}");

    let row = status(&agent)?;
    let exempt = &row["nodes"]["node-b"]["exempt"];
    ensure!(exempt[0]["service"] == ONLY_B && exempt.as_array().map(Vec::len) == Some(1), "{row}");
    ensure!(exempt[0]["why"] == "all its destinations are on flagged nodes", "{row}");
    ensure!(
        !ns.exec("ipvsadm -Sn")?.contains("-a -t 10.96.0.32:80 -r 10.244.2.2:8080"),
        "a destination of scheduler sh has a tombstone"
    );
    untouched(&agent)?;

    let began = Instant::now();
    agent.unflag("node-b")?;
    let took = wait_same(&cluster, &before, began, &agent.log())?;
    println!("as it was after {took:?}");
    untouched(&agent)
}

/// [`UNDONE`] is promised for tables that can be read within this time.
const READ: Duration = Duration::from_millis(100);

/// Each second another program gives every destination of the node weight 1, either by adding it anew or by changing it. The agent undoes each of these
/// changes, and meanwhile the cut holds.
#[test]
fn who_adds_them_again_is_undone() -> Result<()> {
    let cluster = cluster()?;
    let ns = &cluster.a.ns;
    let before = saved(ns)?;
    let agent = agent(&cluster)?;
    let begun = Instant::now();
    let all = ns.run(|| Ok::<_, nodefence::ipvs::Error>(Snapshot::read(&mut Ipvs::open()?)?.services))?;
    within("all of the tables read", READ, begun)?;
    let of_b = addresses(&cluster.b);
    let mut wanted = Vec::new();
    for (key, server) in &all {
        let (mine, others): (Vec<_>, Vec<_>) =
            server.destinations.iter().partition(|destination| of_b.contains(&destination.address.ip()));
        if others.iter().any(|destination| destination.weight > 0) {
            let weighted = mine.into_iter().filter(|destination| destination.weight > 0);
            wanted.extend(weighted.map(|destination| (*key, destination.clone())));
        }
    }
    ensure!(wanted.len() > 15, "{wanted:?}");
    agent.flag("node-b")?;
    wait_drained(&cluster, &agent)?;
    let web = cluster.service(Service::Web, Place::Pod, Family::V4);
    let client = |stop: &AtomicBool| {
        repeat(stop, || {
            let attempt = Conn::attempt(cluster.at(Place::Pod), web, LIMIT);
            attempt.at_first_syn()?;
            let (outcome, name) = attempt.request();
            // A new flow is refused by the cut, or answered by node C.
            let good =
                outcome == Outcome::Refused || outcome == Outcome::Reset || name.as_deref() == Some("node-c");
            ensure!(good, "a new flow: {outcome:?}, {name:?}");
            Ok(Duration::from_millis(10))
        })
    };
    let (undone, asked) = under([client], || adversary(ns, &wanted));
    for asked in asked {
        let asked = asked?;
        ensure!(asked > 10, "{asked} new flows");
    }
    undone.with_context(|| agent.log())?;
    wait_drained(&cluster, &agent)?;
    let began = Instant::now();
    agent.unflag("node-b")?;
    // The restore sets the weights that the other program wanted last.
    let raised = |line: &String| {
        let is_theirs = line.contains("10.244.2.2:") && !line.ends_with("-w 0");
        match line.rsplit_once(" -w ") {
            // `rest` is the weight, and the options of a tunnel.
            Some((pair, rest)) if is_theirs => {
                format!("{pair} -w 1{}", rest.trim_start_matches(|letter: char| letter.is_ascii_digit()))
            }
            _ => line.clone(),
        }
    };
    let mut expected: Vec<String> = before.iter().map(raised).collect();
    expected.sort();
    wait_same(&cluster, &expected, began, &agent.log()).map(drop)
}

/// Raises the weights ten times, a second apart, and checks that the agent undoes each change in time.
fn adversary(ns: &Netns, wanted: &[(ServiceKey, Destination)]) -> Result<()> {
    for round in 0..10 {
        let begun = Instant::now();
        let mut changes = Vec::new();
        for (key, destination) in wanted {
            let raised = Destination { weight: 1, ..destination.clone() };
            if round % 2 == 0 {
                changes.push(Change::DeleteDestination(*key, destination.address));
            } else {
                changes.push(Change::SetDestination(*key, raised.clone()));
            }
            changes.push(Change::NewDestination(*key, raised));
        }
        let wanted = wanted.to_vec();
        let (added, undone) = ns.run(move || -> Result<(Instant, Duration)> {
            let mut ipvs = Ipvs::open()?;
            let applied = ipvs.apply(&changes);
            ensure!(applied.failure.is_none(), "{:?}", applied.failure);
            let done =
                applied.outcomes.iter().filter(|outcome| **outcome == ipvs::ChangeOutcome::Done).count();
            ensure!(done >= wanted.len(), "only {done} changes were made");
            let added = Instant::now();
            loop {
                // A look counts by its beginning, since the reading's own time is not the agent's.
                let looked = added.elapsed();
                let mut weighted = 0;
                for key in wanted.iter().map(|(key, _)| key).collect::<BTreeSet<_>>() {
                    let found = ipvs.destinations(key)?.items;
                    let ours = |found: &&Destination| {
                        wanted.iter().any(|(of, wanted)| of == key && wanted.address == found.address)
                    };
                    weighted += found.iter().filter(ours).filter(|found| found.weight > 0).count();
                }
                if weighted == 0 {
                    return Ok((added, looked));
                }
                ensure!(looked < LIMIT, "{weighted} are not undone");
                std::thread::sleep(Duration::from_millis(5));
            }
        })?;
        held("weights undone", UNDONE, added, undone)?;
        std::thread::sleep(Duration::from_secs(1).saturating_sub(begun.elapsed()));
    }
    Ok(())
}

/// Both nodes are flagged, in either order. No other node is left, so their destinations are exempt, and `status` says why.
#[test]
fn the_last_backends_are_exempt() -> Result<()> {
    let cluster = cluster()?;
    let ns = &cluster.a.ns;
    let before = saved(ns)?;
    let agent = agent(&cluster)?;
    for (first, second) in [("node-b", "node-c"), ("node-c", "node-b")] {
        let began = Instant::now();
        agent.expect(&["flag", first, "--force"])?;
        agent.expect(&["flag", second, "--force"])?;
        let exempt = |node: &str| -> Result<u64> {
            status(&agent)?["nodes"][node]["exempt_services"].as_u64().context("no number")
        };
        wait_until("all services are exempt", LIMIT, || {
            ["node-b", "node-c"].into_iter().all(|node| exempt(node).is_ok_and(|services| services > 10))
        })
        .with_context(|| format!("{:?}", status(&agent)))?;
        wait_same(&cluster, &before, began, &agent.log())?;
        let note = status(&agent)?["note"].clone();
        ensure!(
            note.as_str().is_some_and(|note| note.contains("without `services`")),
            "status does not say that the cut exempts nothing: {note}"
        );
        // After the unflag of one node the other one is drained.
        agent.unflag("node-c")?;
        wait_drained(&cluster, &agent)?;
        let began = Instant::now();
        agent.unflag("node-b")?;
        wait_same(&cluster, &before, began, &agent.log())?;
    }
    ensure!(saved(ns)? == before);
    wait_until("status without the note", LIMIT, || status(&agent).is_ok_and(|row| row["note"].is_null()))?;
    untouched(&agent)
}

#[test]
fn observing_touches_nothing() -> Result<()> {
    let cluster = cluster()?;
    let before = saved(&cluster.a.ns)?;
    let agent = agent_with(&cluster, &["--mode", "observe"])?;
    agent.flag("node-b")?;
    let planned = || status(&agent).is_ok_and(|row| row["nodes"]["node-b"]["planned"].as_u64() > Some(10));
    wait_until("the drain is planned", LIMIT, planned).with_context(|| format!("{:?}", status(&agent)))?;
    std::thread::sleep(Duration::from_secs(2));
    ensure!(saved(&cluster.a.ns)? == before);
    Ok(())
}

/// A command changes the mode to observe and back. The drain is restored as by `unflag`, and then made again.
#[test]
fn a_change_of_the_mode_is_followed() -> Result<()> {
    let cluster = cluster()?;
    let before = saved(&cluster.a.ns)?;
    let agent = agent(&cluster)?;
    agent.flag("node-b")?;
    wait_drained(&cluster, &agent)?;
    let began = Instant::now();
    agent.expect(&["mode", "observe"])?;
    wait_same(&cluster, &before, began, &agent.log())?;
    agent.expect(&["mode", "enforce"])?;
    wait_drained(&cluster, &agent)?;
    let began = Instant::now();
    agent.unflag("node-b")?;
    wait_same(&cluster, &before, began, &agent.log())?;
    ensure!(saved(&cluster.a.ns)? == before);
    untouched(&agent)
}
