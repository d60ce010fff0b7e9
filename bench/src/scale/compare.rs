//! (5) The cost of comparing all entries of the maps with what the agent wrote, while nothing changes.
use std::{
    path::Path,
    time::{Duration, Instant},
};

use anyhow::ensure;

use super::{
    view::Sizes,
    world::{Source, World},
};
use crate::{
    figure::{Figure, Value},
    progress::Progress,
};

/// The agent's thread that compares. It also writes tables, but not while nothing changes.
const TABLES: &str = "tables";
/// A new comparison begins one second after the last one has ended, instead of ten minutes.
const EVERY: &str = "1s";
/// Percent of a processor that the thread may take.
const SHARE: f64 = 0.2;
/// The agent's default period: all entries must be compared within it.
const PERIOD: Duration = Duration::from_secs(600);
/// How often the benchmark asks the agent whether all entries were compared. The answer costs the agent more than the comparison.
const ASK: Duration = Duration::from_secs(5);

/// Measures from the end of one comparison to the end of a later one.
pub(super) fn run(program: &Path, sizes: Sizes, proxy: &str) -> anyhow::Result<Vec<Figure>> {
    let world = World::new(program, Source::Objects, sizes, &["--proxy", proxy, "--compare-every", EVERY])?;
    let process = world.agent.proc()?;
    let mut progress = Progress::start("compare: until a comparison begins, and one of all entries", 2);
    // The first comparison does not count: tables may have been written during it.
    let first = compared(&world, 0)?;
    progress.step();
    let started = Instant::now();
    let before = process.ran(TABLES)?;
    let times = compared(&world, first)? - first;
    let ran = (process.ran(TABLES)? - before).as_secs_f64();
    let seconds = started.elapsed().as_secs_f64();
    progress.step();
    drop(progress);
    let share = ran / seconds * 100.0;
    let each = seconds / times as f64;
    let figure = Figure::new("compare, share of a processor", "%", Value::Number(share))
        .peer("ms of processor for all entries", Value::Number(ran * 1e3 / times as f64))
        .goal(
            format!("at most {SHARE} %, and all within {} min", PERIOD.as_secs() / 60),
            share <= SHARE && each <= PERIOD.as_secs_f64(),
        )
        .note(format!(
            "the thread `{TABLES}`; all entries were compared {times} times in {seconds:.0} s; by default a comparison begins every {} min",
            PERIOD.as_secs() / 60
        ));
    world.agent.end()?;
    Ok(vec![figure])
}

/// Waits until all entries were compared more than `before` times. Returns how many times they were.
fn compared(world: &World, before: u64) -> anyhow::Result<u64> {
    let started = Instant::now();
    loop {
        std::thread::sleep(ASK);
        let plane = world.status()?.dataplane;
        ensure!(plane.compare_error.is_none() && plane.differed == 0, "the comparison failed: {plane:?}");
        if plane.compared > before {
            return Ok(plane.compared);
        }
        ensure!(started.elapsed() < PERIOD, "not all entries were compared within {PERIOD:?}");
    }
}
