//! Checks `nodefence audit` beside a real kube-proxy. Pods are replaced one after the other, with clients, and no audit may find a fault. Then kube-proxy is
//! frozen, and the changes that it misses must become faults.

use std::{
    collections::{BTreeSet, VecDeque},
    net::{IpAddr, SocketAddr, UdpSocket},
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, ensure};

use super::{
    ControlPlane, KubeProxy, Mode,
    forwards::{V4, object},
    objects::{self, Endpoint, Port, Slice},
    proxy::SYNC_PERIOD,
};
use crate::{
    Agent, Cluster, Conn, Family, Options, Place, Proxy,
    audit::{Audit, repair},
    client::wait_until,
    emulated, long,
    promises::FOLLOWED,
    topology::Service,
    watch::wait_within,
};

/// The number of open connections. The oldest is closed when another one is opened.
const OPEN: usize = 40;
/// The places of clients.
const PLACES: [Place; 2] = [Place::Outside, Place::Pod];
/// The number of ready pods at a time. Also the number of UDP clients in each place.
const PODS: usize = 4;
/// The number of pod addresses on each of two nodes. A node's addresses are used in turn. Even with short periods an address is used again only when a
/// difference left by its last pod would already be a fault.
const ADDRESSES: u8 = 24;
/// The longest wait for kube-proxy, in addition to its own periods.
const LIMIT: Duration = Duration::from_secs(120);

/// The periods of a run.
#[derive(Clone, Copy, Debug)]
struct Pace {
    /// kube-proxy's `syncPeriod`. A difference is a fault after two of them.
    sync_period: Duration,
    /// The interval at which a pod is replaced.
    every: Duration,
    /// How long pods are replaced in each of three phases: before kube-proxy's stall, between the stall and its restart, and after the restart.
    between: Duration,
    /// How long kube-proxy is frozen at most. A difference must be seen that is older than a sync, but it must not become a fault before kube-proxy, once it
    /// goes on, has mended it. So kube-proxy goes on as soon as such a difference was seen. The limit allows for three delays: the first pod that kube-proxy
    /// misses is gone after two steps, an audit may find that a sixth of `fault_after` later, and the last audit may be as long before the end.
    stall: Duration,
}

impl Pace {
    /// Short periods. Draining takes longer than a difference takes to become a fault, and so does everything that is still different after kube-proxy's stall.
    const SHORT: Self = Self {
        sync_period: Duration::from_secs(8),
        every: Duration::from_millis(500),
        between: Duration::from_secs(5),
        stall: Duration::from_secs(11),
    };
    /// kube-proxy's own period.
    const REAL: Self = Self {
        sync_period: SYNC_PERIOD,
        every: Duration::from_secs(4),
        between: Duration::from_secs(180),
        stall: Duration::from_secs(59),
    };

    fn chosen() -> Self {
        match (long(), emulated()) {
            (true, _) => Self::REAL,
            (false, false) => Self::SHORT,
            // On an emulated processor kube-proxy's syncs alone take seconds.
            (false, true) => Self {
                sync_period: Self::SHORT.sync_period * 2,
                every: Self::SHORT.every * 2,
                stall: Self::SHORT.stall * 2,
                ..Self::SHORT
            },
        }
    }

    fn fault_after(&self) -> Duration {
        self.sync_period * 2
    }

    /// A difference is a fault after at most this time. The agent reads six times in `fault_after` (docs/cli.md). One reading finds the difference, and a later
    /// one finds it again.
    fn found(&self) -> Duration {
        self.fault_after() * 8 / 6
    }
}

/// The state of a pod.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Life {
    Ready,
    Ending,
}

#[derive(Clone, Debug)]
struct Pod {
    address: IpAddr,
    node: &'static str,
    life: Life,
}

/// The Service's pods, for the API server and for the cluster file.
#[derive(Debug)]
struct Pods {
    all: VecDeque<Pod>,
    made: usize,
}

