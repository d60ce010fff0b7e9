//! (b) Throughput through a router in the middle of a veth path: client - router - sink.
//!
//! UDP: one thread on one CPU sends small datagrams. veth hands a packet on within the sender's own softirq, so that CPU pays for the whole path,
//! and each nanosecond shows. The rate is that of packets that arrive at the sink's device. TCP: one stream, sender and receiver on two CPUs, with
//! segmentation offload on and off.
//!
//! All variants use one path. In each round each variant is switched on, measured, and switched off, so that drift of the machine affects all
//! variants alike. The sets stay loaded. Only the hook is switched.
mod path;
mod traffic;
mod variant;

use std::{collections::BTreeMap, path::Path, time::Duration};

use self::{
    path::Path3,
    traffic::{Cpus, Traffic},
    variant::Variant,
};
use crate::{
    figure::Figure,
    plot,
    progress::Progress,
    stats::{Summary, summary},
};

/// The amount of work.
pub(crate) struct Sizes {
    /// The numbers of addresses in the sets. Each number gives a set of figures.
    pub(crate) addresses: Vec<u32>,
    /// Interleaved rounds.
    pub(crate) rounds: u32,
    /// Length of one run.
    pub(crate) duration: Duration,
}

pub(crate) fn run(sizes: &Sizes, out: &Path) -> anyhow::Result<Vec<Figure>> {
    let cpus = Cpus::choose();
    let path = Path3::new()?;
    let mut figures = Vec::new();
    let mut groups = Vec::new();
    for &addresses in &sizes.addresses {
        let mut variants = Variant::all(&path, addresses)?;
        for traffic in Traffic::ALL {
            path.offload(traffic != Traffic::TcpNoGso)?;
            let label = format!("{}, {addresses} addresses", traffic.name());
            let mut progress = Progress::start(&format!("b {label}"), sizes.rounds * variants.len() as u32);
            let mut samples: BTreeMap<&'static str, Vec<f64>> = BTreeMap::new();
            for round in 0..=sizes.rounds {
                let last = variants.len();
                for at in 0..last {
                    // Another variant comes first in each round, so that it is not always the same one that follows a pause.
                    let variant = &mut variants[(at + round as usize) % last];
                    variant.on(&path)?;
                    let duration = if round == 0 { sizes.duration / 2 } else { sizes.duration };
                    let rate = traffic.run(&path, variant.target(), duration, cpus);
                    variant.off(&path)?;
                    if round > 0 {
                        samples.entry(variant.name()).or_default().push(rate?);
                        progress.step();
                    }
                }
            }
            let summarised = |name: &'static str| Some((name, summary(samples.get(name)?)?));
            let summaries: Vec<(&'static str, Summary)> =
                variants.iter().filter_map(|variant| summarised(variant.name())).collect();
            figures.extend(figure(&label, traffic.unit(), &summaries));
            groups.push((
                traffic,
                plot::Group {
                    label,
                    bars: summaries.iter().map(|(name, summary)| plot::Bar::new(name, summary)).collect(),
                },
            ));
        }
        for variant in variants {
            variant.remove(&path)?;
        }
    }
    for (udp, file, what) in [
        (true, "throughput-udp.svg", "UDP, 64-byte datagrams"),
        (false, "throughput-tcp.svg", "TCP, one stream"),
    ] {
        plot::bars(
            &out.join(file),
            &format!("Throughput through a veth router: {what}"),
            if udp {
                "million packets a second, medians with least and greatest run; more is better"
            } else {
                "Gbit a second, medians with least and greatest run; more is better"
            },
            groups
                .iter()
                .filter(|(traffic, _)| (*traffic == Traffic::Udp) == udp)
                .map(|(_, group)| group.clone())
                .collect(),
        )?;
    }
    Ok(figures)
}

/// The goal: this share of the throughput that empty programs on the same hooks allow.
const GOAL: f64 = 0.99;

fn figure(label: &str, unit: &'static str, summaries: &[(&'static str, Summary)]) -> Option<Figure> {
    let of = |name| summaries.iter().find(|(found, _)| *found == name).map(|(_, summary)| summary);
    let ours = of(variant::OURS)?;
    let bare = of(variant::BARE)?;
    let empty = of(variant::EMPTY)?;
    let peers = summaries.iter().filter(|(name, _)| *name != variant::OURS && *name != variant::BARE);
    let best = peers
        .clone()
        .filter(|(name, _)| *name != variant::EMPTY)
        .max_by(|(_, one), (_, other)| one.median.total_cmp(&other.median))?;
    let mut figure = Figure::of(format!("b {label}"), unit, ours).peer_of(variant::BARE, bare);
    for (name, peer) in peers {
        figure = figure.peer_of(name, peer);
    }
    let ratio = ours.median / empty.median;
    let ahead = ours.median > best.1.median;
    let met = ratio >= GOAL && ahead;
    let goal = "at least 99 % of what programs that do nothing let through, and ahead of nftables and ipset";
    let mut figure = figure.ratio(ratio).goal(goal, met);
    if !met {
        let mut why = Vec::new();
        if ratio < GOAL {
            why.push(format!("{:.1} % of it", ratio * 100.0));
        }
        if !ahead {
            let behind = (1.0 - ours.median / best.1.median) * 100.0;
            why.push(format!("{behind:.1} % behind {}", best.0));
        }
        why.push(format!("{:.1} % of the bare path", ours.median / bare.median * 100.0));
        let spread = (bare.max - bare.min) / bare.median * 100.0;
        why.push(format!("the bare path itself varies by {spread:.1} % between runs"));
        figure = figure.note(why.join("; "));
    }
    Some(figure)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn judged(ours: f64, nft: f64) -> Figure {
        let of = |median| summary(&[median, median, median]).expect("three samples");
        let summaries = [
            (variant::BARE, of(100.0)),
            (variant::EMPTY, of(98.0)),
            (variant::OURS, of(ours)),
            ("nftables", of(nft)),
        ];
        figure("UDP", "Mpackets/s", &summaries).expect("all variants")
    }

    #[test]
    fn a_throughput_is_held_against_programs_that_do_nothing() {
        assert_eq!(judged(97.1, 96.0).met, Some(true));
        let short = judged(97.0, 96.0);
        assert_eq!(short.met, Some(false), "98.98 % of 98");
        assert_eq!(
            short.note.as_deref(),
            Some("99.0 % of it; 97.0 % of the bare path; the bare path itself varies by 0.0 % between runs")
        );
        assert_eq!(judged(97.1, 97.1).met, Some(false), "not ahead");
    }
}
