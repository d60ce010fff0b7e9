//! Benchmarks of nodefence against its peers, side by side in one run on one machine, and against its promises.
mod cluster;
mod cost;
mod cpus;
mod figure;
mod flows;
mod ipvs;
mod kubernetes;
mod latency;
mod machine;
mod plot;
mod progress;
mod publish;
mod rescue;
mod sandbox;
mod scale;
mod stats;
mod tables;
mod throughput;

use std::{path::PathBuf, process::ExitCode, time::Duration};

use anyhow::Context as _;
use clap::{Args, Parser, Subcommand, ValueEnum};
use serde::Deserialize;

const EXIT_CODES: &str = "Exit codes:
  0  measured, and no goal is missed; or a quick trial, which is held against none
  1  measured, and a goal is missed
  2  the command line is wrong
  3  something could not be measured";

/// Benchmarks of nodefence against its peers.
#[derive(Parser)]
#[command(name = "nodefence-bench", version, after_help = EXIT_CODES)]
struct Cli {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Subcommand)]
enum Verb {
    /// Cost per packet, throughput, flag to cut, established flows.
    Datapath(Box<Datapath>),
    /// Rescue: new connections while half of the endpoints hang. With `cargo xtask bench ipvs` large IPVS tables too, in a VM.
    Ipvs(Ipvs),
    /// The agent in a large cluster: at rest, when endpoints change, when nodes are flagged; each figure beside its promise.
    Scale(Box<scale::Scale>),
    /// The agent beside a real API server with a large cluster: bytes, processor, memory; kube-proxy and an informer of client-go beside it.
    Kubernetes(kubernetes::Kubernetes),
    /// Large IPVS tables, on a kernel that has IPVS loaded: `cargo xtask bench ipvs` runs it in a VM.
    IpvsTables(IpvsTables),
    /// kube-proxy's syncs while IPVS tables are read back; it needs an API server outside: `cargo xtask bench ipvs` runs it in a VM.
    IpvsSync {
        /// Fewer Services and fewer rounds, for a first look.
        #[arg(long)]
        quick: bool,
    },
    /// Write the page of figures from what the other benchmarks left; `cargo xtask bench --publish` runs them and this.
    Publish {
        /// The folder that has one for each benchmark.
        #[arg(long)]
        from: PathBuf,
        /// What was measured.
        #[arg(long)]
        commit: String,
        /// The page.
        #[arg(long)]
        to: PathBuf,
        /// Of quick trials, which are held against no goal.
        #[arg(long)]
        quick: bool,
    },
    /// The server of (d), started by the benchmark itself.
    #[command(name = flows::server::VERB, hide = true)]
    Serve {
        /// Flows that come.
        flows: usize,
    },
    /// A server that greets, started by the benchmark itself.
    #[command(name = flows::server::GREET, hide = true)]
    Greet,
}

/// Files of figures.
const DATAPATH: &str = "datapath.json";
const IPVS: &str = "ipvs.json";

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Part {
    /// ns per packet by BPF_PROG_TEST_RUN
    A,
    /// throughput through a veth path
    B,
    /// flag to first RST
    C,
    /// established flows until the clients' sockets have returned an error
    D,
}