impl Pods {
    fn new() -> Self {
        let mut this = Self { all: VecDeque::new(), made: 0 };
        (0..PODS).for_each(|_| this.add());
        this
    }

    fn add(&mut self) {
        let (node, third) = [("node-b", 2), ("node-c", 3)][self.made % 2];
        let last = (self.made / 2 % usize::from(ADDRESSES)) as u8 + 2;
        self.made += 1;
        self.all.push_back(Pod { address: [10, 244, third, last].into(), node, life: Life::Ready });
    }

    /// Makes one step: removes ended pods, makes the oldest pod terminating, and adds a new pod.
    fn replace(&mut self) {
        self.all.retain(|pod| pod.life == Life::Ready);
        if let Some(oldest) = self.all.front_mut() {
            oldest.life = Life::Ending;
        }
        self.add();
    }

    fn slice(&self) -> Slice {
        let endpoints = self.all.iter().map(|pod| {
            let ready = pod.life == Life::Ready;
            Endpoint {
                ready: Some(ready),
                terminating: Some(!ready),
                ..Endpoint::ready(pod.address, pod.node)
            }
        });
        Slice::new(&object(Service::Web, V4), endpoints.collect())
    }

    fn file(&self, cluster: &Cluster, more: &str) -> String {
        let mut text = String::from("nodes:\n");
        for node in [&cluster.a, &cluster.b, &cluster.c] {
            text += &format!("  - {{ name: {}, address: {} }}\n", node.name, node.address(Family::V4));
        }
        // Node A gets a backend of its own, as every real node has.
        let own = format!(", backends: [{{ address: {} }}] }}\n", cluster.a.pod_address(Family::V4));
        text = text.replacen(" }\n", &own, 1);
        let object = object(Service::Web, V4);
        text += &format!(
            "services:\n  - name: default/{}\n    clusterIPs: [{}]\n    ports:\n",
            object.name, object.cluster_ips[0]
        );
        for Port { name, protocol, port, target, node_port } in &object.ports {
            let protocol = protocol.to_lowercase();
            let node_port = node_port.map_or(String::new(), |port| format!(", nodePort: {port}"));
            text += &format!(
                "      - {{ name: {name}, port: {port}, targetPort: {target}, protocol: {protocol}{node_port} }}\n"
            );
        }
        text += "    endpoints:\n";
        for pod in &self.all {
            let ending = match pod.life {
                Life::Ready => "",
                Life::Ending => ", ready: false, serving: true, terminating: true",
            };
            text += &format!("      - {{ address: {}, node: {}{ending} }}\n", pod.address, pod.node);
        }
        // The Service that the API server creates for itself.
        text += "  - { name: default/kubernetes, clusterIPs: [10.96.0.1], ports: [{ name: https, port: 443, targetPort: 6443 }] }\n";
        text + more
    }
}

struct World {
    cluster: Cluster,
    control: ControlPlane,
    agent: Agent,
    pods: Pods,
    open: VecDeque<Conn>,
    /// Clients that each send again and again from one port, so that their flow stays in conntrack until it is deleted. The entry of a single query ends after
    /// 30 s.
    udp_clients: Vec<(Place, UdpSocket)>,
    pace: Pace,
    begun: Instant,
}

impl World {
    /// Writes the pods to the API server and to the cluster file. `more` is appended to the file.
    fn tell(&self, more: &str) -> Result<()> {
        self.control.slice(&self.pods.slice())?;
        self.agent.rewrite_cluster_file(&self.pods.file(&self.cluster, more))
    }

