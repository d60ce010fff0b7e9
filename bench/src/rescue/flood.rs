//! Rescue under a flood. One thread sends as many SYNs as it can to a Service of which half of the endpoints are flagged; new connections to
//! another Service are measured, and compared with those beside the same flood while rescue is off.
use std::{path::Path, time::Duration};

use anyhow::{Context as _, ensure};
use nodefence_tests::load::{connections, syns::Syns};

use super::world::{self, Mode, World};
use crate::{
    cluster,
    figure::{Figure, Value},
    flows::server,
    progress::Progress,
    stats::{percentile, summary},
};

/// The least number of SYNs a second that counts as a flood.
const LEAST: f64 = 100_000.0;
/// New connections a second to the other Service.
const RATE: u32 = 200;
/// How long the flood goes on before anything is measured.
const BEFORE: Duration = Duration::from_secs(1);
/// Share of a processor that the agent may take, in percent.
const SHARE: f64 = 25.0;
/// With rescue, p99 of the other Service may be this many times p99 with rescue off.
const RATIO: f64 = 1.2;

struct Run {
    p99: f64,
    lost: u32,
    /// SYNs a second.
    flood: f64,
    /// Percent of a processor that the agent took.
    share: f64,
    rescued: u64,
    beyond: u64,
}

pub(super) fn run(length: Duration, rounds: u32, agent: &Path) -> anyhow::Result<Vec<Figure>> {
    let mut with = Vec::new();
    let mut without = Vec::new();
    for round in 0..rounds {
        for rescued in [true, false] {
            let way = if rescued { "rescue" } else { "no rescue" };
            let _progress = Progress::start(&format!("flood, {way}, run {} of {rounds}", round + 1), 1);
            let run = once(length, rescued, agent).with_context(|| format!("flood, {way}"))?;
            if rescued { with.push(run) } else { without.push(run) }
        }
    }
    figures(&with, &without)
}

fn once(length: Duration, rescued: bool, program: &Path) -> anyhow::Result<Run> {
    let mode = Mode::Nftables;
    let world = World::new(mode)?;
    let [b, c] = &world.nodes;
    let b = server::greeting(b)?;
    let _c = server::greeting(c)?;
    let agent = world.agent(program, if rescued { mode.name() } else { "none" })?;
    b.freeze()?;
    cluster::flag(&agent, "node-b", &["--wait"])?;
    let flood = Syns::start(&world.client, &world::CLIENTS, world::service())?;
    std::thread::sleep(BEFORE);
    let before: f64 = agent.proc()?.cpu()?.iter().sum();
    let seen = connections::run(&world.client, &world::CLIENTS, world::other_service(), RATE, length)?;
    let after: f64 = agent.proc()?.cpu()?.iter().sum();
    let flood = flood.finish()?;
    let row = agent.status()?["rescue"].take();
    let count = |name: &str| row[name].as_u64().with_context(|| format!("no {name} in {row}"));
    ensure!(row["idle"].is_null() == rescued, "{row}");
    Ok(Run {
        p99: percentile(&seen.took, 99.0).unwrap_or(f64::INFINITY),
        lost: seen.failed + seen.silent,
        flood,
        share: (after - before) / length.as_secs_f64() * 100.0,
        rescued: count("rescued")?,
        beyond: count("beyond_budget")?,
    })
}

fn figures(with: &[Run], without: &[Run]) -> anyhow::Result<Vec<Figure>> {
    let all = |runs: &[Run], pick: &dyn Fn(&Run) -> f64| {
        summary(&runs.iter().map(pick).collect::<Vec<f64>>()).context("no runs")
    };
    let flood = all(with, &|run| run.flood)?;
    let is_flood = with.iter().chain(without).all(|run| run.flood >= LEAST);
    let name = |what: &str| {
        format!("rescue, a flood of SYNs to a Service with half of its endpoints flagged: {what}")
    };
    let of_flood = if is_flood { "" } else { "; fewer SYNs than it takes" };
    let share = all(with, &|run| run.share)?;
    let share_figure = Figure::of(name("the agent's share of a processor"), "%", &share)
        .peer_of("rescue off", &all(without, &|run| run.share)?)
        .goal(format!("at most {SHARE} %, {LEAST} SYNs a second at least"), share.max <= SHARE && is_flood)
        .note(format!(
            "{:.0} SYNs a second; {:.0} packets rescued and {:.0} beyond the budget a run{of_flood}",
            flood.median,
            all(with, &|run| run.rescued as f64)?.median,
            all(with, &|run| run.beyond as f64)?.median,
        ));
    // Runs that followed each other are compared.
    let ratios: Vec<f64> = with.iter().zip(without).map(|(with, without)| with.p99 / without.p99).collect();
    let ratio = summary(&ratios).context("no runs")?;
    let lost = |runs: &[Run]| Value::Number(runs.iter().map(|run| f64::from(run.lost)).sum());
    let time =
        Figure::of(name("p99 of connect to answer, another Service"), "ms", &all(with, &|run| run.p99)?)
            .peer_of("rescue off", &all(without, &|run| run.p99)?)
            .ratio(ratio.median)
            .goal(
                format!("at most {RATIO} times that with rescue off, median of paired runs"),
                ratio.median <= RATIO,
            )
            .note(format!(
                "{RATE} connections a second; pairs {:.2} to {:.2}{of_flood}",
                ratio.min, ratio.max
            ));
    let failed = Figure::new(name("failed connections to another Service"), "connections", lost(with))
        .peer("rescue off", lost(without));
    Ok(vec![share_figure, time, failed])
}
