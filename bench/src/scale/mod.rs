//! The agent in a large cluster: its cost at rest and while something changes, and whether it keeps its promises meanwhile.
//!
//! One agent runs on a generated cluster, in namespaces of its own. The parts run one after the other. The agent gets single objects
//! (`nodefence-objects`), and the cost of taking them is included. A cluster file of 150,000 backends takes a second to be read: it would allow
//! neither ten views nor a thousand changes a second.
mod calls;
mod change;
mod churn;
mod compare;
mod flow;
mod latency;
mod meter;
mod requests;
mod rest;
mod view;
mod world;

use std::{
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::{bail, ensure};
use clap::{Args, ValueEnum};
use serde_json::json;

use self::{
    view::Sizes,
    world::{Source, World},
};
use crate::{
    figure::{self, Figure, Value},
    machine,
};

/// The program of the agent that gets single objects. It is beside the agent that reads a file.
const OBJECTS: &str = "nodefence-objects";
/// File of figures.
const SCALE: &str = "scale.json";

const HELP: &str = "Parts (--only):
  rest     nothing changes, no node is flagged: share of a processor, resident memory
  change   one endpoint changes, and a hundred at once: processor time, calls of bpf(2) and netlink
  latency  a request that flags a node to the RST at a client, a third of the nodes flagged already, new views meanwhile
  churn    1,000 endpoints a second change and 10 nodes a second are flagged and unflagged: processor, time to the end of verdicts, memory
  compare  all entries of the maps are compared once: share of a processor

The benchmark measures the agent's process: its processor time, and its system calls, which programs on the kernel's tracepoints count (this costs each call
some tenths of a microsecond). The agent gets its objects line by line; reading and taking them is included.
Other load on the machine affects what is timed (latency, the last change), and hardly affects processor time.

Exit codes:
  0  measured, and no goal is missed; or a quick trial, for which no goal holds
  1  measured, and a goal is missed
  2  the command line is wrong
  3  something could not be measured

Examples:
  cargo xtask bench scale                        # some 8 minutes
  cargo xtask bench scale --quick                # a small cluster, a minute: does it work at all
  cargo xtask bench scale --only rest,change
  cargo xtask bench scale --only rest --source file
  cargo xtask bench scale --nodes 1000 --services 2000 --backends 30000";

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Part {
    Rest,
    Change,
    Latency,
    Churn,
    Compare,
}

/// The parts to measure, and their sizes.
#[derive(Args)]
#[command(after_help = HELP)]
pub(crate) struct Scale {
    /// Only these parts, separated by commas.
    #[arg(
        long,
        value_enum,
        value_delimiter = ',',
        default_value = "rest,change,latency,churn,compare",
        hide_possible_values = true
    )]
    only: Vec<Part>,
    /// A small cluster and short runs, for a quick trial: no figures to hold against promises.
    #[arg(long)]
    quick: bool,
    /// Nodes [default: 5000, quick: 100].
    #[arg(long)]
    nodes: Option<usize>,
    /// Services [default: 10000, quick: 200].
    #[arg(long)]
    services: Option<usize>,
    /// Backends, each an endpoint of one Service [default: 150000, quick: 3000].
    #[arg(long)]
    backends: Option<usize>,
    /// (rest) Seconds after the load until memory is looked at and it begins [default: 60, quick: 5].
    #[arg(long)]
    settle: Option<u64>,
    /// (rest) Seconds [default: 60, quick: 10].
    #[arg(long)]
    rest: Option<u64>,
    /// (change) Changes of each kind [default: 15, quick: 3].
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..))]
    changes: Option<u32>,
    /// (latency) Flags [default: 400, quick: 20].
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..))]
    flags: Option<u32>,
    /// (churn) Seconds [default: 60, quick: 9].
    #[arg(long, value_parser = clap::value_parser!(u64).range(3..))]
    churn: Option<u64>,
    /// What the agent follows. With a file only the start and rest are measured.
    #[arg(long, value_enum, default_value = "objects")]
    source: Source,
    /// How kube-proxy forwards, as the agent's --proxy.
    #[arg(long, default_value = "nftables")]
    proxy: String,
    /// Folder for scale.json and machine.json.
    #[arg(long, default_value = "target/bench")]
    out: PathBuf,
    /// The agent's binary [default: `nodefence` beside this program].
    #[arg(long)]
    agent: Option<PathBuf>,
}

