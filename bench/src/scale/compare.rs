//! (5) What it costs to compare all entries of the maps with what was written, while nothing else is done.
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

/// The agent's thread that compares. It writes tables too, of which there are none while nothing changes.
const TABLES: &str = "tables";
/// It begins a second after the tables were written, and not ten minutes.
const EVERY: [&str; 2] = ["--compare-every", "1s"];
/// Percent of a processor.
const SHARE: f64 = 0.2;

/// How often an agent begins that is not told otherwise: all is to be compared by then.
const PERIOD: Duration = Duration::from_secs(600);
/// How often it is asked whether all were compared: who asks costs more than who compares.
const ASK: Duration = Duration::from_secs(5);

/// Until all were compared once.
pub(super) fn run(program: &Path, sizes: Sizes, proxy: &str) -> anyhow::Result<Vec<Figure>> {
    let options = ["--proxy", proxy, EVERY[0], EVERY[1]];
    let world = World::new(program, Source::Objects, sizes, &options)?;
    world.settle()?;
    let process = world.agent.proc()?;
    let started = Instant::now();
    let before = process.ran(TABLES)?;
    let mut progress = Progress::start("compare: all entries", 1);
    let plane = loop {
        std::thread::sleep(ASK);
        let plane = world.status()?.dataplane;
        if plane.compared > 0 || started.elapsed() > PERIOD {
            break plane;
        }
    };
    let ran = (process.ran(TABLES)? - before).as_secs_f64();
    let seconds = started.elapsed().as_secs_f64();
    progress.step();
    drop(progress);
    ensure!(plane.compare_error.is_none() && plane.differed == 0, "the comparison failed: {plane:?}");
    let share = ran / seconds * 100.0;
    let is_done = plane.compared > 0;
    let figure = Figure::new("compare, share of a processor", "%", Value::Number(share))
        .peer("ms of processor", Value::Number(ran * 1e3))
        .goal(
            format!("at most {SHARE} %, and all within {:.0} min", PERIOD.as_secs_f64() / 60.0),
            share <= SHARE && is_done,
        )
        .note(format!(
            "the thread `{TABLES}`; {} entries were compared within {seconds:.0} s; this begins every 10 min",
            if is_done { "all" } else { "not all" }
        ));
    world.agent.end()?;
    Ok(vec![figure])
}
