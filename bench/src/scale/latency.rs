//! (3) The time from the request that flags a node to the RST at a client. A third of the nodes is flagged already, and the agent makes views.
use std::{sync::atomic::AtomicBool, time::Duration};

use anyhow::Context as _;
use nodefence::{flags::monotonic_ns, sched};
use nodefence_tests::load::{repeat, under};

use super::{
    flow::{self, PACE},
    requests::{client, flag, unflag},
    world::World,
};
use crate::{
    cpus,
    figure::{Figure, Value},
    progress::Progress,
    stats::{percentile, summary},
};

/// Bound in microseconds on p99.
const GOAL: f64 = 1_000.0;
/// How often an endpoint changes meanwhile. The agent then makes ten views a second, its maximum.
const CHANGES: Duration = Duration::from_millis(50);
/// The agent must make at least this many views a second.
const VIEWS: f64 = 9.0;
/// The nice value of the thread that sends the requests.
const PRECEDENCE: i32 = -20;
/// The agent's thread that flags.
const FLAGS: &str = "verdicts";
/// A RST that takes longer counts as one that took this long.
const PATIENCE: Duration = Duration::from_secs(10);

/// The times of the flags, in microseconds.
#[derive(Default)]
struct Flags {
    /// From the sending of the request to the RST.
    sent: Vec<f64>,
    /// From the agent's reading of the request to the RST.
    read: Vec<f64>,
    /// The longest single wait of the flow for a processor.
    still: Vec<f64>,
    /// How long the agent's thread that flags waited for a processor.
    waited: Vec<f64>,
    /// `sent`, less `waited` and `still`.
    less: Vec<f64>,
}

pub(super) fn run(world: &mut World, samples: u32) -> anyhow::Result<Vec<Figure>> {
    // The flow stands for another machine, so it spins on a processor of its own. The agent and the source of changes share the rest.
    let all = cpus::allowed();
    let (rest, last) = match all.split_last() {
        Some((last, rest)) if !rest.is_empty() => (rest, *last),
        _ => (all.as_slice(), all.first().copied().unwrap_or(0)),
    };
    let agent = world.agent.proc()?.pid();
    cpus::keep(agent, rest)?;
    cpus::stay_on(rest)?;
    let measured = measure(world, samples, last);
    sched::fair(0, None)?;
    cpus::stay_on(&all)?;
    cpus::keep(agent, &all)?;
    measured
}

fn measure(world: &mut World, samples: u32, cpu: usize) -> anyhow::Result<Vec<Figure>> {
    let nodes = world.view.sizes.nodes;
    // Node 0 is the agent's own and is left out. Two thirds of each Service's endpoints stay unflagged.
    let flagged: Vec<usize> = (1..nodes).step_by(3).collect();
    let candidates: Vec<usize> = (2..nodes).step_by(3).collect();
    let mut requests = client(world)?;
    let mut progress = Progress::start("latency: a third of the nodes is flagged", flagged.len().try_into()?);
    for node in &flagged {
        flag(&mut requests, *node)?;
        progress.step();
    }
    drop(progress);
    world.settle()?;
    flow::serve(&world.servers)?;
    let before = world.status()?.cluster.view;
    let World { view, client: from, agent, says, .. } = world;
    let says = says.as_mut().context("the agent follows a file")?;
    let process = agent.proc()?;
    let to: Vec<_> = candidates.iter().map(|node| (*node, view.address(*node))).collect();
    let begun = monotonic_ns();
    let views = |stop: &AtomicBool| {
        repeat(stop, || {
            let change = view.change_any();
            says.tell(view, &[change])?;
            Ok(CHANGES)
        })
    };
    let (flags, told) = under([views], || -> anyhow::Result<Flags> {
        // This thread stands for another machine: it must not wait behind the thread that changes endpoints.
        sched::fair(PRECEDENCE, Some(sched::SHORT_SLICE))?;
        let mut progress = Progress::start("latency: flag to RST", samples);
        let mut flags = Flags::default();
        for (sample, (node, address)) in (0..samples).zip(to.iter().cycle()) {
            let flow = flow::start(from, *address, cpu)?;
            // The pause lets each flag come at another moment of the agent's second, and of its views.
            std::thread::sleep(Duration::from_millis(20 + u64::from(sample) * 7 % 53));
            let before = process.waited(FLAGS)?;
            let sent = monotonic_ns();
            let report = flag(&mut requests, *node)?;
            let reset = flow.wait(PATIENCE)?;
            let waited = (process.waited(FLAGS)? - before).as_secs_f64() * 1e6;
            let at = reset.map_or(sent + PATIENCE.as_nanos() as u64, |reset| reset.at);
            let took = at.saturating_sub(sent) as f64 / 1e3;
            flags.sent.push(took);
            flags.read.push(at.saturating_sub(report.received_ns) as f64 / 1e3);
            flags.waited.push(waited);
            let still = reset.map(|reset| reset.still.as_secs_f64() * 1e6);
            flags.less.push((took - waited - still.unwrap_or(0.0)).max(0.0));
            flags.still.extend(still);
            flow.finish()?;
            unflag(&mut requests, *node)?;
            progress.step();
        }
        Ok(flags)
    });
    let flags = flags?;
    let seconds = monotonic_ns().saturating_sub(begun) as f64 / 1e9;
    let mut changes = 0;
    for teller in told {
        changes += teller.context("the thread that changes endpoints failed")?;
    }
    let came = world.status()?.cluster.view - before;
    let mut progress = Progress::start("latency: the nodes are unflagged", flagged.len().try_into()?);
    for node in flagged {
        unflag(&mut requests, node)?;
        progress.step();
    }
    figures(&flags, changes as f64 / seconds, came as f64 / seconds)
}

fn figures(flags: &Flags, changes: f64, views: f64) -> anyhow::Result<Vec<Figure>> {
    let spread = summary(&flags.sent).context("no flags")?;
    let never = flags.sent.len() - flags.still.len();
    [("p50", 50.0), ("p99", 99.0)]
        .into_iter()
        .map(|(name, percent)| {
            let of = |samples: &[f64]| percentile(samples, percent).context("no flags");
            let value = of(&flags.sent)?;
            let label = format!("flag to RST, a third of the nodes flagged, new views meanwhile, {name}");
            let figure = Figure { ours: Value::Number(value), ..Figure::of(label, "us", &spread) }
                .peer("from the agent's reading of the request", Value::Number(of(&flags.read)?))
                .peer("less the time without a processor (flow and flagging thread)", Value::Number(of(&flags.less)?))
                .peer("the flagging thread waited for a processor", Value::Number(of(&flags.waited)?))
                .peer("the flow waited for a processor, at most", Value::Number(of(&flags.still)?))
                .note(format!(
                    "{} flags by the socket, {never} without a RST within {} s; each to the end of a TCP connection that sends each {} us; an endpoint was changed {changes:.1} \
                     times a second; the agent made {views:.1} views a second",
                    flags.sent.len(),
                    PATIENCE.as_secs(),
                    PACE.as_micros()
                ));
            let goal = format!("under 1 ms, with {VIEWS} views a second or more");
            Ok(if percent > 90.0 { figure.goal(goal, value < GOAL && views >= VIEWS) } else { figure })
        })
        .collect()
}
