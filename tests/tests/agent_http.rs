//! The agent's HTTP port (`--http`): which paths are answered, that nothing can be changed there, what the metrics show, and that neither a port that is taken nor
//! slow clients hold up the agent.

use std::{
    collections::BTreeSet,
    io::{self, Read as _, Write as _},
    net::{SocketAddr, TcpListener, TcpStream},
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, ensure};
use nodefence::{
    flags::monotonic_ns,
    report::{Request, Status},
};
use nodefence_tests::{
    Agent, Netns,
    agent::verdict_until,
    client::wait_until,
    four_nodes,
    watch::{figure, held},
};
use serde_json::Value;

const ADDRESS: &str = "127.0.0.1:9808";
/// The limit of waits that have no promised time.
const LIMIT: Duration = Duration::from_secs(20);
/// The promised time in which a client of the socket is answered, also beside slow clients of the HTTP port.
const ANSWERED: Duration = Duration::from_secs(1);

fn start(more: &[&str]) -> Result<(Arc<Netns>, Agent)> {
    let ns = four_nodes::namespace("http")?;
    let agent = Agent::start_with(&ns, "node-a", &["v0"], four_nodes::FILE, more)?;
    Ok((ns, agent))
}

fn address() -> Result<SocketAddr> {
    Ok(ADDRESS.parse()?)
}

fn connect(ns: &Netns) -> Result<TcpStream> {
    let to = address()?;
    let stream = ns.run(move || TcpStream::connect_timeout(&to, LIMIT))?;
    stream.set_read_timeout(Some(LIMIT))?;
    Ok(stream)
}

struct Answer {
    status: u16,
    head: String,
    body: String,
}

fn ask(ns: &Netns, method: &str, path: &str, body: &str) -> Result<Answer> {
    let mut stream = connect(ns)?;
    let length = body.len();
    stream.write_all(
        format!("{method} {path} HTTP/1.1\r\nHost: agent\r\nContent-Length: {length}\r\n\r\n{body}")
            .as_bytes(),
    )?;
    let mut bytes = Vec::new();
    // The agent closes without reading the body, so the end may be a RST.
    match stream.read_to_end(&mut bytes) {
        Err(error) if error.kind() != io::ErrorKind::ConnectionReset => return Err(error.into()),
        _ => {}
    }
    let text = String::from_utf8(bytes)?;
    let (head, body) = text.split_once("\r\n\r\n").with_context(|| format!("{method} {path}: {text}"))?;
    let status = head.split(' ').nth(1).context("no status")?.parse()?;
    Ok(Answer { status, head: head.to_owned(), body: body.to_owned() })
}

fn get(ns: &Netns, path: &str) -> Result<Answer> {
    ask(ns, "GET", path, "")
}

fn metrics(ns: &Netns) -> Result<String> {
    let Answer { status, body, .. } = get(ns, "/metrics")?;
    ensure!(status == 200, "{status}: {body}");
    Ok(body)
}

/// The value of the series with this name and these labels.
fn value(metrics: &str, series: &str) -> Option<f64> {
    metrics.lines().find_map(|line| line.strip_prefix(series)?.strip_prefix(' ')?.parse().ok())
}

#[test]
fn each_path_has_its_answer() -> Result<()> {
    let (ns, agent) = start(&["--http", ADDRESS])?;
    for path in ["/livez", "/readyz"] {
        let Answer { status, body, .. } = get(&ns, path)?;
        ensure!(status == 200 && body == "ok\n", "{path}: {status} {body}");
    }
    let answer = get(&ns, "/v1/status")?;
    ensure!(answer.status == 200 && answer.head.contains("application/json"), "{}", answer.head);
    let over_http: Value = serde_json::from_str(&answer.body)?;
    let by_command = agent.status()?;
    let fields =
        |status: &Value| -> Option<BTreeSet<String>> { Some(status.as_object()?.keys().cloned().collect()) };
    ensure!(fields(&over_http).is_some() && fields(&over_http) == fields(&by_command), "{over_http}");
    for field in ["schema_version", "kind", "state", "node", "pid", "version"] {
        ensure!(over_http[field] == by_command[field], "{field}: {over_http} {by_command}");
    }
    Ok(())
}

