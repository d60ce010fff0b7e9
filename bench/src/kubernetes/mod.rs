//! The agent beside a real API server with the objects of a large cluster: what it takes from the network, the API server, the processor and memory.
//!
//! The scale benchmark gives the agent objects as lines. Here they come as in a cluster: as JSON in watches, over TLS, with all the fields that the agent
//! does not read. kube-proxy and an informer of client-go are measured in the same way, one client at a time beside the same API server.
mod client;
mod figures;
mod measured;
mod objects;
mod sizes;
mod smaps;
mod world;
mod write;

use std::{
    path::{Path, PathBuf},
    thread::sleep,
    time::{Duration, Instant},
};

use anyhow::{Context as _, ensure};
use clap::Args;
use serde_json::json;

use self::{
    client::{Client, Spent, Who},
    measured::{All, Anew, Measured},
    sizes::{LARGE, Sizes},
    world::World,
};
use crate::{
    figure::{self, Figure},
    machine,
    progress::Progress,
};

/// File of figures.
const KUBERNETES: &str = "kubernetes.json";
/// What is wrong if too little came.
const ANEW: &str = "the agent listed nothing anew: the API server still had all changes";

const HELP: &str = "The agent runs in mode observe. etcd, the API server, kube-proxy and the informer are those of `cargo xtask assets`. Each client is alone
beside the API server, behind a relay that counts bytes.
The informer is client-go's, for Services and EndpointSlices, and asks for JSON. The agent's NodeMembers, flags and settings come on top of these.
About 20 minutes. Needs 8 GiB of memory, most of it for the API server and for kube-proxy's tables.

Exit codes:
  0  measured, and no goal is missed; or a quick trial, for which no goal holds
  1  measured, and a goal is missed
  2  the command line is wrong
  3  something could not be measured

Examples:
  cargo xtask bench kubernetes
  cargo xtask bench kubernetes --alone           # only the agent: its memory, in some minutes
  cargo xtask bench kubernetes --quick           # a tenth of the cluster: does it work at all";

/// Options of the benchmark beside an API server.
#[derive(Args)]
#[command(after_help = HELP)]
pub(crate) struct Kubernetes {
    /// A tenth of the cluster, and one short round, for a quick trial: no figures to hold against goals.
    #[arg(long)]
    quick: bool,
    /// Only the agent, in one round: neither kube-proxy nor the informer, with which it is compared.
    #[arg(long)]
    alone: bool,
    /// NodeMembers [default: 5000, quick: 500].
    #[arg(long, value_parser = clap::value_parser!(u16).range(3..))]
    members: Option<u16>,
    /// Services, each with one slice of 15 endpoints; one more is restarted [default: 10000, quick: 1000].
    #[arg(long, value_parser = clap::value_parser!(u16).range(1..=60_000))]
    services: Option<u16>,
    /// Rounds of first lists and restarts [default: 3, quick or alone: 1].
    #[arg(long, value_parser = clap::value_parser!(u8).range(1..))]
    rounds: Option<u8>,
    /// Seconds without changes, after which memory is looked at [default: 120, quick: 20].
    #[arg(long, value_parser = clap::value_parser!(u64).range(1..))]
    rest: Option<u64>,
    /// Folder for kubernetes.json and machine.json.
    #[arg(long, default_value = "target/bench")]
    out: PathBuf,
    /// The agent's binary [default: `nodefence` beside this program].
    #[arg(long)]
    agent: Option<PathBuf>,
}