    /// Makes connections and sends datagrams from all places. Some of them reach pods that have just ended.
    fn traffic(&mut self, seen: &mut Seen) {
        for place in PLACES {
            let to = |service| self.cluster.service(service, place, Family::V4);
            let conn = Conn::connect(self.cluster.at(place), to(Service::Web), Duration::from_secs(5));
            seen.connected[usize::from(conn.is_err())] += 1;
            self.open.extend(conn.ok());
            let dns = to(Service::Dns);
            for (_, socket) in self.udp_clients.iter().filter(|(of, _)| *of == place) {
                let _sent = socket.send_to(b"query", dns);
            }
            self.cluster.at(place).run(move || {
                for _ in 0..PODS {
                    // No client waits for an answer.
                    let _sent = UdpSocket::bind("0.0.0.0:0").and_then(|socket| socket.send_to(b"query", dns));
                }
            });
        }
        while self.open.len() > OPEN {
            self.open.pop_front();
        }
    }

    /// Checks that an audit finds no faults.
    fn clean(&self) -> Result<Audit> {
        let audit = Audit::of(&self.agent)?;
        ensure!(
            audit.in_state("fault").is_empty(),
            "{} s after the start: {:#}\n{}\n{}",
            self.begun.elapsed().as_secs(),
            audit.report["differences"],
            self.cluster.a.ns.exec("ipvsadm -Ln").unwrap_or_default(),
            self.agent.log()
        );
        Ok(audit)
    }

    /// Replaces one pod after the other for this time, with clients. No audit may find a fault.
    fn roll(&mut self, length: Duration, seen: &mut Seen) -> Result<()> {
        self.roll_until(length, seen, |_| false)
    }

    /// Does the same until `is_enough`, for at most `longest`.
    fn roll_until(
        &mut self,
        longest: Duration,
        seen: &mut Seen,
        is_enough: impl Fn(&Seen) -> bool,
    ) -> Result<()> {
        let begun = Instant::now();
        while begun.elapsed() + self.pace.every <= longest && !is_enough(seen) {
            let step = Instant::now();
            self.pods.replace();
            self.tell("")?;
            self.traffic(seen);
            let audit = self.clean()?;
            seen.drained.extend(audit.in_state("draining"));
            seen.oldest = seen.oldest.max(oldest_of_a_sync(&audit));
            seen.audits += 1;
            std::thread::sleep(self.pace.every.saturating_sub(step.elapsed()));
        }
        Ok(())
    }
}

/// Whether this difference is a destination that kube-proxy drains. kube-proxy checks these once a minute, however often it syncs.
fn is_drained_by_kube_proxy(audit: &Audit, difference: &str) -> bool {
    let detail = audit.row(difference).and_then(|row| row["detail"].as_str());
    detail.is_some_and(|detail| detail.ends_with("weight 0, 0 connections"))
}

/// The age of the oldest difference that kube-proxy's next sync mends.
fn oldest_of_a_sync(audit: &Audit) -> Duration {
    let new =
        audit.in_state("new").into_iter().filter(|difference| !is_drained_by_kube_proxy(audit, difference));
    let ages = new.filter_map(|difference| audit.row(&difference)?["age_seconds"].as_u64());
    Duration::from_secs(ages.max().unwrap_or_default())
}

/// What was seen while pods were replaced.
#[derive(Debug, Default)]
struct Seen {
    drained: BTreeSet<String>,
    /// The longest age of a difference that kube-proxy's next sync mends.
    oldest: Duration,
    audits: u32,
    /// How many connections were made, and how many failed.
    connected: [u32; 2],
}

