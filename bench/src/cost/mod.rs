//! (a) Nanoseconds a packet by BPF_PROG_TEST_RUN.
//!
//! Packets that pass: one call repeats the program many times. Addresses come from a shuffled list (dataplane-ebpf/src/bench_list.rs). The
//! added cost is the cost above the program that only reads the list: the cost of the parser, the lookup and the verdict, and of nothing that
//! both sides share. Compared with the empty program the ratios would look better than they are.
//!
//! Packets that are cut: the program rewrites its packet, so each call gets a fresh packet and runs once. The time that the kernel reports of one
//! call is mostly the cost of the kernel's clock and of a cold cache. So the time of the empty program, run the same way, is subtracted. The
//! stack carries out the redirect that follows a cut. The figure does not include it.
mod programs;

use std::{collections::BTreeMap, path::Path};

use anyhow::bail;
use nodefence_common::Verdict;

pub(crate) use self::programs::REFERENCE;
use self::programs::{Program, Programs, SENDER};
use crate::{
    figure::Figure,
    plot,
    progress::Progress,
    stats::{Summary, summary},
};

/// `TC_ACT_UNSPEC`: the packet passes, and programs of others still run.
const PASS: i32 = -1;
/// `TC_ACT_REDIRECT`: the packet goes back as an answer.
const REDIRECT: i32 = 7;

/// The amount of work.
pub(crate) struct Sizes {
    /// The numbers of backends in the map. Each number gives a set of figures.
    pub(crate) backends: Vec<u32>,
    /// Interleaved rounds.
    pub(crate) rounds: u32,
    /// Runs of one program in one round. They fit in a slice of the scheduler, so that the median is that of undisturbed runs.
    pub(crate) repeat: u32,
    /// The number of fresh packets that are cut in one round.
    pub(crate) cuts: u32,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Packet {
    Miss,
    Hit,
    Cut,
}

pub(crate) fn run(sizes: &Sizes, out: &Path) -> anyhow::Result<Vec<Figure>> {
    let frame = frame()?;
    let mut figures = Vec::new();
    let mut groups = Vec::new();
    for &backends in &sizes.backends {
        let pins = Path::new("/sys/fs/bpf").join(format!("cost-{backends}"));
        let mut programs = Programs::load(&pins, backends)?;
        for packet in [Packet::Miss, Packet::Hit, Packet::Cut] {
            if packet != Packet::Miss && backends == 0 {
                continue;
            }
            programs.set_list(packet != Packet::Miss)?;
            programs.set_verdict(if packet == Packet::Cut { Verdict::Flagged } else { Verdict::Healthy })?;
            let label = format!("{}, {backends} backends", name(packet));
            let mut progress = Progress::start(&format!("a {label}"), sizes.rounds);
            let mut samples: BTreeMap<Program, Vec<f64>> = BTreeMap::new();
            for round in 0..=sizes.rounds {
                // Each program warms the caches for the next one, so another program comes first in each round.
                let mut order = Program::ALL;
                order.rotate_left(round as usize % Program::ALL.len());
                for program in order {
                    let ns = sample(&programs, program, packet, &frame, sizes)?;
                    // Round 0 warms up the caches and the JIT's code.
                    if round > 0 {
                        samples.entry(program).or_default().push(ns);
                    }
                }
                progress.step();
            }
            let of = |program| -> anyhow::Result<Summary> {
                samples
                    .get(&program)
                    .and_then(|samples| summary(samples))
                    .ok_or_else(|| anyhow::anyhow!("no samples"))
            };
            let empty = of(Program::Empty)?;
            let list = of(Program::List)?;
            let lookup = of(Program::Lookup)?;
            let ours = of(Program::Ours)?;
            figures.push(figure(&label, packet, [&empty, &list, &lookup, &ours]));
            groups.push(plot::Group {
                label,
                bars: vec![
                    plot::Bar::new("empty", &empty),
                    plot::Bar::new("empty + list", &list),
                    plot::Bar::new("one bare lookup", &lookup),
                    plot::Bar::new("nodefence", &ours),
                ],
            });
        }
        drop(programs);
        std::fs::remove_dir_all(&pins)?;
    }
    let split =
        |cut: bool| groups.iter().filter(|group| group.label.starts_with("cut") == cut).cloned().collect();
    plot::bars(
        &out.join("cost.svg"),
        "Cost of a packet that passes",
        "ns per run of the program (BPF_PROG_TEST_RUN), addresses from a shuffled list; less is better",
        split(false),
    )?;
    plot::bars(
        &out.join("cost-cut.svg"),
        "Cost of a packet that is cut",
        "ns of one run on a fresh packet, the kernel's clock included (see the empty program); less is better",
        split(true),
    )?;
    Ok(figures)
}

fn name(packet: Packet) -> &'static str {
    match packet {
        Packet::Miss => "miss",
        Packet::Hit => "healthy hit",
        Packet::Cut => "cut",
    }
}

