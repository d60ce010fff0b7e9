//! Reading and planning everything, beside a bare loop of the same dumps and `ipvsadm -Ln`.
use std::{
    collections::BTreeMap,
    process::{Command, Stdio},
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::{Context as _, ensure};
use nodefence::{
    cluster::{self, ClusterView},
    drain::{Book, Drive, Kernel},
    ipvs::{Ipvs, ServiceKey},
    ledger::{self, Entry, Pair, Record},
    plan::drain::{Drain, DrainSettings, Flagged, WantedDestinations},
};
use nodefence_tests::ipvs::Snapshot;

use super::{
    bare::{Bare, SERVICES_READ},
    world::{OWN, PODS, Shape, World, node},
};
use crate::{figure::Figure, progress::Progress, stats::summary};

/// Reading and planning may take this many times the time of the bare loop.
const GOAL: f64 = 1.3;
/// The node whose drain is planned.
const FLAGGED: u16 = 0;

/// A ledger that lets no change begin. So the plan is the agent's own, and no table is changed.
struct Closed {
    planned: usize,
}

impl Book for Closed {
    type Lock = ();

    fn begin(&mut self, records: &[Record]) -> Result<Option<()>, ledger::Error> {
        self.planned = records.len();
        Ok(None)
    }

    fn is_ours(&self) -> bool {
        true
    }

    fn alive(&mut self) {}

    fn write_all(&mut self, _: &BTreeMap<Pair, Entry>) -> Result<(), ledger::Error> {
        Ok(())
    }

    fn note(&mut self, _: &[Record]) -> Result<(), ledger::Error> {
        Ok(())
    }

    fn rest(&mut self, _: usize, _: impl FnOnce() -> BTreeMap<Pair, Entry>) -> Result<(), ledger::Error> {
        Ok(())
    }
}

/// Milliseconds of each round.
#[derive(Default)]
struct Took {
    ours: Vec<f64>,
    reading: Vec<f64>,
    bare: Vec<f64>,
    ipvsadm: Vec<f64>,
}

pub(super) fn run(world: &World, shape: &Shape, rounds: u32) -> anyhow::Result<Figure> {
    let view = Arc::new(cluster::parse(&shape.cluster().to_string(), false)?);
    let keys: Vec<ServiceKey> = shape.services.iter().map(|service| shape.key(service)).collect();
    let mut progress = Progress::start("read and plan", rounds);
    let mut took = Took::default();
    world.node.within(|| {
        let mut bare = Bare::new(&keys)?;
        for round in 0..=rounds {
            // Round 0 warms up.
            let counts = round > 0;
            let note = |times: &mut Vec<f64>, begun: Instant| {
                if counts {
                    times.push(begun.elapsed().as_secs_f64() * 1e3);
                }
            };
            let begun = Instant::now();
            let came = bare.run()?;
            note(&mut took.bare, begun);
            let all = shape.destinations() + SERVICES_READ * shape.services.len();
            ensure!(came.messages == all, "the bare loop read {came:?}, and not {all} messages");
            let begun = Instant::now();
            plan(&view)?;
            note(&mut took.ours, begun);
            let begun = Instant::now();
            let snapshot = Snapshot::read(&mut Ipvs::open()?)?;
            note(&mut took.reading, begun);
            ensure!(!snapshot.incomplete && snapshot.services.len() == keys.len(), "not all was read");
            drop(snapshot);
            let begun = Instant::now();
            let status = Command::new("ipvsadm").arg("-Ln").stdout(Stdio::null()).status()?;
            note(&mut took.ipvsadm, begun);
            ensure!(status.success(), "ipvsadm -Ln: {status}");
            progress.step();
        }
        Ok(())
    })?;
    figure(shape, &took)
}

/// Does the agent's work after a flag, up to the first change.
fn plan(view: &Arc<ClusterView>) -> anyhow::Result<()> {
    let name = node(FLAGGED);
    let backends = view.node(&name).context("no such node")?.backends.clone();
    let mut machine = Drain::new(DrainSettings { enforce: true, flushes: true }, BTreeMap::new());
    machine.set_wanted(WantedDestinations::of(view, &OWN.into()));
    machine.set_flagged(
        &[Flagged { name: name.into(), backends, left_out: Vec::new(), challenged: true }],
        Duration::ZERO,
    );
    let mut drive = Drive::new(machine, Kernel::open(Box::new(|_| {}), 0, None)?, Closed { planned: 0 });
    let round = drive.round()?;
    ensure!(
        round.lapsed && drive.machine.len() == PODS,
        "{} of {PODS} pairs were planned",
        drive.machine.len()
    );
    ensure!(drive.book().planned > 0, "nothing was to be written");
    Ok(())
}

fn figure(shape: &Shape, took: &Took) -> anyhow::Result<Figure> {
    let of = |times: &[f64]| summary(times).context("no rounds");
    let ours = of(&took.ours)?;
    let bare = of(&took.bare)?;
    // Runs that followed each other are compared, since the machine's pace changes.
    let ratios: Vec<f64> = took.ours.iter().zip(&took.bare).map(|(ours, bare)| ours / bare).collect();
    let ratio = of(&ratios)?;
    let name = format!(
        "IPVS, read and plan {} services of {} destinations",
        shape.services.len(),
        shape.destinations() / shape.services.len()
    );
    Ok(Figure::of(name, "ms", &ours)
        .peer_of("bare loop of the dumps", &bare)
        .peer_of("reading alone", &of(&took.reading)?)
        .peer_of("ipvsadm -Ln", &of(&took.ipvsadm)?)
        .ratio(ratio.median)
        .goal(format!("at most {GOAL} times the bare loop (median of the rounds)"), ratio.median <= GOAL)
        .note(format!(
            "ratio {:.3} to {:.3} in {} rounds; a flagged node's {PODS} pairs are planned; both dump the services {SERVICES_READ} times",
            ratio.min,
            ratio.max,
            ratios.len()
        )))
}
