//! Each line of `status`.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use nodefence_tests::{
    Agent, Cluster, Conn, Family, Netns, Place, client::wait_until, ipvs::cluster, promises::RENEWED,
    topology::Service, watch::held,
};
use serde_json::{Value, json};

use super::common::Kernel;

/// The limit of waits that have no promised time.
const LIMIT: Duration = Duration::from_secs(60);
/// `status` shows a renewal that is older than this as a problem.
const LATE: Duration = Duration::from_secs(2);
/// The width of the column of names.
const NAME: usize = 16;

/// The lines of `status`: their names and values.
type Lines = Vec<(String, String)>;

/// The text of `status`: first the state and the warnings, and then the lines with their names. A line without a name continues the line before it.
fn told(agent: &Agent) -> Result<(Vec<String>, Lines)> {
    let text = agent.expect(&["status", "-o", "wide"])?;
    // A warning begins with two spaces. A line that continues another one begins with more.
    let is_above = |&(at, line): &(usize, &str)| at == 0 || line.starts_with("  NF");
    let above =
        text.lines().enumerate().take_while(is_above).map(|(_, line)| line.to_owned()).collect::<Vec<_>>();
    let line = |line: &str| {
        let (name, value) = line.split_at_checked(NAME).with_context(|| line.to_owned())?;
        Ok((name.trim().to_owned(), value.to_owned()))
    };
    let lines = text.lines().skip(above.len()).map(line).collect::<Result<_>>()?;
    Ok((above, lines))
}

/// The present second, in the format of `status`.
fn now(ns: &Netns) -> Result<String> {
    Ok(ns.exec("date -u +%Y-%m-%dT%H:%M:%SZ")?.trim().to_owned())
}

/// The number of entries for which a pinned map has room.
fn room(ns: &Netns, map: &str) -> Result<u64> {
    let text = ns.exec(&format!("bpftool -j map show pinned /sys/fs/bpf/nodefence/v3/{map}"))?;
    let map: Value = serde_json::from_str(&text)?;
    map["max_entries"].as_u64().context(text)
}

fn this_kernel() -> Result<String> {
    let kernel = Kernel::here()?;
    Ok(format!(
        "idle clients are challenged by SYN|ACK, then by {}; conntrack entries are deleted {}; RSTs are {}",
        if kernel.translates_the_past() { "ACK" } else { "ACK on flows made liberal" },
        kernel.deletes(),
        if kernel.ipvs_translates() {
            "made in place"
        } else {
            "injected, since IPVS does not translate one made in place"
        }
    ))
}

/// The lines that do not depend on flags, while there is no problem. `nodes` has the numbers of nodes and backends.
fn of_the_machine(
    cluster: &Cluster,
    agent: &Agent,
    status: &Value,
    nodes: [usize; 2],
) -> Result<Vec<(String, String)>> {
    let ns = &cluster.a.ns;
    let text = |value: &Value| value.as_str().map(str::to_owned).context("no text");
    let lines = [
        (
            "Agent",
            format!(
                "{} (process {}), since {}",
                env!("CARGO_PKG_VERSION"),
                agent.proc()?.pid(),
                text(&status["started"])?
            ),
        ),
        ("Node", "node-a".to_owned()),
        ("Mode", "enforce, answer refuse".to_owned()),
        (
            "Cluster file",
            format!(
                "{}: {} nodes, {} backends, 3 Services with 12 endpoints, read {}",
                agent.cluster_file().display(),
                nodes[0],
                nodes[1],
                text(&status["cluster"]["loaded"])?
            ),
        ),
        ("View", format!("number {}", status["cluster"]["view"])),
        ("Maps", format!("/sys/fs/bpf/nodefence/v3, room for {} backends", room(ns, "backends")?)),
        ("Renewed", String::new()),
        (
            "Interface",
            format!(
                "eth0 (index {}): l2, TC {}, XDP off",
                ns.ifindex("eth0")?,
                Kernel::here()?.attaches_by()
            ),
        ),
        ("This kernel", this_kernel()?),
        (
            "Not challenged",
            "idle clients of flows that conntrack does not list; those flows are cut when they next send:"
                .to_owned(),
        ),
        ("", "- flows that bypass conntrack (NOTRACK)".to_owned()),
    ];
    Ok(lines.map(|(name, value)| (name.to_owned(), value)).into())
}