#[derive(Args)]
struct Datapath {
    /// Only these parts, separated by commas.
    #[arg(long, value_enum, value_delimiter = ',', default_value = "a,b,c,d")]
    only: Vec<Part>,
    /// Fewer and shorter runs, for a first look; noisier.
    #[arg(long)]
    quick: bool,
    /// Folder for datapath.json, machine.json and the plots.
    #[arg(long, default_value = "target/bench")]
    out: PathBuf,
    /// (a) Backends in the map, separated by commas.
    #[arg(long, value_delimiter = ',', default_value = "0,1000,150000")]
    cost_backends: Vec<u32>,
    /// (a) Interleaved rounds [default: 151, quick: 31].
    #[arg(long)]
    cost_rounds: Option<u32>,
    /// (b) Addresses in the sets, separated by commas.
    #[arg(long, value_delimiter = ',', default_value = "250,150000")]
    throughput_addresses: Vec<u32>,
    /// (b) Interleaved rounds [default: 31, quick: 7].
    #[arg(long)]
    throughput_rounds: Option<u32>,
    /// (b) Length of one run in milliseconds [default: 600, quick: 300].
    #[arg(long)]
    throughput_ms: Option<u64>,
    /// (c) Backends of the flagged node, separated by commas.
    #[arg(long, value_delimiter = ',', default_value = "1,250,5000")]
    latency_backends: Vec<u32>,
    /// (c) Flags set and removed [default: 200, quick: 20].
    #[arg(long)]
    latency_flags: Option<u32>,
    /// (c) Packets a second that the prober sends.
    #[arg(long, default_value_t = 50_000)]
    latency_rate: u32,
    /// (d) Established flows [default: 100000, quick: 10000].
    #[arg(long)]
    flows: Option<u32>,
    /// (d) Backends they are spread over.
    #[arg(long, default_value_t = 50)]
    flows_backends: u32,
    /// (d) How often, in milliseconds, a client that sends does so.
    #[arg(long, default_value_t = 500)]
    flows_every_ms: u64,
    /// (d) Seconds after which what has not come is "never" [default: 60, quick: 10].
    #[arg(long)]
    flows_cap: Option<u64>,
    /// (d) Runs of each way [default: 3, quick: 1].
    #[arg(long)]
    flows_rounds: Option<u32>,
    /// (c, d) The agent's binary [default: `nodefence` beside this program].
    #[arg(long)]
    agent: Option<PathBuf>,
}

/// Parts of `ipvs`.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum IpvsPart {
    /// New connections while half of the endpoints hang, in namespaces.
    Rescue,
    /// The same for another Service, beside a flood of SYNs.
    Flood,
    /// Large IPVS tables, in a VM.
    Tables,
}

#[derive(Args)]
struct IpvsTables {
    /// Smaller tables and fewer rounds, for a first look.
    #[arg(long)]
    quick: bool,
    /// The agent's binary [default: `nodefence` beside this program].
    #[arg(long)]
    agent: Option<PathBuf>,
}

#[derive(Args)]
struct Ipvs {
    /// Only this part.
    #[arg(long, value_enum)]
    only: Option<IpvsPart>,
    /// What the half in the VM found; `cargo xtask bench` gives it.
    #[arg(long, value_name = "FILE", hide = true)]
    tables: Option<PathBuf>,
    /// Fewer and shorter runs, for a first look; noisier.
    #[arg(long)]
    quick: bool,
    /// Folder for ipvs.json and machine.json.
    #[arg(long, default_value = "target/bench")]
    out: PathBuf,
    /// New connections a second.
    #[arg(long, default_value_t = 5_000)]
    rescue_rate: u32,
    /// Seconds of one run [default: 10, quick: 3].
    #[arg(long)]
    rescue_seconds: Option<u64>,
    /// Runs of each way [default: 3, quick: 1].
    #[arg(long)]
    rescue_rounds: Option<u32>,
    /// The agent's binary [default: `nodefence` beside this program].
    #[arg(long)]
    agent: Option<PathBuf>,
}

/// Measured, and a goal is missed.
const MISSED: u8 = 1;
/// Something could not be measured.
const FAILED: u8 = 3;

fn main() -> ExitCode {
    nodefence_tests::watch::off();
    match run(Cli::parse().verb) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::from(MISSED),
        Err(error) => {
            eprintln!("Error: {error:?}");
            ExitCode::from(FAILED)
        }
    }
}

/// Whether no goal is missed.
fn run(verb: Verb) -> anyhow::Result<bool> {
    match verb {
        Verb::Datapath(args) => {
            sandbox::enter()?;
            return datapath(&args);
        }
        Verb::Ipvs(args) => {
            sandbox::enter()?;
            return ipvs(&args);
        }
        Verb::Scale(args) => {
            sandbox::enter()?;
            return scale::run(&args);
        }
        Verb::Kubernetes(args) => {
            sandbox::enter()?;
            return kubernetes::run(&args);
        }
        // xtask gives its figures to `ipvs --tables`, which judges them.
        Verb::IpvsTables(args) => {
            sandbox::enter()?;
            ipvs::run(args.quick, &machine::agent(args.agent.as_deref())?)?;
        }
        // No sandbox: the API server is reached through the guest's own network.
        Verb::IpvsSync { quick } => ipvs::run_sync(quick)?,
        Verb::Publish { from, commit, to, quick } => {
            return Ok(publish::run(&from, &commit, &to)? || quick);
        }
        Verb::Serve { flows } => flows::server::serve(flows)?,
        Verb::Greet => flows::server::greet()?,
    }
    Ok(true)
}

