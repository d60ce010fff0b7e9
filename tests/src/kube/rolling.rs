//! `nodefence audit` beside a real kube-proxy: pods are replaced one after the other, with clients, and nothing of it is a fault; then kube-proxy
//! stands still, and what it misses is.

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
};
use crate::{
    Agent, Cluster, Conn, Family, Options, Place, Proxy,
    audit::{Audit, repair},
    client::wait_until,
    topology::Service,
};

/// A pod is replaced so often.
const EVERY: Duration = Duration::from_secs(4);
/// Connections that are open at a time; the oldest is closed when another one is opened.
const OPEN: usize = 12;
/// Pods at a time.
const PODS: usize = 4;
/// Addresses on each of two nodes: each is used again after so many pods.
const ADDRESSES: u8 = 12;
/// Two of kube-proxy's syncs and twice that for what it ends gently, two readings, and a slow machine.
const FAULTS: Duration = Duration::from_secs(240);

/// How far a pod is.
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

/// The Service's pods, for the API server and for the cluster file alike.
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

    /// What ended is gone, the oldest ends, a new one comes.
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
            let (ready, terminating) = (Some(ready), Some(!ready));
            Endpoint { ready, terminating, ..Endpoint::ready(pod.address, pod.node) }
        });
        Slice::new(&object(Service::Web, V4), endpoints.collect())
    }

    fn file(&self, cluster: &Cluster, more: &str) -> String {
        let mut text = String::from("nodes:\n");
        for node in [&cluster.a, &cluster.b, &cluster.c] {
            text += &format!("  - {{ name: {}, address: {} }}\n", node.name, node.address(Family::V4));
        }
        // As every real node has.
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
        // The API server makes one for itself.
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
}

impl World {
    fn tell(&self, more: &str) -> Result<()> {
        self.control.slice(&self.pods.slice())?;
        self.agent.rewrite_cluster_file(&self.pods.file(&self.cluster, more))
    }

    /// Connections and datagrams from everywhere, some of them to pods that have just ended.
    fn traffic(&mut self) {
        for place in [Place::Outside, Place::Pod] {
            let to = |service| self.cluster.service(service, place, Family::V4);
            if let Ok(conn) = Conn::connect(self.cluster.at(place), to(Service::Web), Duration::from_secs(5))
            {
                self.open.push_back(conn);
            }
            let dns = to(Service::Dns);
            self.cluster.at(place).run(move || {
                // Nobody waits for an answer.
                let _sent = UdpSocket::bind("0.0.0.0:0").and_then(|socket| socket.send_to(b"query", dns));
            });
        }
        while self.open.len() > OPEN {
            self.open.pop_front();
        }
    }

    /// There are no faults.
    fn clean(&self, after: Duration) -> Result<Audit> {
        let audit = Audit::of(&self.agent)?;
        ensure!(
            audit.in_state("fault").is_empty(),
            "faults after {after:?}: {:#}\n{}\n{}",
            audit.report["differences"],
            self.cluster.a.ns.exec("ipvsadm -Ln").unwrap_or_default(),
            self.agent.log()
        );
        Ok(audit)
    }
}

/// Pods are replaced for `length` beside a kube-proxy of this mode: no audit finds a fault. Then it stands still: its misses are found, and mended where
/// that can be; it goes on, and all is well again.
///
/// # Errors
/// Where it is not so.
pub fn holds(mode: Mode, length: Duration) -> Result<()> {
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
    let mut kube_proxy = KubeProxy::start(&control, &cluster.a.ns, cluster.a.name, mode)?;
    let agent = Agent::start_with(
        &cluster.a.ns,
        "node-a",
        &cluster.interfaces(),
        &pods.file(&cluster, ""),
        &["--proxy", "auto"],
    )?;
    let mut world = World { cluster, control, agent, pods, open: VecDeque::new() };

    let begun = Instant::now();
    let (mut restarted, mut drained, mut young, mut audits) = (false, BTreeSet::new(), 0, 0);
    while begun.elapsed() < length {
        let step = Instant::now();
        world.pods.replace();
        world.tell("")?;
        world.traffic();
        let audit = world.clean(begun.elapsed())?;
        drained.extend(audit.in_state("draining"));
        (young, audits) = (young + audit.in_state("new").len(), audits + 1);
        if !restarted && begun.elapsed() > length / 2 {
            // What it was ending gently it does not know any more.
            kube_proxy.stop()?;
            kube_proxy = KubeProxy::start(&world.control, &world.cluster.a.ns, world.cluster.a.name, mode)?;
            restarted = true;
        }
        std::thread::sleep(EVERY.saturating_sub(step.elapsed()));
    }
    println!(
        "{mode}: {} pods replaced in {length:?}, {audits} audits without a fault; {} pairs drained, {young} differences passed",
        world.pods.made - PODS,
        drained.len()
    );
    ensure!(mode != Mode::Ipvs || drained.len() > 5, "nothing drained: {drained:?}");
    stands_still(&mut world, &kube_proxy)
}