#[test]
fn nothing_is_served_unless_it_is_told_where() -> Result<()> {
    let (ns, _agent) = start(&[])?;
    for file in ["/proc/thread-self/net/tcp", "/proc/thread-self/net/tcp6"] {
        let sockets = ns.run(move || std::fs::read_to_string(file))?;
        // The fourth field is the state, and 0A is LISTEN.
        let listening = sockets.lines().filter(|line| line.split_whitespace().nth(3) == Some("0A"));
        ensure!(listening.count() == 0, "{file}: {sockets}");
    }
    Ok(())
}

/// The names of all requests of the socket, as the agent itself lists them where it gets another one.
fn verbs() -> Result<Vec<String>> {
    let error = serde_json::from_str::<Request>("{\"verb\":\"dance\"}").expect_err("it dances").to_string();
    let names = error.split('`').skip(1).step_by(2).filter(|name| *name != "dance");
    let names: Vec<String> = names.map(str::to_owned).collect();
    let known = ["flag", "unflag", "mode", "repair", "hand-over", "flows", "status", "ready"];
    ensure!(known.iter().all(|verb| names.iter().any(|name| name == verb)), "{error}");
    Ok(names)
}

#[test]
fn no_request_of_the_socket_is_answered_over_tcp() -> Result<()> {
    let (ns, agent) = start(&["--http", ADDRESS])?;
    let before = (agent.json(&["nodes"])?, agent.json(&["mode"])?);
    for verb in verbs()? {
        let body = format!("{{\"verb\":\"{verb}\",\"node\":\"node-b\",\"mode\":\"observe\",\"kinds\":[]}}");
        for path in [format!("/v1/{verb}"), format!("/{verb}"), format!("/v1/{verb}/node-b")] {
            for method in ["GET", "POST", "PUT", "PATCH", "DELETE"] {
                let Answer { status, body, .. } = ask(&ns, method, &path, &body)?;
                let expected = match (method, path.as_str()) {
                    ("GET", "/v1/status") => 200,
                    (_, "/v1/status") => 405,
                    _ => 404,
                };
                ensure!(status == expected, "{method} {path}: {status} {body}");
            }
        }
    }
    // A request in the socket's own form is no HTTP.
    let mut stream = connect(&ns)?;
    stream.write_all(b"{\"verb\":\"flag\",\"node\":\"node-b\"}\n")?;
    let mut answer = String::new();
    let _reset = stream.read_to_string(&mut answer);
    ensure!(!answer.contains("200 OK") && !answer.contains("node-b"), "{answer}");
    let after = (agent.json(&["nodes"])?, agent.json(&["mode"])?);
    ensure!(before == after, "something has changed: {before:?} {after:?}");
    Ok(())
}

