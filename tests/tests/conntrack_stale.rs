//! Once a node is flagged the agent deletes stale flows in kube-proxy's nftables mode: UDP flows and affinity first, and TCP flows after the challenges.
#![expect(clippy::unwrap_used, reason = "in a test a panic is the message")]

use std::{
    collections::BTreeSet,
    net::IpAddr,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, bail, ensure};
use nodefence::{
    cluster::Protocol,
    conntrack::{Conntrack, Family as Half, Flow},
    proxy::Endpoint,
};
use nodefence_tests::{
    Agent, Cluster, Conn, Family, Options, Outcome, Place, Proxy,
    client::{UdpConn, wait_until},
    topology::Service,
    watch::wait_within,
};

/// The limit of waits that have no promised time, or that run beside others.
const LIMIT: Duration = Duration::from_secs(5);
/// A query that is not answered is sent again after this.
const RETRY: Duration = Duration::from_millis(300);
/// kube-proxy's rules pick at random, also the flagged node. With two nodes the chance of this many wrong picks in a row is one in a million.
const PICKS: u32 = 20;

/// Node A's entries whose answers come from this address.
fn entries(cluster: &Cluster, from: IpAddr) -> Vec<Flow> {
    cluster.a.ns.run(move || {
        let half = if from.is_ipv4() { Half::V4 } else { Half::V6 };
        Conntrack::open_all_zones().unwrap().dump(half, |flow| flow.reply.src == from.into()).unwrap().flows
    })
}

fn names(flows: &[Flow]) -> BTreeSet<String> {
    flows.iter().map(|flow| format!("{flow} {:#x}", flow.id)).collect()
}

/// Sends one query after the other from one port until one is answered, which must be by node C. The stale flow of each query to node B must be deleted, so
/// that kube-proxy picks anew for the next query.
fn answered_by_c(cluster: &Cluster, family: Family, client: &UdpConn, bound: Duration) -> Result<()> {
    client.socket.set_read_timeout(Some(RETRY))?;
    let start = Instant::now();
    for query in 1..=PICKS {
        let sent = Instant::now();
        match client.who() {
            Ok(name) => {
                println!("query {query} answered {:?} after the flag", start.elapsed());
                ensure!(name == "node-c", "{name}");
                return Ok(());
            }
            Err(error) => {
                let outcome = Outcome::of(&error);
                ensure!(matches!(outcome, Outcome::Refused | Outcome::TimedOut), "query {query}: {error}");
            }
        }
        is_deleted(cluster, family, client, bound, sent).with_context(|| format!("query {query}"))?;
    }
    bail!("{PICKS} queries from one port, and none was answered")
}

/// A client's flows to node B, which are stale.
fn stale(cluster: &Cluster, family: Family, client: &UdpConn) -> Result<BTreeSet<String>> {
    let port = client.socket.local_addr()?.port();
    let mut to_b = entries(cluster, cluster.b.pod_address(family));
    to_b.retain(|flow| flow.orig.src_port == port);
    Ok(names(&to_b))
}

fn is_deleted(
    cluster: &Cluster,
    family: Family,
    client: &UdpConn,
    bound: Duration,
    sent: Instant,
) -> Result<()> {
    let left = || stale(cluster, family, client);
    wait_within("the stale flow of a query is deleted", bound, sent, || {
        left().is_ok_and(|left| left.is_empty())
    })
    .with_context(|| format!("{:?}", left()))
    .map(drop)
}

/// Checks that stale flows of new clients are deleted. The second client begins right after the first one's flow was deleted, so its flow waits for the next pass.
fn new_ones_are_deleted(cluster: &Cluster, family: Family, bound: Duration) -> Result<()> {
    let dns = cluster.service(Service::Dns, Place::Outside, family);
    let mut seen = 0;
    for _ in 0..PICKS {
        let client = UdpConn::connect(&cluster.client, dns, RETRY)?;
        let sent = Instant::now();
        let _some_are_answered = client.who();
        if !stale(cluster, family, &client)?.is_empty() {
            is_deleted(cluster, family, &client, bound, sent)?;
            seen += 1;
        }
        if seen == 2 {
            return Ok(());
        }
    }
    bail!("of {PICKS} clients {seen} had a flow to node B")
}