fn stands_still(world: &mut World, kube_proxy: &KubeProxy) -> Result<()> {
    // A client whose flow is pinned to a pod that then leaves.
    let to = world.cluster.service(Service::Dns, Place::Outside, Family::V4);
    let socket = world.cluster.client.run(|| UdpSocket::bind("0.0.0.0:0"))?;
    let send = || socket.send_to(b"query", to);
    kube_proxy.freeze()?;
    let old: Vec<IpAddr> = world.pods.all.iter().map(|pod| pod.address).collect();
    send()?;
    // All pods are replaced: whoever it was pinned to is gone.
    world.pods.all.clear();
    (0..PODS).for_each(|_| world.pods.add());
    let extra = objects::Service::new(
        "late",
        [10, 96, 7, 7],
        vec![Port { name: "http", protocol: "TCP", port: 80, target: 8080, node_port: None }],
    );
    world.control.service(&extra)?;
    let more = "  - { name: default/late, clusterIPs: [10.96.7.7], ports: [{ name: http, port: 80, targetPort: 8080 }] }\n";
    world.tell(more)?;
    let mut wanted = vec!["stale-udp "];
    if kube_proxy.mode == Mode::Ipvs {
        wanted.extend(["stale-destination ", "missing-destination ", "missing-service TCP 10.96.7.7:80"]);
    }
    let mut last = Vec::new();
    wait_until("faults", FAULTS, || {
        let _sent = send();
        last = Audit::of(&world.agent).map_or_else(|_| Vec::new(), |audit| audit.in_state("fault"));
        wanted.iter().all(|kind| last.iter().any(|fault| fault.starts_with(kind)))
    })
    .with_context(|| format!("{last:#?}\n{}", world.agent.log()))?;
    let new: Vec<IpAddr> = world.pods.all.iter().map(|pod| pod.address).collect();
    let about = |fault: &str, pods: &[IpAddr]| {
        pods.iter().any(|pod| fault.contains(&format!("-> {}", SocketAddr::new(*pod, 8080))))
            || pods.iter().any(|pod| fault.contains(&format!("-> {}", SocketAddr::new(*pod, 5300))))
    };
    for fault in &last {
        ensure!(
            match fault.split(' ').next() {
                Some("stale-udp" | "stale-destination") => !about(fault, &new),
                Some("missing-destination") => about(fault, &new) && !about(fault, &old),
                // A new pod has the address of one that had been draining when kube-proxy stopped.
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
    let left = done.keys().filter(|outcome| !outcome.ends_with(" mended")).collect::<Vec<_>>();
    ensure!(left.iter().all(|outcome| *outcome == "missing-service left"), "{left:?}\n{}", world.agent.log());
    let faults = Audit::of(&world.agent)?.in_state("fault");
    ensure!(faults.iter().all(|fault| fault == "missing-service TCP 10.96.7.7:80"), "{faults:?}");
    if kube_proxy.mode == Mode::Ipvs {
        // Clients are served again, before kube-proxy is.
        let to = world.cluster.service(Service::Web, Place::Outside, Family::V4);
        for _ in 0..PODS {
            Conn::connect(&world.cluster.client, to, Duration::from_secs(30))?.who()?;
        }
    }
    kube_proxy.thaw()?;
    let well = || {
        Audit::of(&world.agent).is_ok_and(|audit| {
            let faults = audit.in_state("fault");
            faults.is_empty() && audit.in_state("new").is_empty()
        })
    };
    wait_until("all is well again", FAULTS, well)
        .map(drop)
        .with_context(|| format!("{:?}\n{}", Audit::of(&world.agent), world.agent.log()))
}