/// Compares line by line. Of the lines on the renewal and on the view the age is only checked against a limit.
fn same(
    (above, found): &(Vec<String>, Lines),
    first: &[String],
    expected: &[(String, String)],
) -> Result<()> {
    ensure!(above == first, "{above:#?} in place of {first:#?}");
    for (at, expected) in expected.iter().enumerate() {
        let found = found.get(at).with_context(|| format!("{expected:?} is missing"))?;
        if found.0 == "Renewed" && expected.0 == "Renewed" {
            let (age, more) = found.1.split_once(" s ago").context("no age")?;
            let age = Duration::from_secs_f64(age.parse()?);
            held("verdicts renewed", RENEWED, Instant::now() - age, age)?;
            ensure!(more.is_empty() == (age <= LATE), "{found:?}");
            continue;
        }
        if found.0 == "View" && expected.0 == "View" {
            let (number, age) = found.1.split_once(", read ").context("no age")?;
            let age = age.strip_suffix("s ago").with_context(|| format!("{age}: minutes old"))?;
            ensure!(number == expected.1 && age.parse::<u64>()? < LIMIT.as_secs(), "{found:?}");
            continue;
        }
        ensure!(found == expected, "line {at}: {found:?} in place of {expected:?}");
    }
    ensure!(found.len() == expected.len(), "{:?} too many", &found[expected.len()..]);
    Ok(())
}

fn lines(more: &[(&str, String)]) -> Vec<(String, String)> {
    more.iter().map(|(name, value)| ((*name).to_owned(), value.clone())).collect()
}

/// A TCP flow to node B whose client waits for an answer.
fn idle(cluster: &Cluster) -> Result<Conn> {
    let web = cluster.service(Service::Web, Place::Pod, Family::V4);
    let mut idle = Conn::connect_to(cluster.at(Place::Pod), web, "node-b", LIMIT)?;
    idle.long_poll()?;
    idle.settle()?;
    Ok(idle)
}

fn next_hops(status: &Value) -> usize {
    status["neighbours"].as_array().map_or(0, Vec::len)
}

/// The line on a next hop behind eth0.
fn next_hop(ns: &Netns, address: &str) -> Result<String> {
    let known = ns.exec(&format!("ip neigh show {address} dev eth0"))?.contains("lladdr");
    let state = if known {
        "held: packets reach the cut even if its link is down"
    } else {
        "its link-layer address was never seen: packets die there, senders get EHOSTUNREACH"
    };
    Ok(format!("{address} on eth0: {state}"))
}

const RESCUED: &str = "new connections and datagrams that meet the cut are balanced anew (of own sockets: not tried yet); 0 rescued, 0 refused after their \
                       tries";

const GUARD: &str = "child: the agent starts it once something is drained";

#[test]
fn each_line_is_true() -> Result<()> {
    let cluster = cluster()?;
    let ns = &cluster.a.ns;
    let before = now(ns)?;
    let agent = Agent::start_with(
        ns,
        "node-a",
        &cluster.interfaces(),
        &cluster.services_file(),
        &["--proxy", "ipvs"],
    )?;
    let after = now(ns)?;
    let _idle = idle(&cluster)?;
    let status = agent.status()?;
    for time in [&status["started"], &status["cluster"]["loaded"]] {
        ensure!(
            time.as_str().is_some_and(|time| *before <= *time && *time <= *after),
            "{before}, {time}, {after}"
        );
    }
    let rest = [
        ("kube-proxy", "ipvs (--proxy says so)".to_owned()),
        ("IPVS guard", GUARD.to_owned()),
        ("Rescue", RESCUED.to_owned()),
        ("Flagged", "none".to_owned()),
    ];
    let expected = [of_the_machine(&cluster, &agent, &status, [3, 8])?, lines(&rest)].concat();
    same(&told(&agent)?, &["OK: no node is cut".to_owned()], &expected)?;

    agent.expect(&["flag", "node-b", "--for", "forever", "--reason", "disk blocked", "--wait"])?;
    // The agent looks at next hops each second.
    let out = || {
        agent
            .status()
            .is_ok_and(|status| status["ipvs"]["nodes"]["node-b"]["drained"] == 12 && next_hops(&status) == 2)
    };
    wait_until("node B is drained", LIMIT, out).with_context(|| agent.log())?;
    let status = agent.status()?;
    let asked = &status["challenged"]["node-b"];
    let seconds = asked["seconds"].as_f64().context("how long it took")?;
    let rest = [
        ("Challenged", format!("node-b: 1 flows listed, 1 challenged, 1 of them closed in {seconds:.3} s")),
        ("kube-proxy", "ipvs (--proxy says so)".to_owned()),
        ("Next hop", next_hop(ns, "10.2.0.12")?),
        ("Next hop", next_hop(ns, "fd00:2::12")?),
        ("IPVS guard", GUARD.to_owned()),
        (
            "IPVS",
            "node-b: 12 destinations drained, 0 with connections left, 0 services exempt, 0 failed"
                .to_owned(),
        ),
        ("Rescue", RESCUED.to_owned()),
        ("Flagged", "node-b (refuse): flagged by root until unflagged: disk blocked".to_owned()),
    ];
    let expected = [of_the_machine(&cluster, &agent, &status, [3, 8])?, lines(&rest)].concat();
    same(&told(&agent)?, &["OK: 1 node is cut".to_owned()], &expected)?;
    ensure!(asked["challenged"] == 1 && asked["closed"] == 1, "{asked}");
    ensure!(status["ipvs"]["loaded"] == true && status["ipvs"]["problems"] == json!([]), "{status}");
    ensure!(status["flagged"][0]["flag"]["reason"] == "disk blocked", "{status}");
    let probe = &status["probe"]["ipvs_translates"]["found"];
    ensure!(*probe == Kernel::here()?.ipvs_translates(), "{probe}");
    Ok(())
}