#[test]
fn metrics_are_well_formed_and_show_a_flag() -> Result<()> {
    let (ns, agent) = start(&["--http", ADDRESS])?;
    let answer = get(&ns, "/metrics")?;
    ensure!(
        answer.head.contains("content-type: text/plain; version=0.0.4; charset=utf-8"),
        "{}",
        answer.head
    );
    let text = answer.body;
    let mut kinds = BTreeSet::new();
    for line in text.lines() {
        if let Some(line) = line.strip_prefix("# TYPE ") {
            let (name, kind) = line.split_once(' ').context("a type")?;
            ensure!(kind == "gauge" || kind == "counter", "{line}");
            kinds.insert(name.to_owned());
        } else if !line.starts_with("# HELP ") {
            let (series, value) = line.rsplit_once(' ').context("a value")?;
            value.parse::<f64>().with_context(|| line.to_owned())?;
            let (name, labels) = series.split_once('{').unwrap_or((series, "}"));
            ensure!(kinds.contains(name) && name.starts_with("nodefence_"), "{line}");
            ensure!(labels.ends_with('}'), "{line}");
        }
    }
    ensure!(kinds.len() > 20, "{text}");
    for (series, expected) in [
        ("nodefence_nodes", 4.0),
        ("nodefence_backends", 5.0),
        ("nodefence_state{state=\"ok\"}", 1.0),
        ("nodefence_mode{mode=\"enforce\"}", 1.0),
        ("nodefence_interface_attached", 1.0),
        ("nodefence_interface_blind", 0.0),
        ("nodefence_source_away", 0.0),
        ("nodefence_cut_packets_total{reason=\"refused\"}", 0.0),
    ] {
        ensure!(value(&text, series) == Some(expected), "{series}: {text}");
    }
    ensure!(value(&text, "nodefence_renewal_age_seconds").is_some_and(|age| age < 3.0), "{text}");
    let flagged = "nodefence_verdict{node=\"node-b\",cause=\"operator\",standing=\"enforced\"}";
    ensure!(value(&text, flagged).is_none(), "{text}");
    agent.flag("node-b")?;
    let shows = |shown: Option<f64>| metrics(&ns).is_ok_and(|text| value(&text, flagged) == shown);
    wait_until("the flag in the metrics", LIMIT, || shows(Some(1.0)))?;
    // A packet that is cut is counted.
    let to: SocketAddr = "10.9.1.1:80".parse()?;
    ns.ip("neigh add 10.9.1.1 lladdr 02:00:00:00:00:01 dev v0 nud permanent")?;
    let refused = ns.run(move || TcpStream::connect_timeout(&to, LIMIT)).map(drop);
    ensure!(
        refused.as_ref().is_err_and(|error| error.kind() == io::ErrorKind::ConnectionRefused),
        "{refused:?}"
    );
    let cut = |text: &str| {
        let counters = text.lines().filter(|line| line.starts_with("nodefence_cut_packets_total{"));
        counters.filter_map(|line| line.rsplit_once(' ')?.1.parse::<f64>().ok()).sum::<f64>()
    };
    wait_until("the cut packet in the metrics", LIMIT, || metrics(&ns).is_ok_and(|text| cut(&text) >= 1.0))?;
    agent.unflag("node-b")?;
    wait_until("the metrics without the flag", LIMIT, || shows(None)).map(drop)
}

/// The new agent of a rollout starts while the old one has the port.
#[test]
fn an_agent_whose_port_is_taken_runs_and_opens_it_later() -> Result<()> {
    let ns = four_nodes::namespace("http")?;
    let to = address()?;
    let taken = ns.run(move || TcpListener::bind(to))?;
    let agent = Agent::start_with(&ns, "node-a", &["v0"], four_nodes::FILE, &["--http", ADDRESS])?;
    agent.wait_for_log("event=\"http-not-bound\"")?;
    agent.flag("node-b")?;
    let log = agent.log();
    let warning = log.lines().find(|line| line.contains("http-not-bound")).context("no warning")?;
    ensure!(warning.contains("WARN") && warning.contains(ADDRESS), "{warning}");
    ensure!(!log.contains("http-listens"), "{log}");
    drop(taken);
    wait_until("the port", LIMIT, || get(&ns, "/livez").is_ok_and(|answer| answer.status == 200))?;
    agent.wait_for_log("event=\"http-listens\"")?;
    let times = agent.log().matches("http-not-bound").count();
    ensure!(times == 1, "warned {times} times of one reason");
    Ok(())
}

#[test]
fn an_agent_that_takes_over_has_the_port() -> Result<()> {
    let (ns, mut agent) = start(&["--http", ADDRESS])?;
    let pid = |ns: &Netns| -> Result<i64> {
        let status: Value = serde_json::from_str(&get(ns, "/v1/status")?.body)?;
        status["pid"].as_i64().context("no pid")
    };
    let before = pid(&ns)?;
    agent.take_over_with(&["--http", ADDRESS])?;
    let now = i64::from(agent.proc()?.pid().as_raw());
    ensure!(before != now);
    wait_until("the port of the new agent", LIMIT, || pid(&ns).is_ok_and(|pid| pid == now)).map(drop)
}