/// Measures, and writes the figures. Returns whether no goal is missed.
pub(crate) fn run(args: &Kubernetes) -> anyhow::Result<bool> {
    let quick = args.quick;
    let sizes = Sizes {
        members: args.members.unwrap_or(if quick { 500 } else { 5_000 }).into(),
        services: args.services.unwrap_or(if quick { 1_000 } else { 10_000 }).into(),
    };
    let rounds = args.rounds.unwrap_or(if quick || args.alone { 1 } else { 3 });
    std::fs::create_dir_all(&args.out).with_context(|| format!("cannot create {}", args.out.display()))?;
    let agent = machine::agent(args.agent.as_deref())?;
    let mut machine = machine::facts(&std::env::args().collect::<Vec<_>>());
    let Sizes { members, services } = sizes;
    machine["kubernetes"] =
        json!({"members": members, "services": services + 1, "endpoints": sizes.endpoints()});
    eprintln!("{members} NodeMembers, {} Services, {} endpoints", services + 1, sizes.endpoints());
    let mut world = World::new(sizes)?;
    let rest = Duration::from_secs(args.rest.unwrap_or(if quick { 20 } else { 120 }));
    let mut all = All { rest, ..All::default() };
    // The agent is the last one: it goes on in the last part.
    let subjects: &[Who] = match args.alone {
        true => &[Who::Agent],
        false => &[Who::Nobody, Who::KubeProxy, Who::Informer, Who::Agent],
    };
    let write = |all: &All| -> anyhow::Result<Vec<Figure>> {
        let figures = figures::of(all);
        figure::write(&args.out, KUBERNETES, &figures, &machine)?;
        Ok(figures)
    };
    let mut last = None;
    for round in 1..=rounds {
        for who in subjects {
            let is_last = round == rounds;
            let measured = all.of.entry(*who).or_default();
            let left = match who {
                Who::Nobody => nobody(&mut world, measured, is_last.then_some(rest)).map(|()| None),
                who => client(&mut world, *who, &agent, measured, is_last.then_some(rest)).map(Some),
            };
            let left = left.with_context(|| format!("round {round}: {}", who.name()))?;
            // Written after each part, so that a later part's failure loses nothing.
            write(&all)?;
            match left {
                Some(client) if is_last && *who == Who::Agent => last = Some(client),
                Some(client) => client.end()?,
                None => {}
            }
        }
    }
    let agent = last.context("no agent was started")?;
    all.anew = Some(anew(&mut world, &agent, rest)?);
    let figures = write(&all)?;
    agent.end()?;
    println!("{}", figure::table(&figures));
    println!("\n{}", args.out.join(KUBERNETES).display());
    Ok(quick || figure::all_met(&figures))
}

/// Measures what the API server uses without a client.
fn nobody(world: &mut World, measured: &mut Measured, rest: Option<Duration>) -> anyhow::Result<()> {
    if let Some(rest) = rest {
        let _progress = Progress::start("nothing changes: nobody", 1);
        let before = world.processor()?;
        sleep(rest);
        let server = world.processor()? - before;
        measured.rest = Some(Spent { server, elapsed: rest, ..Spent::default() });
    }
    let before = world.processor()?;
    let began = Instant::now();
    world.restart()?;
    let server = world.processor()? - before;
    measured.restarts.push(Spent { server, elapsed: began.elapsed(), ..Spent::default() });
    Ok(())
}

/// Measures a client, and returns it.
fn client(
    world: &mut World,
    who: Who,
    agent: &Path,
    measured: &mut Measured,
    rest: Option<Duration>,
) -> anyhow::Result<Client> {
    let started = Client::start(world, who, agent)?;
    measured.starts.push(started.took);
    measured.lists.push(started.spent);
    let client = started.client;
    if let Some(rest) = rest {
        let peak = client.memory("VmHWM")?;
        let _progress = Progress::start(&format!("nothing changes: {}", who.name()), 1);
        measured.rest = Some(client.at_rest(world, rest)?);
        measured.memory = Some([client.memory("VmRSS")?, peak]);
    }
    let restart = client.during(world, World::restart)?;
    // A change of an endpoint brings the whole slice, in which an endpoint takes more than 100 bytes also in protobuf.
    let least = (LARGE * objects::FULL * 100) as u64;
    ensure!(
        restart.from_server >= least,
        "{} bytes came of the restart: at least {least} were expected",
        restart.from_server
    );
    measured.restarts.push(restart);
    Ok(client)
}

/// Has the agent list everything anew: the API server no longer has the changes that the agent missed.
fn anew(world: &mut World, client: &Client, rest: Duration) -> anyhow::Result<Anew> {
    let progress = Progress::start("all lists anew", 1);
    let whole = client.wire.from_server();
    client.wire.reset();
    let (sizes, endpoints) = world.forget()?;
    let before = client.wire.from_server();
    client.wire.heal();
    let began = Instant::now();
    client.wait(sizes, endpoints)?;
    let took = began.elapsed();
    let from_server = client.wire.from_server() - before;
    drop(progress);
    // All that came before has the lists in it, and the restart, which is the smaller part of a large cluster.
    ensure!(from_server > whole / 3, "{ANEW} ({from_server} bytes, {whole} before)");
    let _progress = Progress::start("nothing changes after that", 1);
    sleep(rest);
    Ok(Anew { took, from_server, memory: [client.memory("VmRSS")?, client.memory("VmHWM")?] })
}