/// This module runs alone, since it checks how soon stale flows are deleted.
mod alone {
    use nodefence_tests::emulated;

    use super::*;

    /// The agent looks for new stale flows each second, in a pass of some milliseconds. It looks less often if the passes would take more than 5 % of a
    /// processor. On an emulated processor entries of 2.1 s were seen.
    fn bound() -> Duration {
        Duration::from_millis(if emulated() { 4_000 } else { 1_200 })
    }

    #[test]
    fn a_dns_client_with_one_port_is_answered_by_a_live_backend() -> Result<()> {
        let cluster = Cluster::new(Options::default())?;
        let agent = cluster.agent_with(&["--proxy", "auto"])?;
        ensure!(agent.status()?["proxy"]["mode"] == "nftables", "{}", agent.status()?["proxy"]);
        for family in [Family::V4, Family::V6] {
            let dns = cluster.service(Service::Dns, Place::Outside, family);
            let client = UdpConn::connect_to(&cluster.client, dns, "node-b", LIMIT)?;
            let others: Vec<_> = (0..20)
                .map(|_| UdpConn::connect_to(&cluster.client, dns, "node-c", LIMIT))
                .collect::<Result<_>>()?;
            let c = cluster.c.pod_address(family);
            let ports: BTreeSet<u16> =
                others.iter().map(|other| other.socket.local_addr().unwrap().port()).collect();
            let theirs = || {
                let mut flows = entries(&cluster, c);
                flows.retain(|flow| ports.contains(&flow.orig.src_port));
                names(&flows)
            };
            let before = theirs();
            ensure!(before.len() == others.len(), "{before:?}");
            cluster.b.freeze()?;
            agent.flag("node-b")?;
            answered_by_c(&cluster, family, &client, bound())?;
            ensure!(theirs() == before, "entries of node C changed: {before:?}, now {:?}", theirs());
            for other in &others {
                ensure!(other.who()? == "node-c");
            }
            // The first answer may come before all stale flows are deleted.
            let row = || Ok::<_, anyhow::Error>(agent.status()?["stale"]["node-b"].clone());
            wait_until("all stale flows are deleted", LIMIT, || row().is_ok_and(|row| !row.is_null()))?;
            let row = row()?;
            let (datagrams, by_filter) = (row["datagrams"].as_u64(), row["by_filter"].as_u64());
            ensure!(datagrams.context("datagrams")? + by_filter.context("by_filter")? > 0, "{row}");
            ensure!(row["problem"].is_null() && row["refused"] == 0, "{row}");
            new_ones_are_deleted(&cluster, family, bound())?;
            agent.unflag("node-b")?;
            cluster.b.thaw()?;
        }
        Ok(())
    }
}

/// Adds to the chains of the DNS Service the sets and rules that kube-proxy has for `sessionAffinity: ClientIP` (pkg/proxy/nftables/proxier.go, v1.36). Gives the
/// names of the sets of B's and C's endpoints.
fn with_affinity(cluster: &Cluster) -> Result<[String; 2]> {
    let sets = [&cluster.b, &cluster.c].map(|node| {
        let socket = (node.pod_address(Family::V4), Service::Dns.ports().1).into();
        Endpoint { service: "default/dns", port: "", protocol: Protocol::Udp, socket }.set()
    });
    let [b, c] = &sets;
    let mut script = String::from("flush chain ip kube-proxy service-dns\n");
    for (at, set) in sets.iter().enumerate() {
        script += &format!(
            "add set ip kube-proxy {set} {{ type ipv4_addr; flags dynamic,timeout; timeout 10800s; }}
             insert rule ip kube-proxy endpoint-dns-{at} update @{set} {{ ip saddr }}\n"
        );
    }
    script += &format!(
        "add rule ip kube-proxy service-dns ip saddr @{b} goto endpoint-dns-0
         add rule ip kube-proxy service-dns ip saddr @{c} goto endpoint-dns-1
         add rule ip kube-proxy service-dns numgen random mod 2 vmap {{ 0 : goto endpoint-dns-0, 1 : goto endpoint-dns-1 }}"
    );
    cluster.a.ns.nft(&script)?;
    Ok(sets)
}

