//! (2) What a changed endpoint costs, and a hundred that change at once.
//!
//! From the change of the file until a moment after the map holds it, so that whoever reads what the agent made known is done as well. Taken off are the file's
//! reading, as the agent itself measures it (the processor time of the thread that reads, parses and checks), and what the agent spends at rest: in as much time
//! before each change. Of both the median counts, since at rest much is done seldom: a window in which that happens is no measure of the others. Of calls only
//! those at rest are taken off: what reading the file asks of the kernel (the machine's addresses) is among them.
use std::time::Duration;

use anyhow::{Context as _, ensure};
use nodefence::flags::monotonic_ns;

use super::{meter::Spent, world::World};
use crate::{
    figure::{Figure, Value},
    progress::Progress,
    stats::{Summary, summary},
};

/// After a request to the agent, before something is measured.
const QUIET: Duration = Duration::from_millis(500);
/// bpf(2) and netlink calls of one changed endpoint.
const CALLS: f64 = 50.0;
/// Milliseconds of a processor of one changed endpoint, and of a hundred.
const ONE_MS: f64 = 5.0;
const HUNDRED_MS: f64 = 15.0;

/// The first look at rest, in place of as much time as a change took.
const FIRST: Duration = Duration::from_secs(1);

/// One change of the file.
struct Round {
    /// What was spent before, in as much time as the change before took, and then.
    rest: Spent,
    all: Spent,
    /// Milliseconds of a processor that the file's reading took.
    reading_ms: f64,
    /// Milliseconds from the file's change to the map, and of those how many after the file was read.
    to_map_ms: f64,
    after_reading_ms: f64,
    /// How often the file was read, and how many views came of it.
    read: u64,
    views: u64,
}

impl Round {
    /// But for the file's reading.
    fn processor_ms(&self) -> f64 {
        self.all.processor_ms - self.reading_ms
    }
}

pub(super) fn run(world: &mut World, rounds: u32) -> anyhow::Result<Vec<Figure>> {
    let mut figures = Vec::new();
    for changes in [1, 100] {
        let label = format!("change: {}", told(changes));
        let mut progress = Progress::start(&label, rounds);
        let mut measured: Vec<Round> = Vec::new();
        for _ in 0..rounds {
            let rest = measured.last().map_or(FIRST, |last| Duration::from_secs_f64(last.all.seconds));
            measured.push(round(world, rest, changes)?);
            progress.step();
        }
        figures.extend(of(&measured, changes)?);
    }
    Ok(figures)
}

fn told(changes: usize) -> String {
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
    world.rewrite()?;
    let written = world.maps.wait(&changes)?;
    world.settle()?;
    let all = world.meter.now()? - begun;
    let after = world.status()?.cluster;
    ensure!(after.error.is_none(), "{after:?}");
    let milliseconds = |from: u64| written.saturating_sub(from) as f64 / 1e6;
    Ok(Round {
        rest,
        all,
        reading_ms: (after.reading.processor_micros - before.reading.processor_micros) as f64 / 1e3,
        to_map_ms: milliseconds(changed),
        after_reading_ms: milliseconds(after.reading.ended_ns),
        read: after.reading.times - before.reading.times,
        views: after.view - before.view,
    })
}

fn of(rounds: &[Round], changes: usize) -> anyhow::Result<Vec<Figure>> {
    let summed = |pick: &dyn Fn(&Round) -> f64| -> anyhow::Result<Summary> {
        summary(&rounds.iter().map(pick).collect::<Vec<f64>>()).context("no rounds")
    };
    let middle = |pick: &dyn Fn(&Round) -> f64| anyhow::Ok(Value::Number(summed(pick)?.median));
    // What is beyond the middle of what is spent at rest.
    let beyond = |pick: &dyn Fn(&Round) -> f64, resting: &dyn Fn(&Round) -> f64| {
        let rest = summed(resting)?.median;
        summed(&|round| pick(round) - rest)
    };
    let name = |what: &str| format!("{}, {what}", told(changes));
    let processor = beyond(&Round::processor_ms, &|round| round.rest.processor_ms)?;
    let bound = if changes == 1 { ONE_MS } else { HUNDRED_MS };
    let note = format!(
        "median of {} changes, measured for {:.1} s each; taken off: reading the file, and what is spent at rest in as much time; \
         each was read {:.0} time(s) and gave {:.0} view(s)",
        rounds.len(),
        summed(&|round| round.all.seconds)?.median,
        summed(&|round| round.read as f64)?.median,
        summed(&|round| round.views as f64)?.median
    );
    let calls = beyond(&|round| round.all.calls(), &|round| round.rest.calls())?;
    let told_calls = Figure::of(name("calls of bpf(2) and netlink"), "calls", &calls)
        .peer("at rest", middle(&|round| round.rest.calls())?)
        .peer("with that: bpf(2)", middle(&|round| round.all.bpf)?)
        .peer("with that: netlink sent", middle(&|round| round.all.sent)?)
        .peer("with that: netlink received", middle(&|round| round.all.received)?);
    let to_map = Figure::of(name("from the file to the map"), "ms", &summed(&|round| round.to_map_ms)?)
        .peer("of it after the file was read", middle(&|round| round.after_reading_ms)?)
        .note("for its own sake; the agent waits 50 ms for quiet before it reads");
    Ok(vec![
        Figure::of(name("processor time"), "ms", &processor)
            .peer("reading the file", middle(&|round| round.reading_ms)?)
            .peer("at rest", middle(&|round| round.rest.processor_ms)?)
            .peer("with both", middle(&|round| round.all.processor_ms)?)
            .goal(format!("at most {bound} ms, the file's reading apart"), processor.median <= bound)
            .note(note),
        match changes {
            1 => told_calls.goal(format!("at most {CALLS}"), calls.median <= CALLS),
            _ => told_calls,
        },
        to_map,
    ])
}
