//! kube-proxy is switched from IPVS to nftables and back, under load, while a node is flagged.

use std::{
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU32, Ordering},
    },
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, bail, ensure};
use nodefence_tests::{
    Conn, Netns, Place,
    audit::{Audit, BOTH, FAULT_AFTER, wait_faults},
    capture::{Capture, Frame},
    client::{UdpConn, wait_until},
    ipvs::saved,
    kube::{
        Beside, KubeProxy, Mode, Setup,
        drained::{wait_drained, weighted},
    },
    load::{Running, repeat},
    promises::RESTORED,
    topology::Service,
    watch::{stood_still, wait_within},
};

/// The limit of waits that have no promised time.
const LIMIT: Duration = Duration::from_secs(120);
/// The longest time that a client waits. While kube-proxy has no rules, nobody answers at a cluster IP.
const PATIENCE: Duration = Duration::from_secs(3);
/// The agent looks every 5 s how kube-proxy forwards, and a look takes less than a second (`agent/mode.rs`).
const NOTICED: Duration = Duration::from_secs(6);
/// How long everything must stay right after a switch: twice as long as a difference takes to become a fault.
const STAYS: Duration = Duration::from_secs(4);

/// What the clients saw, and what they may see.
#[derive(Debug, Default)]
struct Seen {
    /// Requests that node C answered.
    answered: AtomicU32,
    /// Connections and datagrams without an answer.
    failed: AtomicU32,
    /// Every request must be answered that begins from now on.
    strict: AtomicBool,
}

impl Seen {
    fn answered(&self) -> u32 {
        self.answered.load(Ordering::Relaxed)
    }

    /// Makes a request. Node B must not answer.
    fn request(&self, what: &str, request: impl FnOnce() -> std::io::Result<String>) -> Result<()> {
        let strict = self.strict.load(Ordering::Relaxed);
        let begun = Instant::now();
        let count = match request() {
            Ok(who) if who == "node-c" => &self.answered,
            Ok(who) => bail!("{what}: {who} answered, which is flagged"),
            Err(error) if strict => bail!("{what}: {error} after {:?}", begun.elapsed()),
            Err(_) => &self.failed,
        };
        count.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }
}

/// The clients: from each place over both IP versions, by new connections and by new datagrams.
struct Clients {
    running: Running<u64>,
    seen: Arc<Seen>,
}

impl Clients {
    fn start(beside: &Beside) -> Self {
        let Beside { cluster, .. } = beside;
        let (mut running, seen) = (Running::default(), Arc::new(Seen::default()));
        for (place, ns) in
            [(Place::Outside, &cluster.client), (Place::Pod, &cluster.a.pod), (Place::Node, &cluster.a.ns)]
        {
            let to =
                |family| [Service::Web, Service::Dns].map(|service| cluster.service(service, place, family));
            let (ns, seen) = (Arc::clone(ns), Arc::clone(&seen));
            let to: Vec<[SocketAddr; 2]> = BOTH.into_iter().map(to).collect();
            running.start(move |stop| repeat(stop, || ask(&ns, place, &to, &seen)));
        }
        Self { running, seen }
    }

    /// From now on every request must be answered. Waits until some more were.
    fn are_answered(&self) -> Result<()> {
        self.seen.strict.store(true, Ordering::Relaxed);
        let (from, seen) = (self.seen.answered(), &self.seen);
        wait_until("requests are answered", LIMIT, || seen.answered() > from + 60).map(drop)
    }

    /// Requests may fail from now on, until [`Self::are_answered`] is called.
    fn may_fail(&self) {
        self.seen.strict.store(false, Ordering::Relaxed);
    }
}

fn ask(ns: &Netns, place: Place, to: &[[SocketAddr; 2]], seen: &Seen) -> Result<Duration> {
    for [web, dns] in to {
        seen.request(&format!("a connection from {place:?} to {web}"), || {
            Conn::connect(ns, *web, PATIENCE)?.who()
        })?;
        seen.request(&format!("a datagram from {place:?} to {dns}"), || {
            UdpConn::connect(ns, *dns, PATIENCE)?.who()
        })?;
    }
    Ok(Duration::from_millis(10))
}

/// The packets that came to node B's pod.
fn arrived(beside: &Beside, capture: Capture) -> usize {
    let pods = BOTH.map(|family| beside.cluster.b.pod_address(family));
    // An answer of the pod is on its way out, and neighbour discovery is no traffic.
    let came = |frame: &&Frame| {
        let segment = frame.segment().filter(|segment| segment.sport > 0 || segment.unreachable);
        !frame.outgoing && segment.is_some_and(|segment| pods.contains(&segment.dst))
    };
    capture.finish().iter().filter(came).count()
}

fn mode(beside: &Beside) -> Option<String> {
    beside.status().ok()?["proxy"]["mode"].as_str().map(str::to_owned)
}

