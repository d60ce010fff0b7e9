//! (d) Established flows: how long until the clients' own sockets have all returned an error.
//!
//! client - router (node A: nftables DNAT, conntrack) - node B, whose server process is frozen while its kernel goes on answering.
//! Half of the clients wait in epoll, the other half sends a byte now and then. Each way gets fresh namespaces and fresh flows. The clock
//! starts before the operator's command does, so that the start of a command counts for all ways.
pub(crate) mod server;
mod way;
mod world;

use std::{
    net::SocketAddrV4,
    path::Path,
    time::{Duration, Instant},
};

use anyhow::Context as _;
use nodefence_tests::load::flows::{Errors, Flows, Plan};

pub(crate) use self::world::{SERVER_PORT, Sizes};
use self::{
    way::Way,
    world::{Cluster, PER_ADDRESS, SERVICE, SERVICE_PORT},
};
use crate::{
    figure::{Figure, Value},
    plot,
    progress::Progress,
};

/// The first source port that clients use.
const FIRST_PORT: u16 = 2_000;

/// Seconds within which all clients must have their error.
const GOAL: f64 = 1.0;

/// The outcome of the flows of one run.
struct Outcome {
    /// The errors of the clients' sockets. Their times count from the operator's command.
    errors: Errors,
    /// How long the operator's command itself ran, in seconds.
    command: f64,
    /// The outcome that the agent reported.
    said: Option<String>,
}

impl Outcome {
    fn all_after(&self) -> Value {
        match self.errors.left {
            [0, 0] => Value::Number(self.errors.last[0].max(self.errors.last[1])),
            _ => Value::Never,
        }
    }

    /// The time of the last error of the idle (0) or the sending (1) flows.
    fn half_after(&self, half: usize) -> Value {
        match self.errors.left[half] {
            0 => Value::Number(self.errors.last[half]),
            _ => Value::Never,
        }
    }
}

pub(crate) fn run(sizes: &Sizes, agent: &Path, out: &Path) -> anyhow::Result<Vec<Figure>> {
    let mut results: Vec<(Way, Vec<Outcome>)> = Way::ALL.map(|way| (way, Vec::new())).into();
    for round in 0..sizes.rounds {
        for (way, outcomes) in &mut results {
            // A peer that once did not end within the cap is not run again.
            if outcomes.iter().any(|outcome: &Outcome| outcome.all_after() == Value::Never)
                && *way != Way::Ours
            {
                continue;
            }
            let label =
                format!("d {} flows, {}, run {} of {}", sizes.flows, way.name(), round + 1, sizes.rounds);
            let _progress = Progress::start(&label, 1);
            outcomes.push(once(sizes, *way, agent)?);
        }
    }
    plots(sizes, &results, out)?;
    figures(sizes, &results)
}

fn once(sizes: &Sizes, way: Way, agent: &Path) -> anyhow::Result<Outcome> {
    let cluster = Cluster::new(sizes)?;
    let server = server::start(&cluster.node_b, sizes.flows)?;
    let prepared = way.prepare(&cluster, sizes, agent)?;
    let to = format!("{SERVICE}:{SERVICE_PORT}").parse().context("the service's address")?;
    let plan = Plan { flows: sizes.flows, from: client, to, every: sizes.every };
    let flows = Flows::establish(&cluster.client, &plan)?;
    server.freeze()?;
    flows.go();
    // After this pause both halves are under way.
    std::thread::sleep(sizes.every.min(Duration::from_secs(1)));
    way.before(&cluster)?;
    let cpu = prepared.as_ref().map(|agent| agent.proc()?.cpu()).transpose()?;
    let started = Instant::now();
    let mut said = way.act(&cluster, prepared.as_ref())?;
    let command = started.elapsed().as_secs_f64();
    let errors = flows.wait(started, sizes.cap)?;
    if let (Some(agent), Some(before), Some(said)) = (&prepared, cpu, &mut said) {
        let now = agent.proc()?.cpu()?;
        let user = now[0] - before[0];
        let kernel = now[1] - before[1];
        said.push_str(&format!(
            "; it used {user:.2} s of CPU in its own code and {kernel:.2} s in the kernel meanwhile"
        ));
    }
    Ok(Outcome { errors, command, said })
}

/// The source address of a flow.
fn client(index: u32) -> anyhow::Result<SocketAddrV4> {
    let port = FIRST_PORT + u16::try_from(index % PER_ADDRESS)?;
    let host = u8::try_from(10 + index / PER_ADDRESS)?;
    Ok(SocketAddrV4::new([192, 168, 1, host].into(), port))
}

