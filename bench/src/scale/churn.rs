//! (4) A thousand endpoints change each second, while ten nodes a second are flagged and unflagged.
use std::{
    sync::atomic::AtomicBool,
    time::{Duration, Instant},
};

use anyhow::{Context as _, ensure};
use nodefence::{flags::monotonic_ns, report::ClusterRow};
use nodefence_common::Verdict;
use nodefence_tests::load::{repeat, under};

use super::{
    meter::Spent,
    requests::{client, flag, unflag},
    view::{Moved, View},
    world::{Maps, Says, World},
};
use crate::{
    figure::{Figure, Value},
    progress::Progress,
};

/// How many endpoints change together, and how often: a thousand endpoints a second, if the machine can.
const CHANGES: usize = 20;
const TELLS: Duration = Duration::from_millis(20);
/// How often a node is flagged.
const FLAGS: Duration = Duration::from_millis(100);
/// A node is unflagged once this many other nodes were flagged after it. So its verdict is renewed at least once.
const HELD: usize = 30;
/// How often all verdicts are read.
const LOOK: Duration = Duration::from_millis(100);

/// Percent of a processor that the agent may take.
const SHARE: f64 = 50.0;
/// With fewer changes or flags a second the share says nothing. The bounds are 95 % of the rate that the benchmark tries.
const LEAST_CHANGES: f64 = 950.0;
const LEAST_FLAGS: f64 = 9.5;
/// The least number of seconds to the end of a verdict, at each look.
const AHEAD: f64 = 1.0;
/// Milliseconds within which the maps must have the last change.
const LAST_MS: f64 = 500.0;
/// Views a second that the agent may make.
const VIEWS: f64 = 10.0;
/// Memory at the end may be this many times its size once it has settled.
const GROWTH: f64 = 1.1;
/// The period in which the greatest size of memory is taken, once after it has settled and once at the end. The size rises and falls with
/// each view.
const SIZED: Duration = Duration::from_secs(10);

/// Work that repeats until it is told to stop. Returns how many times it was done.
type Load<'a> = Box<dyn FnOnce(&AtomicBool) -> anyhow::Result<u64> + Send + 'a>;

/// The observations during the churn.
struct Seen {
    spent: Spent,
    before: ClusterRow,
    after: ClusterRow,
    /// Changes a second.
    changes: f64,
    /// Nodes flagged a second.
    flags: f64,
    /// Milliseconds from the request until the map had the verdict: of the last flag, and of the slowest.
    last_flag_ms: f64,
    slowest_flag_ms: f64,
    /// Milliseconds from the last change at the source until the map had it.
    last_told_ms: f64,
    /// The least number of seconds to the end of a verdict.
    ahead: f64,
    /// The greatest resident memory in MiB, once it had settled and at the end.
    settled: f64,
    end: f64,
}

/// `time` is the length of the churn. Memory is first read after `settle`.
pub(super) fn run(world: &mut World, time: Duration, settle: Duration) -> anyhow::Result<Vec<Figure>> {
    let seen = see(world, time, settle)?;
    Ok(figures(&seen, settle))
}

