//! (2) The cost of one changed endpoint, and of a hundred that change at once.
//!
//! The cost is measured from the change at the source until some time after the map has the change. By then the actors that read the new view
//! are done too. The cost at rest, in as much time before each change, is subtracted. The figure is the median: at rest the agent does some
//! work only now and then, and a sample with such work says nothing of the others.
use std::time::Duration;

use anyhow::{Context as _, ensure};
use nodefence::flags::monotonic_ns;

use super::{meter::Spent, view, world::World};
use crate::{
    figure::{Figure, Value},
    progress::Progress,
    stats::{Summary, summary},
};

/// The pause after a request to the agent, before a measurement.
const QUIET: Duration = Duration::from_millis(500);
/// Bound on bpf(2) and netlink calls of one changed endpoint.
const CALLS: f64 = 50.0;
/// Bounds on the milliseconds of a processor of one changed endpoint, and of a hundred.
const ONE_MS: f64 = 5.0;
const HUNDRED_MS: f64 = 15.0;

/// The time of the first measurement at rest. Later ones take as long as the change before them took.
const FIRST: Duration = Duration::from_secs(1);

/// One change.
struct Round {
    /// The cost at rest before the change, and the whole cost while the change was carried out.
    rest: Spent,
    all: Spent,
    /// Processor time of taking the objects and making the view, in milliseconds.
    taking_ms: f64,
    /// Milliseconds from the change at the source until the map had it.
    to_map_ms: f64,
    /// How many times the agent took waiting objects, and how many views it made of them.
    taken: u64,
    views: u64,
}

pub(super) fn run(world: &mut World, rounds: u32) -> anyhow::Result<Vec<Figure>> {
    let mut figures = Vec::new();
    for changes in [1, 100] {
        let label = format!("change: {}", named(changes));
        let mut progress = Progress::start(&label, rounds);
        let mut measured: Vec<Round> = Vec::new();
        for _ in 0..rounds {
            let rest = measured.last().map_or(FIRST, |last| Duration::from_secs_f64(last.all.seconds));
            measured.push(round(world, rest, changes)?);
            progress.step();
        }
        figures.extend(of(&measured, changes)?);
    }
    figures.push(node(world, rounds)?);
    Ok(figures)
}

/// The cost of an empty node that comes and goes again. Its name lies in the middle of all names, so that the nodes behind it move to other
/// places in the view.
fn node(world: &mut World, rounds: u32) -> anyhow::Result<Figure> {
    let nodes = world.view.sizes.nodes;
    let name = format!("{}-a", view::name(nodes / 2));
    let mut progress = Progress::start("change: one node", rounds);
    let mut spent = Vec::new();
    for _ in 0..rounds {
        for (line, there) in
            [(format!("node {name}=192.168.3.1\n"), nodes + 1), (format!("gone node {name}\n"), nodes)]
        {
            std::thread::sleep(QUIET);
            let begun = world.meter.now()?;
            world.says.as_mut().context("the agent follows a file")?.line(&line)?;
            // The agent makes a view within a tenth of a second.
            std::thread::sleep(QUIET);
            world.settle()?;
            let all = world.meter.now()? - begun;
            let cluster = world.status()?.cluster;
            ensure!(cluster.nodes == there, "{} nodes after `{}`", cluster.nodes, line.trim());
            spent.push(all.processor_ms);
        }
        progress.step();
    }
    let spent = summary(&spent).context("no rounds")?;
    Ok(Figure::of("one node comes or goes, processor time", "ms", &spent)
        .note("no goal; the cost at rest is included; a view with other nodes shares little with the view before it (docs/design/view.md)"))
}

fn named(changes: usize) -> String {
    if changes == 1 { "one endpoint".to_owned() } else { format!("{changes} endpoints at once") }
}

fn round(world: &mut World, rest: Duration, changes: usize) -> anyhow::Result<Round> {
    let before = world.status()?.cluster;
    std::thread::sleep(QUIET);
    let resting = world.meter.now()?;
    std::thread::sleep(rest);
    let rest = world.meter.now()? - resting;
    let changes: Vec<_> = (0..changes).map(|_| world.view.change_any()).collect();
    let begun = world.meter.now()?;
    let changed = monotonic_ns();
    let says = world.says.as_mut().context("the agent follows a file")?;
    says.tell(&world.view, &changes)?;
    let written = world.maps.wait(&changes)?;
    world.settle()?;
    let all = world.meter.now()? - begun;
    let after = world.status()?.cluster;
    ensure!(after.error.is_none(), "{after:?}");
    Ok(Round {
        rest,
        all,
        taking_ms: (after.reading.processor_micros - before.reading.processor_micros) as f64 / 1e3,
        to_map_ms: written.saturating_sub(changed) as f64 / 1e6,
        taken: after.reading.times - before.reading.times,
        views: after.view - before.view,
    })
}

fn of(rounds: &[Round], changes: usize) -> anyhow::Result<Vec<Figure>> {
    let summed = |pick: &dyn Fn(&Round) -> f64| -> anyhow::Result<Summary> {
        summary(&rounds.iter().map(pick).collect::<Vec<f64>>()).context("no rounds")
    };
    let middle = |pick: &dyn Fn(&Round) -> f64| anyhow::Ok(Value::Number(summed(pick)?.median));
    // The cost above the median at rest.
    let beyond = |pick: &dyn Fn(&Round) -> f64, resting: &dyn Fn(&Round) -> f64| {
        let rest = summed(resting)?.median;
        summed(&|round| pick(round) - rest)
    };
    let name = |what: &str| format!("{}, {what}", named(changes));
    let processor = beyond(&|round| round.all.processor_ms, &|round| round.rest.processor_ms)?;
    let bound = if changes == 1 { ONE_MS } else { HUNDRED_MS };
    let note = format!(
        "median of {} changes, measured for {:.1} s each; the cost at rest in as much time is subtracted; the agent took each in {:.0} \
         part(s) and made {:.0} view(s)",
        rounds.len(),
        summed(&|round| round.all.seconds)?.median,
        summed(&|round| round.taken as f64)?.median,
        summed(&|round| round.views as f64)?.median
    );
    let calls = beyond(&|round| round.all.calls(), &|round| round.rest.calls())?;
    let all_calls = Figure::of(name("calls of bpf(2) and netlink"), "calls", &calls)
        .peer("at rest", middle(&|round| round.rest.calls())?)
        .peer("rest included: bpf(2)", middle(&|round| round.all.bpf)?)
        .peer("rest included: netlink sent", middle(&|round| round.all.sent)?)
        .peer("rest included: netlink received", middle(&|round| round.all.received)?);
    let to_map = Figure::of(
        name("from the change at the source to the map"),
        "ms",
        &summed(&|round| round.to_map_ms)?,
    )
    .note("no goal");
    Ok(vec![
        Figure::of(name("processor time"), "ms", &processor)
            .peer("taking the objects", middle(&|round| round.taking_ms)?)
            .peer("at rest", middle(&|round| round.rest.processor_ms)?)
            .peer("rest included", middle(&|round| round.all.processor_ms)?)
            .goal(format!("at most {bound} ms"), processor.median <= bound)
            .note(note),
        match changes {
            1 => all_calls.goal(format!("at most {CALLS}"), calls.median <= CALLS),
            _ => all_calls,
        },
        to_map,
    ])
}