/// The number of backends for which the map has room.
const ROOM: &str = "6";

/// The test causes several problems, and each has its line.
#[test]
fn each_problem_has_its_line() -> Result<()> {
    let cluster = cluster()?;
    let ns = &cluster.a.ns;
    ns.sysctl("ipv4/vs/expire_nodest_conn", "0")?;
    ns.sysctl("ipv4/vs/conntrack", "0")?;
    ns.nft(
        "table inet raw { chain fast { type filter hook prerouting priority raw; udp dport 7 notrack; }; }",
    )?;
    // The packets to this node's pod leave by a device that is not attached.
    let uncovered =
        "  - name: node-d\n    address: 192.0.2.77\n    backends:\n      - address: 192.0.2.78\nservices:\n";
    let file = cluster.services_file().replacen("services:\n", uncovered, 1);
    let args = ["--proxy", "ipvs", "--max-backends", ROOM];
    let agent = Agent::start_with(ns, "node-a", &cluster.interfaces(), &file, &args)?;
    for node in ["node-b", "node-c"] {
        agent.expect(&["flag", node, "--for", "forever", "--force", "--reason", "test"])?;
    }
    agent.rewrite_cluster_file("nodes: [")?;
    let refused = || agent.status().is_ok_and(|status| status["cluster"]["error"].is_string());
    wait_until("the file is refused", LIMIT, refused)?;
    let is_exempt = |node: &str| {
        agent.status().is_ok_and(|status| {
            status["ipvs"]["nodes"][node]["exempt_services"] == SERVERS.len()
                && status["challenged"][node].is_object()
                && next_hops(&status) == 4
        })
    };
    wait_until("all services are exempt", LIMIT, || is_exempt("node-b") && is_exempt("node-c"))
        .with_context(|| format!("{:#}", agent.status().unwrap_or_default()))?;
    let status = agent.status()?;
    let left_out: Vec<&str> = status["dataplane"]["left_out_first"]
        .as_array()
        .into_iter()
        .flatten()
        .filter_map(Value::as_str)
        .collect();
    ensure!(left_out.len() == 3 && left_out.iter().all(|address| file.contains(address)), "{left_out:?}");
    let mut expected = of_the_machine(&cluster, &agent, &status, [4, 9])?;
    let at = |expected: &[(String, String)], name: &str| {
        expected.iter().position(|line| line.0 == name).map(|at| at + 1).context(name.to_owned())
    };
    let error = status["cluster"]["error"].as_str().context("no error")?;
    let uncovered = "192.0.2.78 on node-d: leaves by out0, which is not attached";
    let above = [
        "DEGRADED: 4 warnings: NF09, NF19, NF24, NF27".to_owned(),
        format!("  NF09  the cluster file was not taken, the last good view holds: {error}"),
        format!("  NF19  3 backends do not fit and pass: {} (room for {ROOM})", left_out.join(", ")),
        format!("  NF24  1 backends are not covered, and not cut here; the first: {uncovered}"),
        "  NF27  net.ipv4.vs.expire_nodest_conn is 0: destinations of flagged nodes get weight 0, and keep the connections they have".to_owned(),
    ];
    let after = at(&expected, "Interface")?;
    let more = lines(&[("Not covered", "1 backend".to_owned()), ("", uncovered.to_owned())]);
    expected.splice(after..after, more);
    let asked = |node: &str| {
        let row = &status["challenged"][node];
        let seconds = row["seconds"].as_f64().context("how long it took")?;
        anyhow::Ok((
            "Challenged",
            format!("{node}: 0 flows listed, 0 challenged, 0 of them closed in {seconds:.3} s"),
        ))
    };
    expected.extend(lines(&[
        ("", "- all flows at present: conntrack's table is empty (the kernel fills it only where a NAT or a stateful rule is loaded)".to_owned()),
        ("", "- flows through IPVS: net.ipv4.vs.conntrack is 0".to_owned()),
        ("", "- flows that a notrack rule exempts (nftables raw fast)".to_owned()),
        asked("node-b")?,
        asked("node-c")?,
        ("kube-proxy", "ipvs (--proxy says so)".to_owned()),
    ]));
    for row in status["neighbours"].as_array().into_iter().flatten() {
        let address = row["address"].as_str().context("no address")?;
        expected.push(("Next hop".to_owned(), next_hop(ns, address)?));
    }
    expected.push(("Exempt".to_owned(), "12 ports of flagged nodes, not cut".to_owned()));
    expected.extend(EXEMPT.map(|(node, port, service)| {
        (String::new(), format!("{port} on {node}: all that port {service} may use here is on flagged nodes"))
    }));
    expected.push(("IPVS guard".to_owned(), GUARD.to_owned()));
    for node in ["node-b", "node-c"] {
        expected.push((
            "IPVS".to_owned(),
            format!(
                "{node}: 0 destinations drained, 0 with connections left, {} services exempt, 0 failed",
                SERVERS.len()
            ),
        ));
        expected.extend(SERVERS.map(|server| {
            (String::new(), format!("exempt: {server}: all its destinations are on flagged nodes"))
        }));
    }
    expected.extend(lines(&[
        ("Rescue", "none, new connections are refused: net.ipv4.vs.expire_nodest_conn is 0: IPVS holds on to connections; 0 rescued, 0 refused after their tries".to_owned()),
        ("Flagged", "node-b (refuse): flagged by root until unflagged: test".to_owned()),
        ("Flagged", "node-c (refuse): flagged by root until unflagged: test".to_owned()),
    ]));
    same(&told(&agent)?, &above, &expected)
}