/// Measures one program in one round. Returns nanoseconds a run.
fn sample(
    programs: &Programs,
    program: Program,
    packet: Packet,
    frame: &[u8],
    sizes: &Sizes,
) -> anyhow::Result<f64> {
    if packet != Packet::Cut {
        let (verdict, ns) = programs.run(program, frame, sizes.repeat)?;
        if verdict != PASS {
            bail!("{program:?} did not let a {packet:?} pass: it returned {verdict}");
        }
        return Ok(ns);
    }
    let mut samples = Vec::new();
    for _ in 0..sizes.cuts {
        let (verdict, ns) = programs.run(program, frame, 1)?;
        if program == Program::Ours && verdict != REDIRECT {
            bail!("a packet to a flagged backend was not answered: the program returned {verdict}");
        }
        samples.push(ns);
    }
    summary(&samples).map(|summary| summary.median).ok_or_else(|| anyhow::anyhow!("the number of cuts is 0"))
}

fn figure(label: &str, packet: Packet, [empty, list, lookup, ours]: [&Summary; 4]) -> Figure {
    let figure = Figure::of(format!("a {label}"), "ns/packet", ours)
        .peer_of("empty program", empty)
        .peer_of("empty program + list", list)
        .peer_of("one bare lookup", lookup);
    if packet == Packet::Cut {
        // The empty program's median is subtracted from the median, the least and the greatest sample. A spread of whole calls would not contain
        // the difference that is shown.
        let less = |ns: f64| ns - empty.median;
        let added = Summary { median: less(ours.median), min: less(ours.min), max: less(ours.max) };
        let shown = Figure::of(figure.figure.clone(), figure.unit.clone(), &added);
        let spread =
            figure.spread.into_iter().filter(|(name, _)| name != "ours").chain(shown.spread).collect();
        return Figure { ours: shown.ours, spread, ..figure }
            .note("ours is what one cut adds to the empty program's median; the peers are whole calls");
    }
    let goal = if packet == Packet::Miss { 1.3 } else { 2.0 };
    let base = lookup.median - list.median;
    let added = ours.median - list.median;
    let ratio = if base > 0.0 { added / base } else { f64::INFINITY };
    let figure = figure.ratio(ratio).goal(
        format!(
            "adds at most {goal} times what one bare lookup adds to the empty program (list read in both)"
        ),
        ratio <= goal,
    );
    if ratio <= goal {
        return figure;
    }
    figure.note(format!(
        "adds {added:.1} ns where one lookup adds {base:.1} ns: {:.1} ns more than the goal leaves",
        added - goal * base
    ))
}

/// A TCP segment with ACK and 64 bytes of payload; the list replaces its destination.
fn frame() -> anyhow::Result<Vec<u8>> {
    let builder = etherparse::PacketBuilder::ethernet2(SENDER, [2, 0, 0, 0, 0, 2])
        .ipv4([192, 0, 2, 1], [198, 51, 100, 1], 64)
        .tcp(40_000, 80, 1_000, 65_535)
        .ack(2_000);
    let mut frame = Vec::new();
    builder.write(&mut frame, &[0x5a; 64])?;
    Ok(frame)
}