/// Whoever looks sees that the agent is off, and its pod does not count as broken.
#[test]
fn an_agent_that_is_off_says_so() -> Result<()> {
    let (ns, agent) = start(&["--http", ADDRESS])?;
    let status = |ns: &Netns| -> Result<Value> { Ok(serde_json::from_str(&get(ns, "/v1/status")?.body)?) };
    let pid = status(&ns)?["pid"].clone();
    agent.expect(&["off", "--reason", "a test"])?;
    wait_until("the status is that of an agent that is off", LIMIT, || {
        status(&ns).is_ok_and(|status| status["state"] == "off")
    })?;
    let over_http = status(&ns)?;
    ensure!(over_http["pid"] == pid && over_http["off"]["reason"] == "a test", "{over_http}");
    ensure!(over_http == agent.status()?, "{over_http}");
    for path in ["/livez", "/readyz"] {
        let Answer { status, body, .. } = get(&ns, path)?;
        ensure!(status == 200 && body == "ok\n", "{path}: {status} {body}");
    }
    let ready = agent.cli(&["status", "--ready"])?;
    ensure!(ready.status.code() == Some(0), "{ready:?}");
    let text = metrics(&ns)?;
    for (series, expected) in [
        ("nodefence_mode{mode=\"off\"}", Some(1.0)),
        ("nodefence_mode{mode=\"enforce\"}", Some(0.0)),
        ("nodefence_state{state=\"off\"}", Some(1.0)),
        ("nodefence_interface_attached", None),
    ] {
        ensure!(value(&text, series) == expected, "{series}: {text}");
    }
    agent.expect(&["on"])?;
    let runs =
        || metrics(&ns).is_ok_and(|text| value(&text, "nodefence_mode{mode=\"enforce\"}") == Some(1.0));
    wait_until("the metrics of an agent that runs", LIMIT, runs)?;
    ensure!(status(&ns)?["state"] == "ok" && get(&ns, "/readyz")?.status == 200);
    Ok(())
}

#[test]
fn slow_clients_hold_up_neither_the_agent_nor_a_scrape() -> Result<()> {
    let (ns, agent) = start(&["--http", ADDRESS])?;
    agent.flag("node-b")?;
    let index = u32::try_from(agent.node("node-b")?["index"].as_u64().context("no index")?)?;
    let mut slow = Vec::new();
    for number in 0..200 {
        let mut stream = connect(&ns)?;
        if number % 2 == 0 {
            // The agent may have closed it by now.
            let _closed = stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: ");
        }
        slow.push(stream);
    }
    let first = verdict_until(&ns, index)?;
    let scraping = Instant::now();
    ensure!(get(&ns, "/metrics")?.status == 200);
    figure("a scrape beside 200 slow clients", scraping.elapsed().as_secs_f64(), "s");
    let began = Instant::now();
    // Until each slow client was closed, or would have been.
    let mut longest = (began, Duration::ZERO);
    while began.elapsed() < Duration::from_secs(6) {
        let asked = Instant::now();
        agent.ask::<Status>(&Request::Status)?;
        let took = asked.elapsed();
        if took > longest.1 {
            longest = (asked, took);
        }
        let until = verdict_until(&ns, index)?;
        ensure!(until > monotonic_ns(), "the verdict has lapsed");
        std::thread::sleep(Duration::from_millis(50));
    }
    held("a status beside slow clients of the HTTP port", ANSWERED, longest.0, longest.1)?;
    ensure!(verdict_until(&ns, index)? > first, "the verdict was not renewed");
    let answer = get(&ns, "/livez")?;
    ensure!(answer.status == 200, "{}", answer.body);
    for stream in &mut slow {
        let mut rest = Vec::new();
        match stream.read_to_end(&mut rest) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                anyhow::bail!("a slow client is still connected")
            }
            _ => {}
        }
    }
    Ok(())
}
