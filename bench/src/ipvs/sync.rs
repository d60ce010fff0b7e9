//! The time of kube-proxy's own syncs while the agent reads the tables back. This needs an API server outside the guest: `cargo xtask bench ipvs`
//! runs it.
use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::{Context as _, bail, ensure};
use nodefence_tests::{
    Agent, Netns,
    kube::{
        ControlPlane, KubeProxy, Mode,
        objects::{Endpoint, Port, Service, Slice},
    },
};

use super::world::{OWN, OWN_ADDRESS, PODS, Shape, UPLINK, node, socket};
use crate::{figure::Figure, progress::Progress, stats::summary};

/// Beside the agent, kube-proxy's syncs may take this many times the time that they take alone.
const GOAL: f64 = 1.05;
/// The node that is drained, and whose destinations are read back.
const FLAGGED: u16 = 0;
/// How long a sync of kube-proxy may take, and the drain.
const PATIENCE: Duration = Duration::from_secs(300);
/// How often kube-proxy and the agent are queried. Each query costs kube-proxy an answer.
const LOOK: Duration = Duration::from_millis(200);
/// kube-proxy's metric of its syncs (pkg/proxy/metrics): a histogram for each address family.
const SYNCS: &str = "kubeproxy_sync_proxy_rules_duration_seconds";

/// The amount of work.
pub(super) struct Sizes {
    pub(super) services: usize,
    pub(super) each: usize,
    pub(super) rounds: u32,
    /// How long syncs are measured without and with a flagged node, in each round.
    pub(super) length: Duration,
}

/// A real kube-proxy with its Services.
struct Beside {
    control: ControlPlane,
    proxy: KubeProxy,
    service: Service,
    endpoints: Vec<Endpoint>,
}

pub(super) fn run(sizes: &Sizes) -> anyhow::Result<Figure> {
    let shape = Shape::wide(sizes.services, sizes.each);
    let ns = Arc::new(Netns::new("node")?);
    ns.ip(&format!("link add {UPLINK} type dummy"))?;
    ns.ip(&format!("addr add {OWN_ADDRESS}/24 dev {UPLINK}"))?;
    ns.ip(&format!("link set {UPLINK} up"))?;
    ns.ip(&format!("route add 10.128.0.0/9 dev {UPLINK}"))?;
    let mut beside = Beside::start(&ns, &shape)?;
    let agent = Agent::start_with(&ns, OWN, &[UPLINK], &shape.cluster().to_string(), &["--proxy", "ipvs"])?;
    let mut progress = Progress::start("kube-proxy's syncs", sizes.rounds * 2);
    let mut alone = Vec::new();
    let mut read_back = Vec::new();
    for _ in 0..sizes.rounds {
        alone.push(beside.syncs(sizes.length)?);
        progress.step();
        agent.flag(&node(FLAGGED))?;
        wait(&agent, |row| row["taken"] == PODS && row["waiting"] == 0)?;
        read_back.push(beside.syncs(sizes.length)?);
        progress.step();
        agent.unflag(&node(FLAGGED))?;
        wait(&agent, serde_json::Value::is_null)?;
    }
    drop(progress);
    figure(&shape, sizes, &alone, &read_back)
}

/// Waits until `is` is true of the node's row of `status`.
fn wait(agent: &Agent, is: impl Fn(&serde_json::Value) -> bool) -> anyhow::Result<()> {
    let begun = Instant::now();
    while !is(&agent.status()?["ipvs"]["nodes"][node(FLAGGED)]) {
        if begun.elapsed() > PATIENCE {
            bail!("the node is not drained, or not restored, after {PATIENCE:?}:\n{}", agent.log());
        }
        std::thread::sleep(LOOK);
    }
    Ok(())
}

