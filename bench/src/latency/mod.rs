//! (c) From the agent's reading of a flag to the first RST that a prober receives.
//!
//! client (prober) - router (agent) - node B, which never answers: its neighbour entry leads to nobody, so that every RST is the
//! cut's. The prober sends bare ACKs to the node's backends in turn. Its pace, one packet each 20 us, is the resolution of the figure.
//! The start of the command line is measured in the same runs and reported apart.
use std::{
    net::Ipv4Addr,
    path::Path,
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::{Context as _, ensure};

use nodefence::flags::monotonic_ns;
use nodefence_tests::{Agent, Netns, load::acks::Acks};

use crate::{
    cluster::{self, Node},
    cpus,
    figure::{Figure, Value},
    plot,
    progress::Progress,
    stats::{percentile, summary},
    tables,
};

/// The amount of work.
pub(crate) struct Sizes {
    /// Backends of the node, one set of figures each.
    pub(crate) backends: Vec<u32>,
    /// Flags that are set and removed.
    pub(crate) flags: u32,
    /// Packets a second of the prober.
    pub(crate) rate: u32,
}

const NODE: &str = "node-b";
const UPLINK: &str = "uplink";
/// The prober's address.
const SOURCE: Ipv4Addr = Ipv4Addr::new(192, 168, 1, 2);
/// How long one flag may take to show before the run fails.
const PATIENCE: Duration = Duration::from_secs(5);
/// After this many packets without a RST the cut counts as ended.
const QUIET: u64 = 200;

struct Line {
    client: Netns,
    router: Arc<Netns>,
    _node_b: Netns,
}

impl Line {
    fn new() -> anyhow::Result<Self> {
        let line = Self {
            client: Netns::new("client")?,
            router: Arc::new(Netns::new("router")?),
            _node_b: Netns::new(NODE)?,
        };
        let Self { client, router, _node_b: node_b } = &line;
        client.veth("eth0", router, "downlink")?;
        router.veth(UPLINK, node_b, "eth0")?;
        client.ip(&format!("addr add {}/24 dev eth0", SOURCE))?;
        client.ip("route add default via 192.168.1.1")?;
        router.ip("addr add 192.168.1.1/24 dev downlink")?;
        router.ip(&format!("addr add 192.168.2.1/24 dev {UPLINK}"))?;
        router.ip("route add 10.0.0.0/8 via 192.168.2.2")?;
        router
            .ip(&format!("neigh replace 192.168.2.2 lladdr 02:00:00:00:00:99 dev {UPLINK} nud permanent"))?;
        router.sysctl("ipv4/ip_forward", "1")?;
        Ok(line)
    }
}

/// The results for one number of backends.
struct Outcome {
    backends: u32,
    /// Microseconds from the reading of each flag to the first RST.
    cut: Vec<f64>,
    /// Milliseconds from the start of each `nodefence flag` to the agent's reading.
    command: Vec<f64>,
    /// Packets a second that the prober sent.
    rate: f64,
}

pub(crate) fn run(sizes: &Sizes, agent: &Path, out: &Path) -> anyhow::Result<Vec<Figure>> {
    // The prober stands for other machines, so it spins on a CPU of its own. The agent and the command line share the rest.
    let all = cpus::allowed();
    let (mine, probers) = match all.split_last() {
        Some((last, rest)) if !rest.is_empty() => (rest, *last),
        _ => (all.as_slice(), all.first().copied().unwrap_or(0)),
    };
    cpus::stay_on(mine)?;
    let measured: anyhow::Result<Vec<Outcome>> =
        sizes.backends.iter().map(|backends| measure(sizes, *backends, agent, probers)).collect();
    cpus::stay_on(&all)?;
    let outcomes = measured?;
    plots(&outcomes, out)?;
    figures(&outcomes)
}

fn measure(sizes: &Sizes, backends: u32, program: &Path, cpu: usize) -> anyhow::Result<Outcome> {
    let line = Line::new()?;
    let own = Node { name: "node-a", address: "192.168.2.1".parse()?, backends: Vec::new() };
    let other = Node {
        name: NODE,
        address: "192.168.2.2".parse()?,
        backends: (0..backends).map(tables::backend).collect(),
    };
    let file = cluster::file(&[own, other]);
    let agent = Agent::of(program, &line.router, "node-a", &[UPLINK], &file, &[])?;
    let to: Vec<Ipv4Addr> = (0..backends).map(tables::backend).collect();
    let prober = Acks::start(&line.client, SOURCE, &to, sizes.rate, move || cpus::stay_on(&[cpu]))?;
    let mut progress = Progress::start(&format!("c {backends} backends"), sizes.flags);
    let mut cut = Vec::new();
    let mut command = Vec::new();
    for flag in 0..sizes.flags {
        prober.arm();
        let started = monotonic_ns();
        let report = cluster::flag(&agent, NODE, &[])?;
        let read =
            report["received_ns"].as_u64().context("the agent's answer to a flag has no received_ns")?;
        let first = until(|| prober.first_rst()).context("no RST came after a flag")?;
        ensure!(first >= read, "a RST came before the flag was read");
        cut.push((first - read) as f64 / 1e3);
        command.push(read.saturating_sub(started) as f64 / 1e6);
        agent.unflag(NODE)?;
        until(|| prober.quiet_for(QUIET).then_some(())).context("RSTs kept coming after the unflag")?;
        // The pause lets each flag come at another moment of the agent's second.
        std::thread::sleep(Duration::from_millis(u64::from(flag) * 7 % 23));
        progress.step();
    }
    Ok(Outcome { backends, cut, command, rate: prober.finish()? })
}

fn until<T>(mut ready: impl FnMut() -> Option<T>) -> Option<T> {
    let started = Instant::now();
    loop {
        if let Some(value) = ready() {
            return Some(value);
        }
        if started.elapsed() > PATIENCE {
            return None;
        }
        std::thread::sleep(Duration::from_micros(500));
    }
}

fn figures(outcomes: &[Outcome]) -> anyhow::Result<Vec<Figure>> {
    let at = |samples: &[f64], percent| percentile(samples, percent).context("no flags were set");
    let base = at(&outcomes.first().context("no number of backends was given")?.cut, 50.0)?;
    let mut figures = Vec::new();
    for outcome in outcomes {
        let spread = summary(&outcome.cut).context("no flags were set")?;
        for (name, p) in [("p50", 50.0), ("p99", 99.0)] {
            let value = at(&outcome.cut, p)?;
            let label = format!("c flag to first RST, {} backends, {name}", outcome.backends);
            let figure = Figure { ours: Value::Number(value), ..Figure::of(label, "us", &spread) };
            let note = format!("{} flags, prober at {:.0} packets/s", outcome.cut.len(), outcome.rate);
            figures.push(if p > 90.0 {
                let met = value < 1000.0;
                let missed =
                    if met { String::new() } else { format!("{:.0} us over the goal; ", value - 1000.0) };
                figure.goal("under 1 ms", met).note(missed + &note)
            } else {
                let ratio = value / base;
                figure
                    .ratio(ratio)
                    .goal(
                        "independent of the number of backends: at most 1.5 times the first row's",
                        ratio <= 1.5,
                    )
                    .note(note)
            });
        }
        let started = summary(&outcome.command).context("no flags were set")?;
        let label = format!("c start of the command line, {} backends", outcome.backends);
        figures.push(
            Figure::of(label, "ms", &started).note("from its start to the agent's reading of the flag"),
        );
    }
    Ok(figures)
}

fn plots(outcomes: &[Outcome], out: &Path) -> anyhow::Result<()> {
    // One flag that met a busy scheduler would press all other points against the left edge.
    let usual = outcomes.iter().filter_map(|outcome| percentile(&outcome.cut, 95.0)).fold(0.0, f64::max);
    let edge = usual * 2.0;
    let beyond: usize =
        outcomes.iter().map(|outcome| outcome.cut.iter().filter(|us| **us > edge).count()).sum();
    let curves: Vec<plot::Curve> = outcomes
        .iter()
        .map(|outcome| {
            let mut points = vec![(0.0, 0.0)];
            points.extend(
                (0..=200)
                    .map(|step| f64::from(step) / 2.0)
                    .filter_map(|percent| Some((percentile(&outcome.cut, percent)?, percent)))
                    .filter(|(us, _)| *us <= edge),
            );
            let plural = if outcome.backends == 1 { "" } else { "s" };
            plot::Curve { name: format!("{} backend{plural}", outcome.backends), points }
        })
        .collect();
    let all: usize = outcomes.iter().map(|outcome| outcome.cut.len()).sum();
    plot::curves(
        &out.join("latency.svg"),
        "From the agent's reading of a flag to the first RST",
        &format!(
            "share of flags whose first RST had arrived; {beyond} of {all} flags lie beyond the right edge"
        ),
        ["microseconds after the agent read the flag", "% of flags"],
        &curves,
    )
}
