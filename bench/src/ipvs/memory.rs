//! Resident memory of the running agent beside large tables.
use std::{
    path::Path,
    time::{Duration, Instant},
};

use anyhow::{Context as _, bail, ensure};
use nodefence::report::{Request, Status};

use super::world::{PODS, Shape, World, node};
use crate::{
    figure::{Figure, Value},
    progress::Progress,
    stats::summary,
};

/// Resident memory that the agent may have, in MiB.
const GOAL: f64 = 64.0;
/// The node that is flagged meanwhile.
const FLAGGED: u16 = 0;
/// How long the drain may take.
const PATIENCE: Duration = Duration::from_secs(300);
/// How often memory and drain are read.
const LOOK: Duration = Duration::from_millis(200);

pub(super) fn run(world: &World, shape: &Shape, watched: Duration, program: &Path) -> anyhow::Result<Figure> {
    let mut progress = Progress::start("resident memory", 3);
    let agent = world.agent(program, shape)?;
    let mut resting = Vec::new();
    watch(watched, || {
        resting.push(agent.proc()?.memory("VmRSS")?);
        Ok(false)
    })?;
    progress.step();
    agent.flag_by_socket(&node(FLAGGED))?;
    let mut working = Vec::new();
    let done = watch(PATIENCE, || {
        working.push(agent.proc()?.memory("VmRSS")?);
        let status: Status = agent.ask(&Request::Status)?;
        let row = status.ipvs.nodes.get(node(FLAGGED).as_str());
        Ok(row.is_some_and(|row| row.drained == PODS && row.waiting == 0))
    })?;
    if !done {
        bail!("the node is not drained after {PATIENCE:?}");
    }
    progress.step();
    // Meanwhile the agent reads back the destinations that it drained, and all others.
    watch(watched, || {
        working.push(agent.proc()?.memory("VmRSS")?);
        Ok(false)
    })?;
    progress.step();
    let status: Status = agent.ask(&Request::Status)?;
    ensure!(status.cluster.backends == shape.destinations(), "{} backends", status.cluster.backends);
    let of = |samples: &[f64]| summary(samples).context("no samples");
    let resting = of(&resting)?;
    let working = of(&working)?;
    let most = working.max.max(resting.max);
    let peak = agent.proc()?.memory("VmHWM")?;
    agent.end()?;
    let name = format!(
        "IPVS, resident memory of the agent beside {} services of {} destinations, a node flagged",
        shape.services.len(),
        shape.destinations() / shape.services.len()
    );
    Ok(Figure::of(name, "MiB", &working)
        .peer_of("no node flagged", &resting)
        .peer("peak, start included", Value::Number(peak))
        .goal(format!("under {GOAL} MiB at each look once it runs"), most < GOAL)
        .note(format!(
            "{most:.1} MiB at most once it ran; {} backends, each behind one service",
            shape.destinations()
        )))
}

/// Calls `look` again and again, until it returns true or the time is over. Returns whether it returned true.
fn watch(time: Duration, mut look: impl FnMut() -> anyhow::Result<bool>) -> anyhow::Result<bool> {
    let begun = Instant::now();
    while begun.elapsed() < time {
        if look()? {
            return Ok(true);
        }
        std::thread::sleep(LOOK);
    }
    Ok(false)
}
