//! The incident's servers, clients, judge and report, on a small cluster in namespaces with a real agent. What stands here for a kubelet's node is a server
//! that is stopped.

use std::{
    collections::BTreeMap,
    io::{Read as _, Write as _},
    net::{Ipv4Addr, TcpStream},
    process::Command,
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, bail, ensure};
use nix::sys::signal::Signal;
use nodefence_tests::{
    Agent, Cluster as Small, Netns, Options, Proc, bin,
    client::wait_until,
    incident::{
        Cluster, Incident, Plan, Scenario, Still, Times, Way,
        judge::{Figures, Promise, Verdict, judge},
        manifests,
    },
    watch,
};

const LIMIT: Duration = Duration::from_secs(10);

/// The agent renews its lease for new connections when at least this time is left.
const LEASE_LEFT: Duration = Duration::from_millis(100);
/// No client waits longer.
const WAIT: Duration = Duration::from_secs(2);

/// Short times. A new connection that begins in the first second of the judged time gives up before the node goes on.
const TIMES: Times = Times {
    calm: Duration::from_millis(500),
    flag: Duration::from_millis(500),
    stock: Duration::from_millis(7_500),
    flagged: Duration::from_millis(4_500),
    after: Duration::from_millis(250),
};

/// The small cluster, with the incident's servers in the pods of two nodes.
struct Nodes {
    small: Small,
    servers: BTreeMap<String, Proc>,
    agent: Option<Agent>,
}

impl Nodes {
    fn new(plan: &Plan) -> Result<Self> {
        let small = Small::without_servers(Options::default())?;
        let mut servers = BTreeMap::new();
        for (pod, node) in manifests::pods(plan) {
            let place = if node == small.b.name { &small.b.pod } else { &small.c.pod };
            servers.insert(node.to_owned(), serve(place, &pod, node)?);
        }
        Ok(Self { small, servers, agent: None })
    }

    fn server(&self, node: &str) -> Result<&Proc> {
        self.servers.get(node).with_context(|| format!("no server on {node}"))
    }

    fn agent(&self) -> Result<&Agent> {
        self.agent.as_ref().context("no agent")
    }
}

impl Cluster for Nodes {
    /// The servers run already.
    fn kubectl(&self, _: &[&str], _: Option<&str>) -> Result<String> {
        Ok(String::new())
    }

    /// No node is ever off.
    fn start(&self, _: &str) -> Result<()> {
        Ok(())
    }

    fn freeze(&self, _: Scenario, node: &str) -> Result<()> {
        self.server(node)?.freeze()
    }

    fn thaw(&self, _: Scenario, node: &str) -> Result<()> {
        self.server(node)?.thaw()
    }

    fn flag(&self, _: Scenario, node: &str) -> Result<()> {
        self.agent()?.flag_by_socket(node).map(drop)
    }

    fn unflag(&self, _: Scenario, node: &str) -> Result<()> {
        self.agent()?.unflag(node)
    }

    fn address(&self, _: &str) -> Result<Ipv4Addr> {
        Ok(Ipv4Addr::new(192, 0, 2, 1))
    }

    fn clients(&self) -> &Netns {
        &self.small.client
    }

    fn ipvs(&self, _: &str) -> Result<Option<String>> {
        Ok(None)
    }

    /// There is no guest.
    fn stood_still(&self, _: u64, _: u64) -> Result<Vec<Still>> {
        Ok(Vec::new())
    }
}

fn pod_command(verb: &str) -> Result<Command> {
    let mut command = Command::new(bin("nodefence-pod")?);
    command.arg(verb);
    Ok(command)
}

fn serve(place: &Arc<Netns>, pod: &str, node: &str) -> Result<Proc> {
    let mut command = pod_command("serve")?;
    command.env("POD", pod).env("NODE", node);
    Proc::spawn_ready(place, command)
}