impl Beside {
    fn start(ns: &Arc<Netns>, shape: &Shape) -> anyhow::Result<Self> {
        let control = ControlPlane::start(ns)?;
        control.node(OWN, OWN_ADDRESS, None)?;
        let mut progress =
            Progress::start("Services at the API server", u32::try_from(shape.services.len())?);
        let mut first = None;
        for (at, service) in shape.services.iter().enumerate() {
            let target = service.endpoints.first().context("a Service without endpoints")?.2;
            let port =
                Port { name: "main", protocol: "TCP", port: service.address.port(), target, node_port: None };
            let object = Service::new(&format!("service-{at}"), service.address.ip(), vec![port]);
            let endpoints: Vec<Endpoint> = service
                .endpoints
                .iter()
                .map(|endpoint| Endpoint::ready(socket(endpoint).ip(), &node(endpoint.0)))
                .collect();
            control.service(&object)?;
            control.slice(&Slice::new(&object, endpoints.clone()))?;
            progress.step();
            first.get_or_insert((object, endpoints));
        }
        drop(progress);
        let proxy = KubeProxy::start(&control, ns, OWN, Mode::Ipvs)?;
        let (service, endpoints) = first.context("no Services")?;
        // The endpoint that changes is on another node than the flagged one.
        ensure!(endpoints.last().is_some_and(|last| last.node != Some(node(FLAGGED))), "one endpoint alone");
        Ok(Self { control, proxy, service, endpoints })
    }

    /// Seconds of each sync on average. For `length` an endpoint leaves and comes back, again and again: in IPVS mode kube-proxy goes through
    /// everything at each change.
    fn syncs(&mut self, length: Duration) -> anyhow::Result<f64> {
        let begun = Instant::now();
        let before = self.counted()?;
        let mut last = self.counted()?;
        let mut fewer = false;
        while begun.elapsed() < length {
            fewer = !fewer;
            self.change(fewer)?;
            last = self.one_more(last.0)?;
        }
        if fewer {
            self.change(false)?;
            last = self.one_more(last.0)?;
        }
        Ok((last.1 - before.1) / (last.0 - before.0))
    }

    fn change(&self, fewer: bool) -> anyhow::Result<()> {
        let upto = self.endpoints.len() - usize::from(fewer);
        self.control.slice(&Slice::new(&self.service, self.endpoints[..upto].to_vec()))
    }

    /// Waits until more than `count` syncs are done.
    fn one_more(&self, count: f64) -> anyhow::Result<(f64, f64)> {
        let begun = Instant::now();
        loop {
            let now = self.counted()?;
            if now.0 > count {
                return Ok(now);
            }
            if begun.elapsed() > PATIENCE {
                bail!("kube-proxy does not sync; its log:\n{}", self.proxy.log());
            }
            std::thread::sleep(LOOK);
        }
    }

    /// The number of IPv4 syncs, and the seconds that they took together.
    fn counted(&self) -> anyhow::Result<(f64, f64)> {
        let metrics = self.proxy.ask("/metrics")?;
        let of = |what: &str| {
            let name = format!("{SYNCS}_{what}");
            let line = metrics.lines().find(|line| line.starts_with(&name) && !line.contains("IPv6"));
            let number = line.and_then(|line| line.rsplit(' ').next()?.parse::<f64>().ok());
            number.with_context(|| format!("kube-proxy has no metric {name}"))
        };
        Ok((of("count")?, of("sum")?))
    }
}

fn figure(shape: &Shape, sizes: &Sizes, alone: &[f64], read_back: &[f64]) -> anyhow::Result<Figure> {
    let of = |seconds: &[f64]| {
        let milliseconds: Vec<f64> = seconds.iter().map(|seconds| seconds * 1e3).collect();
        summary(&milliseconds).context("no rounds")
    };
    // Runs that followed each other are compared, since the machine's pace changes.
    let ratios: Vec<f64> = read_back.iter().zip(alone).map(|(ours, alone)| ours / alone).collect();
    let ratio = summary(&ratios).context("no rounds")?;
    let name = format!(
        "IPVS, kube-proxy's own sync of {} services of {} destinations while the agent reads back",
        shape.services.len(),
        sizes.each
    );
    Ok(Figure::of(name, "ms", &of(read_back)?)
        .peer_of("no node flagged", &of(alone)?)
        .ratio(ratio.median)
        .goal(format!("at most {GOAL} times (median of the rounds)"), ratio.median <= GOAL)
        .note(format!(
            "ratio {:.3} to {:.3} in {} rounds of {} s each way; the mean of all syncs of a round, by kube-proxy's own metric; {PODS} pairs are drained",
            ratio.min,
            ratio.max,
            ratios.len(),
            sizes.length.as_secs()
        )))
}