fn see(world: &mut World, time: Duration, settle: Duration) -> anyhow::Result<Seen> {
    let before = world.status()?.cluster;
    world.settle()?;
    let mut requests = client(world)?;
    let begun = world.meter.now()?;
    let World { view, maps, agent, says, meter, .. } = &mut *world;
    let says = says.as_mut().context("the agent follows a file")?;
    let nodes = view.sizes.nodes;
    let process = agent.proc()?;
    let mut last = Last::default();
    let mut ahead = f64::INFINITY;
    let teller = |stop: &AtomicBool| tell(stop, view, says, &mut last);
    let looker = |stop: &AtomicBool| look(stop, maps, nodes, &mut ahead);
    let clients: [Load<'_>; 2] = [Box::new(teller), Box::new(looker)];
    let (flagged, clients) = under(clients, || -> anyhow::Result<_> {
        let mut progress = Progress::start("churn", u32::try_from(time.as_secs())?);
        let started = Instant::now();
        let mut flags_ms = Vec::new();
        let mut settled = 0.0_f64;
        let mut end = 0.0_f64;
        while started.elapsed() < time {
            let next = started.elapsed() + FLAGS;
            // Node 0 is the agent's own and is left out.
            let sent = monotonic_ns();
            let report = flag(&mut requests, 1 + flags_ms.len() % (nodes - 1))?;
            flags_ms.push(maps.wait_for_verdict(report.index)?.saturating_sub(sent) as f64 / 1e6);
            if let Some(held) = flags_ms.len().checked_sub(HELD + 1) {
                unflag(&mut requests, 1 + held % (nodes - 1))?;
            }
            let resident = process.memory("VmRSS")?;
            let so_far = started.elapsed();
            if so_far >= settle && so_far < settle + SIZED {
                settled = settled.max(resident);
            }
            if so_far + SIZED >= time {
                end = end.max(resident);
            }
            std::thread::sleep(next.saturating_sub(started.elapsed()));
            progress.at(u32::try_from(started.elapsed().as_secs())?);
        }
        ensure!(settled > 0.0, "it was over before memory had settled");
        Ok((flags_ms, settled, end, meter.now()? - begun))
    });
    let mut counts = Vec::new();
    for client in clients {
        counts.push(client?);
    }
    let (flags_ms, settled, end, spent) = flagged?;
    let in_map = world.maps.wait(&last.changes)?;
    world.settle()?;
    let after = world.status()?.cluster;
    ensure!(after.error.is_none(), "{after:?}");
    // The first connection was idle for too long, and the agent has closed it.
    let mut requests = client(world)?;
    for node in flags_ms.len().saturating_sub(HELD)..flags_ms.len() {
        unflag(&mut requests, 1 + node % (nodes - 1))?;
    }
    ensure!(ahead.is_finite(), "no verdict was seen in the maps");
    let tells = counts.first().copied().unwrap_or(0) as f64 / spent.seconds;
    Ok(Seen {
        changes: tells * CHANGES as f64,
        flags: flags_ms.len() as f64 / spent.seconds,
        last_flag_ms: flags_ms.last().copied().context("no flags")?,
        slowest_flag_ms: flags_ms.iter().copied().fold(0.0, f64::max),
        last_told_ms: in_map.saturating_sub(last.told) as f64 / 1e6,
        spent,
        before,
        after,
        ahead,
        settled,
        end,
    })
}

/// The last changes at the source.
#[derive(Default)]
struct Last {
    changes: Vec<Moved>,
    /// When they were made: CLOCK_MONOTONIC, in ns.
    told: u64,
}

fn tell(stop: &AtomicBool, view: &mut View, says: &mut Says, last: &mut Last) -> anyhow::Result<u64> {
    let mut next = Instant::now();
    repeat(stop, || {
        last.changes = (0..CHANGES).map(|_| view.change_any()).collect();
        says.tell(view, &last.changes)?;
        last.told = monotonic_ns();
        // The next time counts from the last planned time: late changes are made up for.
        next += TELLS;
        Ok(next.saturating_duration_since(Instant::now()))
    })
}

/// Reads all entries of `nodes` again and again, and stores in `ahead` the least number of seconds to the end of a verdict.
fn look(stop: &AtomicBool, maps: &Maps, nodes: usize, ahead: &mut f64) -> anyhow::Result<u64> {
    repeat(stop, || {
        for index in 0..u32::try_from(nodes)? {
            let entry = maps.node(index)?;
            if entry.verdict != Verdict::Healthy as u32 {
                let seconds = (entry.until as f64 - monotonic_ns() as f64) / 1e9;
                *ahead = ahead.min(seconds);
            }
        }
        Ok(LOOK)
    })
}

fn figures(seen: &Seen, settle: Duration) -> Vec<Figure> {
    let Seen { spent, before, after, .. } = seen;
    let load = format!(
        "{:.0} endpoints changed a second, {:.1} nodes flagged and unflagged a second, for {:.0} s",
        seen.changes, seen.flags, spent.seconds
    );
    // The difference includes some work that the agent did after the end of the load.
    let taking_ms = (after.reading.processor_micros - before.reading.processor_micros) as f64 / 1e3;
    let taking = Spent { processor_ms: taking_ms, ..*spent };
    let views = (after.view - before.view) as f64 / spent.seconds;
    let growth = seen.end / seen.settled;
    let number = Value::Number;
    vec![
        Figure::new("churn, share of a processor", "%", number(spent.share()))
            .peer("taking the objects", number(taking.share()))
            .goal(
                format!("at most {SHARE} %, with {LEAST_CHANGES} changes and {LEAST_FLAGS} flags a second at least"),
                spent.share() <= SHARE && seen.changes >= LEAST_CHANGES && seen.flags >= LEAST_FLAGS,
            )
            .note(load),
        Figure::new("churn, views a second", "views", number(views))
            .goal(format!("at most {VIEWS}"), views <= VIEWS + 1.0 / spent.seconds)
            .note(format!("changes were taken {} times", after.reading.times - before.reading.times)),
        Figure::new("churn, least time to the end of a verdict", "s", number(seen.ahead))
            .goal(format!("at least {AHEAD} s at each look"), seen.ahead >= AHEAD)
            .note(format!("all entries of `nodes` were read every {} ms", LOOK.as_millis())),
        Figure::new(
            "churn, until the last change is in the maps",
            "ms",
            number(seen.last_told_ms.max(seen.last_flag_ms)),
        )
        .peer("endpoint, from the change at the source", number(seen.last_told_ms))
        .peer("flag, from the request", number(seen.last_flag_ms))
        .peer("slowest of all flags", number(seen.slowest_flag_ms))
        .goal(format!("within {LAST_MS} ms"), seen.last_told_ms.max(seen.last_flag_ms) <= LAST_MS),
        Figure::new("churn, resident memory at the end", "MiB", number(seen.end))
            .peer(&format!("after {} s", settle.as_secs()), number(seen.settled))
            .note(format!("the greatest within {} s", SIZED.as_secs()))
            .ratio(growth)
            .goal(format!("at most {GROWTH} times that after {} s", settle.as_secs()), growth <= GROWTH),
    ]
}