/// The first ten of twelve exempt ports, in their order.
const EXEMPT: [(&str, &str, &str); 10] = [
    ("node-b", "10.2.0.12:9100/tcp", "80 of default/host"),
    ("node-b", "10.244.2.2:5300/udp", "53 of default/dns"),
    ("node-b", "10.244.2.2:8080/tcp", "80 of default/web"),
    ("node-b", "[fd00:2::12]:9100/tcp", "80 of default/host"),
    ("node-b", "[fd00:244:2::2]:5300/udp", "53 of default/dns"),
    ("node-b", "[fd00:244:2::2]:8080/tcp", "80 of default/web"),
    ("node-c", "10.2.0.13:9100/tcp", "80 of default/host"),
    ("node-c", "10.244.3.2:5300/udp", "53 of default/dns"),
    ("node-c", "10.244.3.2:8080/tcp", "80 of default/web"),
    ("node-c", "[fd00:2::13]:9100/tcp", "80 of default/host"),
];

/// All virtual servers, in their order.
const SERVERS: [&str; 12] = [
    "UDP 10.96.0.10:53",
    "TCP 10.96.0.10:80",
    "TCP 10.96.0.20:80",
    "UDP 192.0.2.1:30053",
    "TCP 192.0.2.1:30080",
    "TCP 192.0.2.1:30091",
    "UDP [2001:db8::1]:30053",
    "TCP [2001:db8::1]:30080",
    "TCP [2001:db8::1]:30091",
    "UDP [fd00:96::a]:53",
    "TCP [fd00:96::a]:80",
    "TCP [fd00:96::14]:80",
];
