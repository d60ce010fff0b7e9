//! Rescue: new connections while half of the endpoints hang, and kube-proxy's rules still pick them.
//!
//! client - router (node A: rules like kube-proxy's, the agent) - nodes B and C with ten endpoints each. B's server process is frozen while its
//! kernel goes on answering, and B is flagged. A connection is timed from `connect` until the first byte of a server has come. The same load
//! is measured while all endpoints answer, and with the cut alone, which refuses the connections that the rules send to B.
mod flood;
mod world;

use std::{path::Path, time::Duration};

use anyhow::{Context as _, ensure};

use nodefence_tests::load::connections::{self, Seen};

use self::world::{Mode, World};
use crate::{
    cluster,
    figure::{Figure, Value},
    flows::server,
    progress::Progress,
    stats::{percentile, summary},
};

/// The amount of work.
pub(crate) struct Sizes {
    /// New connections a second.
    pub(crate) rate: u32,
    /// Length of one run.
    pub(crate) length: Duration,
    /// The number of runs of each way in each mode.
    pub(crate) rounds: u32,
}

/// With rescue, p99 may be this many milliseconds above p99 while all endpoints answer.
const GOAL: f64 = 50.0;

/// The state of the nodes, and of the agent, while the connections are made.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Way {
    Well,
    Rescued,
    CutAlone,
}

impl Way {
    const ALL: [Self; 3] = [Self::Well, Self::Rescued, Self::CutAlone];

    fn name(self) -> &'static str {
        match self {
            Self::Well => "all endpoints answer",
            Self::Rescued => "half hang, rescue",
            Self::CutAlone => "half hang, the cut alone",
        }
    }
}

/// The outcome of a run, and how many packets the agent rescued.
struct Run {
    seen: Seen,
    rescued: u64,
}

impl Run {
    fn p(&self, p: f64) -> f64 {
        percentile(&self.seen.took, p).unwrap_or(f64::INFINITY)
    }

    fn lost(&self) -> u32 {
        self.seen.failed + self.seen.silent
    }
}

/// Measures new connections beside a flood of SYNs.
pub(crate) fn flood(sizes: &Sizes, agent: &Path) -> anyhow::Result<Vec<Figure>> {
    flood::run(sizes.length, sizes.rounds, agent)
}

pub(crate) fn run(sizes: &Sizes, agent: &Path) -> anyhow::Result<Vec<Figure>> {
    let mut figures = Vec::new();
    for mode in Mode::ALL {
        let mut runs: [Vec<Run>; 3] = Default::default();
        for round in 0..sizes.rounds {
            for (way, runs) in Way::ALL.into_iter().zip(&mut runs) {
                let label =
                    format!("rescue, {}, {}, run {} of {}", mode.name(), way.name(), round + 1, sizes.rounds);
                let _progress = Progress::start(&label, 1);
                runs.push(once(sizes, mode, way, agent).with_context(|| label.clone())?);
            }
        }
        figures.extend(of_mode(sizes, mode, &runs)?);
    }
    Ok(figures)
}

fn once(sizes: &Sizes, mode: Mode, way: Way, program: &Path) -> anyhow::Result<Run> {
    let world = World::new(mode)?;
    let [b, c] = &world.nodes;
    let b = server::greeting(b)?;
    let _c = server::greeting(c)?;
    let agent = world.agent(program, if way == Way::CutAlone { "none" } else { mode.name() })?;
    if way != Way::Well {
        b.freeze()?;
        cluster::flag(&agent, "node-b", &["--wait"])?;
        let rescues = agent.status()?["rescue"]["idle"].is_null();
        ensure!(rescues == (way == Way::Rescued), "{}", agent.status()?["rescue"]);
    }
    let seen = connections::run(&world.client, &world::CLIENTS, world::service(), sizes.rate, sizes.length)?;
    let rescued = agent.status()?["rescue"]["rescued"]
        .as_u64()
        .context("the status has no number of rescued packets")?;
    Ok(Run { seen, rescued })
}

fn of_mode(sizes: &Sizes, mode: Mode, [well, rescued, cut]: &[Vec<Run>; 3]) -> anyhow::Result<[Figure; 2]> {
    let all = |runs: &[Run], pick: &dyn Fn(&Run) -> f64| {
        summary(&runs.iter().map(pick).collect::<Vec<f64>>()).context("no runs")
    };
    let p99 = |runs: &[Run]| all(runs, &|run| run.p(99.0));
    let healthy = p99(well)?;
    let ours = p99(rescued)?;
    let name = |what: &str| {
        format!(
            "rescue, {}, {} new connections a second, half of the endpoints hung: {what}",
            mode.name(),
            sizes.rate
        )
    };
    let lost = all(rescued, &|run| f64::from(run.lost()))?;
    // A load below the wanted rate proves nothing.
    let steady = rescued.iter().chain(well).all(|run| run.seen.rate >= f64::from(sizes.rate) * 0.99);
    let more = ours.max - healthy.median;
    let time = Figure::of(name("p99 of connect to answer"), "ms", &ours)
        .peer_of(Way::Well.name(), &healthy)
        .ratio(ours.max / healthy.median)
        .goal(
            format!("at most {GOAL} ms more than while all endpoints answer, in each run"),
            more <= GOAL && steady,
        );
    let note = format!(
        "{more:.2} ms more in the slowest run; median {:.2} ms, slowest {:.1} ms; {:.0} packets rescued a run; {}",
        all(rescued, &|run| run.p(50.0))?.median,
        all(rescued, &|run| run.p(100.0))?.max,
        all(rescued, &|run| run.rescued as f64)?.median,
        if steady { "the load kept its rate" } else { "the load did not keep its rate" },
    );
    let of = sizes.length.as_secs_f64() * f64::from(sizes.rate);
    let failed = Figure::of(name(&format!("failed of {of}")), "connections", &lost)
        .peer(Way::CutAlone.name(), Value::Number(all(cut, &|run| f64::from(run.lost()))?.median))
        .peer(Way::Well.name(), Value::Number(all(well, &|run| f64::from(run.lost()))?.max))
        .goal("none fails", lost.max == 0.0 && steady);
    Ok([time.note(note), failed])
}