impl Scale {
    /// The value of the option, or else the default, which is smaller in a quick trial.
    fn or<T>(&self, given: Option<T>, usual: T, quick: T) -> T {
        given.unwrap_or(if self.quick { quick } else { usual })
    }

    fn sizes(&self) -> Sizes {
        Sizes {
            nodes: self.or(self.nodes, 5_000, 100),
            services: self.or(self.services, 10_000, 200),
            backends: self.or(self.backends, 150_000, 3_000),
        }
    }
}

/// Measures, and writes the figures. Returns whether no goal is missed.
pub(crate) fn run(args: &Scale) -> anyhow::Result<bool> {
    let sizes = args.sizes();
    sizes.check()?;
    ensure!(
        args.source == Source::Objects || args.only.iter().all(|part| *part == Part::Rest),
        "--source file: with --only rest alone"
    );
    std::fs::create_dir_all(&args.out)?;
    let mut machine = machine::facts(&std::env::args().collect::<Vec<_>>());
    let Sizes { nodes, services, backends } = sizes;
    eprintln!("{nodes} nodes, {services} Services, {backends} backends");
    let agent = machine::agent(args.agent.as_deref())?;
    let (program, source) = match args.source {
        Source::File => (agent, "reading a cluster file"),
        Source::Objects => (machine::agent(Some(&agent.with_file_name(OBJECTS)))?, "taking single objects"),
    };
    machine["scale"] = json!({ "nodes": nodes, "services": services, "backends": backends });
    let mut figures = Vec::new();
    let write = |figures: &[Figure]| figure::write(&args.out, SCALE, figures, &machine);
    if args.only.iter().any(|part| *part != Part::Compare) {
        let mut world = World::new(&program, args.source, sizes, &["--proxy", &args.proxy])?;
        let start = Figure::new("start, until it serves", "s", Value::Number(world.start.as_secs_f64()))
            .note(format!(
                "no goal; includes {source}, loading the programs, writing all tables, and the first reading of routes"
            ));
        figures.push(start);
        for part in [Part::Rest, Part::Change, Part::Latency, Part::Churn] {
            if args.only.contains(&part) {
                figures.extend(one(args, part, &mut world)?);
                // Written after each part, so that a later part's failure loses nothing.
                write(&figures)?;
            }
        }
        world.agent.end()?;
    }
    if args.only.contains(&Part::Compare) {
        figures.extend(compare::run(&program, sizes, &args.proxy)?);
        write(&figures)?;
    }
    tell(&figures, &args.out);
    Ok(args.quick || figure::all_met(&figures))
}

fn one(args: &Scale, part: Part, world: &mut World) -> anyhow::Result<Vec<Figure>> {
    match part {
        Part::Rest => {
            let settle = Duration::from_secs(args.or(args.settle, 60, 5));
            rest::run(world, settle, Duration::from_secs(args.or(args.rest, 60, 10)))
        }
        Part::Change => change::run(world, args.or(args.changes, 15, 3)),
        Part::Latency => latency::run(world, args.or(args.flags, 400, 20)),
        Part::Churn => {
            let time = args.or(args.churn, 60, 9);
            churn::run(world, Duration::from_secs(time), Duration::from_secs((time / 3).min(10)))
        }
        Part::Compare => bail!("it has an agent of its own"),
    }
}

fn tell(figures: &[Figure], out: &Path) {
    println!("{}", figure::table(figures));
    let missed = figures.iter().filter(|figure| figure.met == Some(false)).count();
    let promised = figures.iter().filter(|figure| figure.met.is_some()).count();
    println!("\n{missed} of {promised} goals missed; {}", out.join(SCALE).display());
}