/// Waits until the agent knows the new mode, in the promised time after kube-proxy's first sync.
fn notices(beside: &Beside, mode_now: Mode) -> Result<()> {
    let synced = Instant::now();
    let took = wait_within("the agent knows kube-proxy's new mode", NOTICED, synced, || {
        mode(beside) == Some(mode_now.to_string())
    });
    println!(
        "{mode_now}: known {:?} after kube-proxy's first sync",
        took.with_context(|| beside.agent.log())?
    );
    Ok(())
}

/// Checks for some time that audits find no fault, and that no problem is shown.
fn stays_clean(beside: &Beside) -> Result<()> {
    wait_faults(&beside.agent, &[])?;
    let since = Instant::now();
    while since.elapsed() < STAYS + stood_still(since) {
        let audit = Audit::of(&beside.agent)?;
        let faults = audit.in_state("fault");
        ensure!(faults.is_empty(), "{faults:?}\n{:#}\n{}", audit.report["differences"], beside.agent.log());
        std::thread::sleep(Duration::from_millis(250));
    }
    let row = beside.status()?["ipvs"].clone();
    ensure!(row["problems"].as_array().is_some_and(Vec::is_empty), "{row}\n{}", beside.agent.log());
    Ok(())
}

/// Takes the flag back. Node B must get new connections in the promised time.
fn comes_back(beside: &Beside) -> Result<()> {
    let unflagged = Instant::now();
    beside.agent.unflag("node-b")?;
    for family in BOTH {
        let to = beside.cluster.service(Service::Web, Place::Outside, family);
        let answers = || {
            let who = Conn::connect(&beside.cluster.client, to, PATIENCE).and_then(|mut conn| conn.who());
            who.is_ok_and(|who| who == "node-b")
        };
        wait_within("node B gets new connections again", RESTORED, unflagged, answers)
            .with_context(|| beside.agent.log())?;
    }
    Ok(())
}

/// kube-proxy's rules and node B's state in one mode, and then in the other: first as a new kube-proxy finds them, then after `kube-proxy --cleanup`.
#[test]
fn the_cut_outlives_a_switch_of_the_mode() -> Result<()> {
    let extra = &["--fault-after", FAULT_AFTER];
    let beside = Beside::new(Mode::Ipvs, Setup { extra, ..Setup::default() })?;
    ensure!(mode(&beside).as_deref() == Some("ipvs"), "{}", beside.status()?["proxy"]);
    let before = saved(&beside.cluster.a.ns)?;
    ensure!(weighted(&beside)?.len() >= 8, "{before:#?}");
    beside.agent.flag("node-b")?;
    wait_drained(&beside)?;
    let capture = Capture::start(&beside.cluster.b.pod, "eth0")?;
    let clients = Clients::start(&beside);
    clients.are_answered().context("before the switch")?;

    // A kube-proxy of mode nftables removes what the one of mode IPVS left, before its first sync.
    clients.may_fail();
    let beside = beside.switch_proxy(Mode::Nftables, |_| Ok(()))?;
    notices(&beside, Mode::Nftables)?;
    clients.are_answered().with_context(|| format!("in mode nftables\n{}", beside.agent.log()))?;
    stays_clean(&beside).context("in mode nftables")?;
    let left = saved(&beside.cluster.a.ns)?;
    ensure!(left.is_empty(), "the agent added to tables that kube-proxy had emptied: {left:#?}");
    let row = beside.status()?["ipvs"]["nodes"].clone();
    ensure!(row.as_object().is_some_and(serde_json::Map::is_empty), "{row}\n{}", beside.agent.log());

    clients.may_fail();
    let beside = beside.switch_proxy(Mode::Ipvs, |ns| KubeProxy::clean_up(ns))?;
    notices(&beside, Mode::Ipvs)?;
    wait_drained(&beside)?;
    clients.are_answered().with_context(|| format!("in mode IPVS again\n{}", beside.agent.log()))?;
    stays_clean(&beside).context("in mode IPVS again")?;

    let Clients { running, seen } = clients;
    running.finish().with_context(|| beside.agent.log())?;
    println!("{seen:?}");
    let came = arrived(&beside, capture);
    ensure!(came == 0, "{came} packets came to the flagged node's pod\n{}", beside.agent.log());

    let capture = Capture::start(&beside.cluster.b.pod, "eth0")?;
    comes_back(&beside)?;
    ensure!(arrived(&beside, capture) > 0, "the capture sees no packet");
    let same = || saved(&beside.cluster.a.ns).is_ok_and(|now| now == before);
    wait_until("the table is as kube-proxy alone would have it", LIMIT, same)
        .map(drop)
        .with_context(|| format!("{before:#?}, and now {:#?}", saved(&beside.cluster.a.ns)))?;
    stays_clean(&beside).context("without a flag")
}