/// Replaces pods beside a kube-proxy of this mode. No audit may find a fault, even while kube-proxy misses a sync and after its restart. Then kube-proxy is
/// frozen until the changes that it misses are faults. A repair mends those that it may mend. At last kube-proxy goes on, and no faults are left.
///
/// # Errors
/// The error names the failed check.
pub fn holds(mode: Mode) -> Result<()> {
    let pace = Pace::chosen();
    let cluster = Cluster::new(Options { proxy: Proxy::Nobody, ..Options::default() })?;
    for (node, third) in [(&cluster.b, 2), (&cluster.c, 3)] {
        let more = (3..ADDRESSES + 2).map(|last| format!("addr add 10.244.{third}.{last}/24 dev eth0"));
        node.pod.ip(&more.collect::<Vec<_>>().join("\n"))?;
    }
    let control = ControlPlane::start(&cluster.a.ns)?;
    control.nodes(&cluster)?;
    control.service(&object(Service::Web, V4))?;
    let pods = Pods::new();
    control.slice(&pods.slice())?;
    let start = |control: &ControlPlane, cluster: &Cluster| {
        KubeProxy::start_with(control, &cluster.a.ns, cluster.a.name, mode, pace.sync_period)
    };
    let kube_proxy = start(&control, &cluster)?;
    let fault_after = format!("{}s", pace.fault_after().as_secs());
    // With kube-proxy's own period the agent uses its default.
    let options: &[&str] = if long() { &[] } else { &["--fault-after", &fault_after] };
    let file = pods.file(&cluster, "");
    let options = [&["--proxy", "auto"], options].concat();
    let agent = Agent::start_with(&cluster.a.ns, "node-a", &cluster.interfaces(), &file, &options)?;
    let begun = Instant::now();
    let mut udp_clients = Vec::new();
    for place in PLACES {
        for _ in 0..PODS {
            udp_clients.push((place, cluster.at(place).run(|| UdpSocket::bind("0.0.0.0:0"))?));
        }
    }
    let mut world = World { cluster, control, agent, pods, open: VecDeque::new(), udp_clients, pace, begun };

    let mut seen = Seen::default();
    world.roll(pace.between, &mut seen)?;
    // kube-proxy misses a sync, as it does when it is short of memory or processor time.
    kube_proxy.freeze()?;
    let before = std::mem::take(&mut seen.oldest);
    world.roll_until(pace.stall, &mut seen, |seen| seen.oldest >= pace.sync_period)?;
    kube_proxy.thaw()?;
    let stalled = seen.oldest;
    seen.oldest = stalled.max(before);
    world.roll(pace.between, &mut seen)?;
    // After its restart kube-proxy does not know any more which destinations it was draining. The phase is long enough for a false fault to appear.
    kube_proxy.stop()?;
    let kube_proxy = start(&world.control, &world.cluster)?;
    world.roll(pace.between.max(pace.found()), &mut seen)?;
    println!(
        "{mode}: {} pods replaced in {:?}, {} audits without a fault; {} pairs drained, the oldest other difference was {:?} old",
        world.pods.made - PODS,
        begun.elapsed(),
        seen.audits,
        seen.drained.len(),
        seen.oldest
    );
    let [connected, failed] = seen.connected;
    println!("{connected} clients were connected, {failed} were not");
    ensure!(connected > failed, "{connected} clients were connected, {failed} were not");
    ensure!(mode != Mode::Ipvs || seen.drained.len() > 5, "nothing drained: {:?}", seen.drained);
    // After a shorter stall, an agent that waits for only one sync would pass the test too.
    ensure!(stalled >= pace.sync_period, "nothing differed for longer than {stalled:?}");
    misses_changes(&mut world, &kube_proxy)
}