fn figures(sizes: &Sizes, results: &[(Way, Vec<Outcome>)]) -> anyhow::Result<Vec<Figure>> {
    let ours = results
        .iter()
        .find(|(way, _)| *way == Way::Ours)
        .map(|(_, outcomes)| outcomes.as_slice())
        .unwrap_or_default();
    let figure = |name: &str, pick: &dyn Fn(&Outcome) -> Value| {
        // One run that never ended makes its way "never": a median would hide that run.
        let over_runs = |outcomes: &[Outcome]| {
            let mut values: Vec<f64> = Vec::new();
            for outcome in outcomes {
                match pick(outcome) {
                    Value::Number(number) => values.push(number),
                    Value::Never => return (Value::Never, None),
                }
            }
            match crate::stats::summary(&values) {
                Some(summary) => (Value::Number(summary.median), Some(summary)),
                None => (Value::Never, None),
            }
        };
        let (value, spread) = over_runs(ours);
        let label = format!("d {} flows, half idle, {name}", sizes.flows);
        let mut figure = match spread {
            Some(spread) => Figure::of(label, "s", &spread),
            None => Figure::new(label, "s", value),
        };
        for (way, outcomes) in results.iter().filter(|(way, _)| *way != Way::Ours) {
            let (value, _) = over_runs(outcomes);
            figure = figure.peer(way.name(), value);
        }
        figure
    };
    let all = figure("until every client's socket has returned an error", &Outcome::all_after);
    // The goal bounds the slowest run, not the median.
    let slowest = ours.iter().map(|outcome| match outcome.all_after() {
        Value::Number(seconds) => seconds,
        Value::Never => f64::INFINITY,
    });
    let slowest = slowest.fold(0.0, f64::max);
    let met = !ours.is_empty() && slowest <= GOAL;
    let mut note: Vec<String> = results
        .iter()
        .filter_map(|(way, outcomes)| {
            let worst =
                outcomes.iter().max_by_key(|outcome| outcome.errors.left[0] + outcome.errors.left[1])?;
            let left = worst.errors.left;
            (left != [0, 0]).then(|| {
                format!(
                    "{}: after {:.0} s {} idle and {} sending clients still had no error",
                    way.name(),
                    sizes.cap.as_secs_f64(),
                    left[0],
                    left[1]
                )
            })
        })
        .collect();
    let missed = match met {
        true => format!("the slowest of {} runs took {slowest:.2} s", ours.len()),
        false if slowest.is_finite() => {
            format!("the slowest of {} runs was {:.2} s over the goal", ours.len(), slowest - GOAL)
        }
        false => "not all clients were freed".into(),
    };
    note.insert(0, missed);
    note.extend(ours.iter().filter_map(|outcome| outcome.said.clone()));
    let all = all.goal("within 1 s of the operator's command, in each run", met).note(note.join("; "));
    let idle = figure("until every idle client's socket has", &|outcome| outcome.half_after(0));
    let sending = figure("until every sending client's socket has", &|outcome| outcome.half_after(1));
    let command = figure("the operator's command itself", &|outcome| Value::Number(outcome.command));
    Ok(vec![all, idle, sending, command])
}

fn plots(sizes: &Sizes, results: &[(Way, Vec<Outcome>)], out: &Path) -> anyhow::Result<()> {
    // Every curve goes on to the right edge: a curve that is level there stays level until the cap.
    let shown: Vec<(&Way, &Outcome)> =
        results.iter().filter_map(|(way, outcomes)| Some((way, outcomes.last()?))).collect();
    let last = shown.iter().filter_map(|(_, outcome)| outcome.errors.seconds.last());
    let edge = last.copied().fold(1.0, f64::max) * 1.05;
    let curves: Vec<plot::Curve> = shown
        .into_iter()
        .map(|(way, outcome)| {
            let all = &outcome.errors.seconds;
            let step = (all.len() / 400).max(1);
            let mut points = vec![(0.0, 0.0)];
            let freed = all.iter().enumerate().step_by(step);
            points.extend(freed.map(|(at, seconds)| (*seconds, (at + 1) as f64 / 1000.0)));
            points.push((edge, all.len() as f64 / 1000.0));
            plot::Curve { name: way.name().into(), points }
        })
        .collect();
    plot::curves(
        &out.join("flows.svg"),
        &format!("{} established flows, half of them idle: clients freed", sizes.flows),
        "a client is freed when its own socket has returned an error; idle clients send nothing",
        ["seconds after the operator's command", "thousand clients freed"],
        &curves,
    )
}