/// The line that each benchmark in the VM prints.
#[derive(Deserialize)]
struct Guest {
    machine: serde_json::Value,
    figures: Vec<figure::Figure>,
}

fn ipvs(args: &Ipvs) -> anyhow::Result<bool> {
    create(&args.out)?;
    let mut machine = machine::facts(&std::env::args().collect::<Vec<_>>());
    let mut figures = Vec::new();
    let is_wanted = |part| args.only.is_none_or(|only| only == part);
    let sizes = rescue::Sizes {
        rate: args.rescue_rate,
        length: Duration::from_secs(args.rescue_seconds.unwrap_or(if args.quick { 3 } else { 10 })),
        rounds: args.rescue_rounds.unwrap_or(if args.quick { 1 } else { 3 }),
    };
    if is_wanted(IpvsPart::Rescue) {
        figures.extend(rescue::run(&sizes, &machine::agent(args.agent.as_deref())?)?);
    }
    if is_wanted(IpvsPart::Flood) {
        figures.extend(rescue::flood(&sizes, &machine::agent(args.agent.as_deref())?)?);
    }
    match &args.tables {
        Some(file) => {
            let text =
                std::fs::read_to_string(file).with_context(|| format!("cannot read {}", file.display()))?;
            let guests: Vec<Guest> =
                serde_json::from_str(&text).with_context(|| file.display().to_string())?;
            for guest in guests {
                machine["guest"] = guest.machine;
                figures.extend(guest.figures);
            }
        }
        None if args.only == Some(IpvsPart::Tables) => {
            anyhow::bail!("large IPVS tables are measured in a VM: cargo xtask bench ipvs --only tables");
        }
        None => {}
    }
    figure::write(&args.out, IPVS, &figures, &machine)?;
    println!("{}", figure::table(&figures));
    println!("\n{}", args.out.join(IPVS).display());
    Ok(args.quick || figure::all_met(&figures))
}

fn create(out: &std::path::Path) -> anyhow::Result<()> {
    std::fs::create_dir_all(out).with_context(|| format!("cannot create {}", out.display()))
}

fn datapath(args: &Datapath) -> anyhow::Result<bool> {
    create(&args.out)?;
    let machine = machine::facts(&std::env::args().collect::<Vec<_>>());
    let mut figures = Vec::new();
    let quick = args.quick;
    for part in [Part::A, Part::B, Part::C, Part::D] {
        if !args.only.contains(&part) {
            continue;
        }
        figures.extend(match part {
            Part::A => cost::run(
                &cost::Sizes {
                    backends: args.cost_backends.clone(),
                    rounds: args.cost_rounds.unwrap_or(if quick { 31 } else { 151 }),
                    repeat: 20_000,
                    cuts: 200,
                },
                &args.out,
            )?,
            Part::B => throughput::run(
                &throughput::Sizes {
                    addresses: args.throughput_addresses.clone(),
                    rounds: args.throughput_rounds.unwrap_or(if quick { 7 } else { 31 }),
                    duration: Duration::from_millis(args.throughput_ms.unwrap_or(if quick {
                        300
                    } else {
                        600
                    })),
                },
                &args.out,
            )?,
            Part::C => latency::run(
                &latency::Sizes {
                    backends: args.latency_backends.clone(),
                    flags: args.latency_flags.unwrap_or(if quick { 20 } else { 200 }),
                    rate: args.latency_rate,
                },
                &machine::agent(args.agent.as_deref())?,
                &args.out,
            )?,
            Part::D => flows::run(
                &flows::Sizes {
                    flows: args.flows.unwrap_or(if quick { 10_000 } else { 100_000 }),
                    backends: args.flows_backends,
                    every: Duration::from_millis(args.flows_every_ms),
                    cap: Duration::from_secs(args.flows_cap.unwrap_or(if quick { 10 } else { 60 })),
                    rounds: args.flows_rounds.unwrap_or(if quick { 1 } else { 3 }),
                },
                &machine::agent(args.agent.as_deref())?,
                &args.out,
            )?,
        });
        // Written after each part, so that a later part's failure loses nothing.
        figure::write(&args.out, DATAPATH, &figures, &machine)?;
    }
    println!("{}", figure::table(&figures));
    println!("\n{}", args.out.join(DATAPATH).display());
    Ok(quick || figure::all_met(&figures))
}