/// A client that affinity keeps at node B.
fn stuck_to_b(cluster: &Cluster, sets: &[String; 2]) -> Result<UdpConn> {
    let dns = cluster.service(Service::Dns, Place::Outside, Family::V4);
    for _ in 0..40 {
        let client = UdpConn::connect(&cluster.client, dns, LIMIT)?;
        if client.who()? == "node-b" {
            for _ in 0..10 {
                ensure!(UdpConn::connect(&cluster.client, dns, LIMIT)?.who()? == "node-b", "no affinity");
            }
            return Ok(client);
        }
        let flush = sets.each_ref().map(|set| format!("flush set ip kube-proxy {set}"));
        cluster.a.ns.nft(&flush.join("\n"))?;
    }
    bail!("40 picks and none was node B")
}

#[test]
fn a_client_that_sticks_to_a_flagged_backend_moves() -> Result<()> {
    let cluster = Cluster::new(Options::default())?;
    let agent = cluster.agent_with(&["--proxy", "auto"])?;
    let sets = with_affinity(&cluster)?;
    let client = stuck_to_b(&cluster, &sets)?;
    let ruleset = |cluster: &Cluster| -> Result<Vec<String>> {
        let text = cluster.a.ns.exec("nft list table ip kube-proxy")?;
        let mut lines: Vec<_> = text.lines().filter(|line| !line.contains("expires")).collect();
        lines.retain(|line| !line.contains("elements"));
        Ok(lines.into_iter().map(str::to_owned).collect())
    };
    let before = ruleset(&cluster)?;
    cluster.b.freeze()?;
    agent.flag("node-b")?;
    answered_by_c(&cluster, Family::V4, &client, LIMIT)?;
    let dns = cluster.service(Service::Dns, Place::Outside, Family::V4);
    for _ in 0..10 {
        ensure!(UdpConn::connect(&cluster.client, dns, LIMIT)?.who()? == "node-c");
    }
    // `status` shows the row once the whole round is done. The client may be faster.
    wait_until("`status` shows the deleted affinity", LIMIT, || {
        agent.status().is_ok_and(|status| status["stale"]["node-b"]["affinity"] == 1)
    })?;
    ensure!(ruleset(&cluster)? == before, "more than elements of sets changed");
    Ok(())
}

#[test]
fn tcp_flows_are_deleted_after_the_challenge() -> Result<()> {
    let cluster = Cluster::new(Options::default())?;
    let agent = cluster.agent_with(&["--proxy", "auto"])?;
    let web = cluster.service(Service::Web, Place::Outside, Family::V4);
    let (b, c) = (cluster.b.pod_address(Family::V4), cluster.c.pod_address(Family::V4));
    let to = |name| (0..20).map(move |_| name);
    let mut conns = to("node-b")
        .chain(to("node-c"))
        .map(|name| Conn::connect_to(&cluster.client, web, name, LIMIT))
        .collect::<Result<Vec<_>>>()?;
    let tcp = |from| {
        let mut flows = entries(&cluster, from);
        flows.retain(|flow| flow.orig.protocol == 6);
        flows
    };
    let before = names(&tcp(c));
    ensure!(tcp(b).len() >= 20);
    cluster.b.freeze()?;
    agent.expect(&["flag", "node-b", "--wait"])?;
    wait_until("entries of B gone", LIMIT, || tcp(b).is_empty())?;
    ensure!(names(&tcp(c)) == before, "entries of node C changed: {before:?}, now {:?}", names(&tcp(c)));
    // All clients of B were reset before: the RST of the cut needs the entry.
    for conn in &mut conns[..20] {
        ensure!(conn.wait_end(LIMIT) == nodefence_tests::client::Outcome::Reset);
    }
    for conn in &mut conns[20..] {
        conn.echo(b"untouched")?;
    }
    let row = agent.status()?["stale"]["node-b"].clone();
    ensure!(row["tcp"].as_u64() >= Some(20) || row["by_filter"].as_u64() > Some(0), "{row}");
    Ok(())
}