#[test]
fn stock_stalls_and_a_flag_holds_what_is_promised() -> Result<()> {
    let out = tempfile::TempDir::with_prefix("nodefence-incident-")?;
    let plan = Plan {
        image: "unused".to_owned(),
        through: "node-a".to_owned(),
        servers: vec!["node-b".to_owned(), "node-c".to_owned()],
        frozen: "node-b".to_owned(),
        pods_each: 1,
        out: out.path().to_owned(),
        scenario: Scenario::Freeze,
        times: TIMES,
    };
    let mut nodes = Nodes::new(&plan)?;
    let stock = Incident::deploy(&nodes, plan.clone())?.run(Way::Stock)?;
    stalls(&stock)?;

    let (small, extra) = (&nodes.small, ["--proxy", "nftables"]);
    let file = small.services_file();
    let agent = Agent::start_with(&small.a.ns, small.a.name, &small.interfaces(), &file, &extra)?;
    let rescues = || agent.status().is_ok_and(|status| status["rescue"]["idle"].is_null());
    wait_until("an agent that rescues", LIMIT, rescues).with_context(|| agent.log())?;
    nodes.agent = Some(agent);
    let incident = Incident::deploy(&nodes, plan)?;
    let (flagged, verdict, tries) = incident.run_flagged()?;
    let report = incident.report(&stock, &flagged)?;
    if let Some(wrong) = verdict.wrong() {
        let text = format!("{wrong}\n{tries:?}\n{}\n{}", report.text, nodes.agent()?.log());
        return Err(watch::missed(bound(wrong), text));
    }
    let figures = Figures::of(&flagged);
    ensure!(figures.established.reset == figures.established.on_frozen, "{}", report.text);
    ensure!(figures.idle.reset == figures.idle.on_frozen, "{}", report.text);
    ensure!(std::fs::read_to_string(out.path().join("table.txt"))? == report.text);
    let picture = std::fs::read_to_string(out.path().join("timeline.svg"))?;
    ensure!(picture.contains("2. With nodefence") && picture.ends_with("</svg>\n"));
    println!("{}", report.text);
    Ok(())
}

/// The bound that was missed. New connections and datagrams alone are refused where the machine stood still until the agent's lease had lapsed. A wait of the
/// agent for a processor excuses nothing: the clients are load that this test makes (`MakesLoad` in the table of tests), and the agent must keep up with them.
fn bound(wrong: &str) -> Duration {
    let shares = [Promise::FewFail, Promise::FixedPort, Promise::FreshPorts];
    let mut broken = wrong.lines().filter_map(|line| line.strip_prefix("broken: "));
    let is_share = |line: &str| shares.iter().any(|share| line.starts_with(share.text()));
    if broken.all(is_share) { LEASE_LEFT } else { WAIT }
}

/// Checks that a run without a flag shows the fault, and that it would break the promises.
fn stalls(stock: &nodefence_tests::incident::Run) -> Result<()> {
    let figures = Figures::of(stock);
    ensure!(figures.established.never == figures.established.on_frozen, "{figures:?}");
    ensure!((figures.idle.reset, figures.others_ended) == (0, 0), "{figures:?}");
    ensure!(figures.long_waits >= figures.established.on_frozen, "{figures:?}");
    ensure!(figures.new.timed_out > 0 && figures.fresh_ports.lost > 0, "{figures:?}");
    let Verdict::Broken(wrong) = judge(stock)? else {
        bail!("{:?}", judge(stock));
    };
    let broken =
        [Promise::NoStall, Promise::FewFail, Promise::NoTimeOut, Promise::IdleReset, Promise::FreshPorts];
    for promise in broken {
        ensure!(wrong.contains(promise.text()), "not broken: {}\n{wrong}", promise.text());
    }
    ensure!(!wrong.contains(Promise::OthersStay.text()), "{wrong}");
    Ok(())
}

#[test]
fn a_pod_is_probed_and_ends_when_it_is_told_to() -> Result<()> {
    let ns = Arc::new(Netns::new("pod")?);
    let mut server = serve(&ns, "a-pod", "a-node")?;
    let answer = ns.within(|| {
        let mut probe = TcpStream::connect((Ipv4Addr::LOCALHOST, 8081))?;
        probe.set_read_timeout(Some(LIMIT))?;
        probe.write_all(b"GET /healthz HTTP/1.1\r\nHost: a-pod\r\n\r\n")?;
        let mut answer = String::new();
        probe.read_to_string(&mut answer)?;
        Ok(answer)
    })?;
    ensure!(answer.starts_with("HTTP/1.1 200 OK\r\n") && answer.ends_with("\r\n\r\nok\n"), "{answer}");
    server.signal(Signal::SIGTERM)?;
    ensure!(server.wait(LIMIT)?.success());
    // As the first process of its namespace it ends only because it awaits the signal.
    let mut pause = Proc::spawn_as_init(&ns, pod_command("pause")?)?;
    let begun = Instant::now();
    while pause.ended()?.is_none() {
        ensure!(begun.elapsed() < LIMIT, "the sandbox goes on after SIGTERM");
        pause.signal(Signal::SIGTERM)?;
        std::thread::sleep(Duration::from_millis(10));
    }
    ensure!(pause.wait(LIMIT)?.success());
    Ok(())
}