/// Freezes kube-proxy, changes pods and Services, and checks the faults, the repair, and that kube-proxy mends the rest.
fn misses_changes(world: &mut World, kube_proxy: &KubeProxy) -> Result<()> {
    // A client whose flow becomes stale, since its pod leaves.
    let to = world.cluster.service(Service::Dns, Place::Outside, Family::V4);
    let socket = world.cluster.client.run(|| UdpSocket::bind("0.0.0.0:0"))?;
    let send = || socket.send_to(b"query", to);
    kube_proxy.freeze()?;
    let old: Vec<IpAddr> = world.pods.all.iter().map(|pod| pod.address).collect();
    send()?;
    // All pods are replaced, so that the backend of that flow is gone.
    world.pods.all.clear();
    (0..PODS).for_each(|_| world.pods.add());
    let extra = objects::Service::new(
        "late",
        [10, 96, 7, 7],
        vec![Port { name: "http", protocol: "TCP", port: 80, target: 8080, node_port: None }],
    );
    world.control.service(&extra)?;
    let more = "  - { name: default/late, clusterIPs: [10.96.7.7], ports: [{ name: http, port: 80, targetPort: 8080 }] }\n";
    let told = Instant::now();
    world.tell(more)?;
    let mut wanted = vec!["stale-udp "];
    if kube_proxy.mode == Mode::Ipvs {
        wanted.extend(["stale-destination ", "missing-destination ", "missing-service TCP 10.96.7.7:80"]);
    }
    let about = |fault: &str, pods: &[IpAddr]| {
        pods.iter().any(|pod| fault.contains(&format!("-> {}", SocketAddr::new(*pod, 8080))))
            || pods.iter().any(|pod| fault.contains(&format!("-> {}", SocketAddr::new(*pod, 5300))))
    };
    // Only the flows to the pods that have just left count. Flows to pods that left before are faults sooner, and the repair below mends all of them.
    let is_of =
        |kind: &str, fault: &str| fault.starts_with(kind) && (kind != "stale-udp " || about(fault, &old));
    let mut last = Vec::new();
    let found = || {
        let _sent = send();
        last = Audit::of(&world.agent).map_or_else(|_| Vec::new(), |audit| audit.in_state("fault"));
        wanted.iter().all(|kind| last.iter().any(|fault| is_of(kind, fault)))
    };
    wait_within("faults", FOLLOWED + world.pace.found(), told, found)
        .with_context(|| format!("{last:#?}\n{}", world.agent.log()))?;
    let new: Vec<IpAddr> = world.pods.all.iter().map(|pod| pod.address).collect();
    for fault in &last {
        ensure!(
            match fault.split(' ').next() {
                Some("stale-udp" | "stale-destination") => !about(fault, &new),
                Some("missing-destination") => about(fault, &new) && !about(fault, &old),
                // A new pod may have an address that was draining when kube-proxy was frozen.
                Some("stray-weight") => about(fault, &new),
                Some("missing-service") => fault.ends_with("10.96.7.7:80"),
                _ => false,
            },
            "{fault} among {last:#?}"
        );
    }
    let done = repair(
        &world.agent,
        &["--kind", "stale-udp,stale-destination,missing-destination,stray-weight,missing-service"],
    )?;
    println!("{}: {done:?}", kube_proxy.mode);
    // The repair leaves destinations with weight 0 and connections: only kube-proxy knows whether it drains them.
    let left = done.keys().filter(|outcome| !outcome.ends_with(" fixed")).collect::<Vec<_>>();
    let may_be_left = ["missing-service skipped", "stray-weight skipped"];
    ensure!(
        left.iter().all(|outcome| may_be_left.contains(&outcome.as_str())),
        "{left:?}\n{}",
        world.agent.log()
    );
    let faults = Audit::of(&world.agent)?.in_state("fault");
    let is_left =
        |fault: &String| fault == "missing-service TCP 10.96.7.7:80" || fault.starts_with("stray-weight ");
    ensure!(faults.iter().all(is_left), "{faults:?}");
    if kube_proxy.mode == Mode::Ipvs {
        // Clients are served again before kube-proxy goes on.
        let to = world.cluster.service(Service::Web, Place::Outside, Family::V4);
        for _ in 0..PODS {
            Conn::connect(&world.cluster.client, to, Duration::from_secs(30))?.who()?;
        }
    }
    kube_proxy.thaw()?;
    let well = || {
        Audit::of(&world.agent).is_ok_and(|audit| {
            let new = audit.in_state("new");
            audit.in_state("fault").is_empty()
                && audit.not_looked_at("kube-proxy-stale").is_none()
                && new.iter().all(|difference| is_drained_by_kube_proxy(&audit, difference))
        })
    };
    wait_until("all is well again", world.pace.fault_after() + LIMIT, well)
        .map(drop)
        .with_context(|| format!("{:?}\n{}", Audit::of(&world.agent), world.agent.log()))
}