/// The agent looks for new stale flows each second. It lists conntrack for that only if datagrams met the cut.
#[test]
fn a_flag_has_conntrack_listed_three_times_at_most() -> Result<()> {
    let cluster = Cluster::new(Options::default())?;
    let agent = cluster.agent_with(&["--proxy", "auto"])?;
    let mut idle = Vec::new();
    for family in [Family::V4, Family::V6] {
        let at = |service| cluster.service(service, Place::Outside, family);
        let conn = Conn::connect_to(&cluster.client, at(Service::Web), "node-b", LIMIT)?;
        idle.push((conn, UdpConn::connect_to(&cluster.client, at(Service::Dns), "node-b", LIMIT)?));
    }
    cluster.b.freeze()?;
    let before = agent.conntrack_listings()?;
    agent.expect(&["flag", "node-b", "--wait"])?;
    for (conn, _) in &mut idle {
        ensure!(conn.wait_end(LIMIT) == Outcome::Reset);
    }
    std::thread::sleep(Duration::from_secs(5));
    let after = agent.conntrack_listings()?;
    for (before, after) in before.into_iter().zip(after) {
        ensure!((1..=3).contains(&(after - before)), "{before} times before the flag, {after} after it");
    }
    let row = agent.status()?["stale"]["node-b"].clone();
    let count = |what: &str| row[what].as_u64().unwrap_or_default();
    ensure!(count("datagrams") + count("tcp") + count("by_filter") >= 4, "{row}");
    // The agent finds a new stale flow all the same.
    let b = cluster.b.pod_address(Family::V4);
    answered_by_c(&cluster, Family::V4, &idle[0].1, LIMIT)?;
    wait_until("no flow to B is left", LIMIT, || entries(&cluster, b).is_empty())?;
    Ok(())
}

/// If a node's link-layer address was never seen, a datagram makes a conntrack entry and is lost before it meets the cut. No counter shows that, and the agent must
/// delete the entry all the same.
#[test]
fn what_dies_before_the_cut_is_deleted_too() -> Result<()> {
    let cluster = Cluster::new(Options::default())?;
    cluster.fabric.ip("link set p2 down")?;
    cluster.a.ns.ip("neigh flush all")?;
    let agent = cluster.agent_with(&["--proxy", "auto"])?;
    agent.expect(&["flag", "node-b", "--wait"])?;
    let dies = || -> Result<bool> {
        let status = agent.status()?;
        let rows = status["neighbours"].as_array().context("no neighbours in the status")?;
        Ok(rows.iter().any(|row| row["dies_before_the_cut"] == true))
    };
    wait_until("status says that packets die", LIMIT, || dies().unwrap_or(false))?;
    // By then the listings of the flag itself are over.
    std::thread::sleep(Duration::from_secs(2));
    new_ones_are_deleted(&cluster, Family::V4, LIMIT)
}

#[test]
fn observe_mode_and_an_unknown_proxy_let_nothing_go() -> Result<()> {
    for extra in [&["--proxy", "auto", "--mode", "observe"], &["--proxy", "none", "--mode", "enforce"]] {
        let cluster = Cluster::new(Options::default())?;
        let agent = cluster.agent_with(extra)?;
        let sets = with_affinity(&cluster)?;
        let _client = stuck_to_b(&cluster, &sets)?;
        let before = names(&entries(&cluster, cluster.b.pod_address(Family::V4)));
        agent.expect(&["flag", "node-b", "--wait"])?;
        // In this time at least one more pass would come.
        std::thread::sleep(Duration::from_secs(3));
        ensure!(names(&entries(&cluster, cluster.b.pod_address(Family::V4))) == before, "{extra:?}");
        let set = cluster.a.ns.exec(&format!("nft list set ip kube-proxy {}", sets[0]))?;
        ensure!(set.contains("expires"), "{set}");
        let status = agent.status()?;
        ensure!(status["stale"].as_object().is_some_and(serde_json::Map::is_empty), "{}", status["stale"]);
        let told = agent.expect(&["status"])?;
        ensure!(told.contains("datapath only (--proxy says so)") == (extra[1] == "none"), "{told}");
    }
    Ok(())
}

/// Flows of another tenant between the same addresses and ports, in another conntrack zone, stay.
#[test]
fn entries_of_other_zones_stay() -> Result<()> {
    for (extra, ours) in [(&[][..], 0), (&["--conntrack-zone", "7"][..], 7)] {
        let cluster = Cluster::new(Options::default())?;
        let agent = cluster.agent_with(&[&["--proxy", "auto"], extra].concat())?;
        let b = cluster.b.pod_address(Family::V4);
        for zone in [0, 7] {
            for (protocol, more) in [("udp", ""), ("tcp", "--state ESTABLISHED -u SEEN_REPLY,ASSURED")] {
                cluster.a.ns.exec(&format!(
                    "conntrack -I -p {protocol} {more} -s 198.51.100.9 -d {b} --sport 4000 --dport 53 --timeout 600 \
                     --zone {zone}"
                ))?;
            }
        }
        let of = |zone: u16| {
            let mut flows = entries(&cluster, b);
            flows.retain(|flow| flow.is_in(zone));
            flows
        };
        let theirs = of(7 - ours);
        ensure!((of(ours).len(), theirs.len()) == (2, 2), "{:?}", entries(&cluster, b));
        let listed: serde_json::Value = serde_json::from_str(&agent.expect(&["flows", "-o", "json"])?)?;
        let zones: Vec<_> =
            listed["items"].as_array().context("flows")?.iter().map(|row| &row["zone"]).collect();
        ensure!(zones == [ours, ours], "{listed}");
        ensure!(agent.status()?["conntrack"]["zone"] == ours, "{}", agent.status()?["conntrack"]);
        agent.expect(&["flag", "node-b", "--wait"])?;
        let row = agent.status()?["challenged"]["node-b"].clone();
        ensure!(row["challenged"] == 1, "{row}");
        wait_until("entries of our zone gone", LIMIT, || of(ours).is_empty())?;
        // In this time at least one more pass would come.
        std::thread::sleep(Duration::from_secs(2));
        ensure!(
            names(&of(7 - ours)) == names(&theirs),
            "entries of another zone changed: {:?}",
            entries(&cluster, b)
        );
    }
    Ok(())
}

/// There is no kube-proxy, or there are traces of two modes.
#[test]
fn where_it_is_not_clear_who_forwards_it_says_so() -> Result<()> {
    for (proxy, why) in
        [(Proxy::Nobody, "no trace of kube-proxy here"), (Proxy::Nftables, "traces of several modes: ")]
    {
        let cluster = Cluster::new(Options { proxy, ..Options::default() })?;
        if proxy == Proxy::Nftables {
            cluster.a.ns.exec("iptables-nft -t nat -N KUBE-SERVICES")?;
        }
        let agent = cluster.agent_with(&["--proxy", "auto"])?;
        agent.flag("node-b")?;
        let told = agent.expect(&["status"])?;
        ensure!(told.contains(&format!("datapath only ({why}")), "{told}");
        let status = agent.status()?;
        ensure!(status["proxy"]["mode"].is_null(), "{}", status["proxy"]);
        ensure!(status["stale"].as_object().is_some_and(serde_json::Map::is_empty), "{}", status["stale"]);
    }
    Ok(())
}

#[test]
fn an_agent_deletes_stale_flows_to_its_own_node() -> Result<()> {
    let cluster = Cluster::new(Options::default())?;
    // By this file B's pod runs on the agent's node.
    let file = format!(
        "nodes:\n  - name: node-a\n    address: {}\n    backends:\n      - address: {}\n  - name: node-c\n    address: {}\n    backends:\n      - address: {}\n",
        cluster.a.address(Family::V4),
        cluster.b.pod_address(Family::V4),
        cluster.c.address(Family::V4),
        cluster.c.pod_address(Family::V4),
    );
    let agent =
        Agent::start_with(&cluster.a.ns, "node-a", &cluster.interfaces(), &file, &["--proxy", "auto"])?;
    let dns = cluster.service(Service::Dns, Place::Outside, Family::V4);
    let client = UdpConn::connect_to(&cluster.client, dns, "node-b", LIMIT)?;
    cluster.b.freeze()?;
    agent.expect(&["flag", "node-a", "--force"])?;
    answered_by_c(&cluster, Family::V4, &client, LIMIT)
}
