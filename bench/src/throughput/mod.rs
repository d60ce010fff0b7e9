//! (b) Throughput through a router in the middle of a veth path: client - router - sink.
//!
//! UDP: one thread on one CPU sends small datagrams; veth hands a packet on within the sender's own softirq, so that CPU
//! pays for the whole path and each nanosecond shows. What arrived at the sink's device counts. TCP: one stream, sender and
//! receiver on two CPUs, with segmentation offload on and off.
//!
//! One path serves all variants: each is switched on in turn, measured, and switched off, round by round, so that drift of the
//! machine hits all alike. The sets stay loaded; only the hook comes and goes.
mod traffic;
mod variant;

use std::{collections::BTreeMap, path::Path, time::Duration};

use self::{
    traffic::{Cpus, Traffic},
    variant::Variant,
};
use nodefence_tests::Netns;

use crate::{
    figure::Figure,
    plot,
    progress::Progress,
    stats::{Summary, summary},
    tables,
};

/// How much of it is run.
pub(crate) struct Sizes {
    /// Addresses in the sets, one set of figures each.
    pub(crate) addresses: Vec<u32>,
    /// Interleaved rounds.
    pub(crate) rounds: u32,
    /// Length of one run.
    pub(crate) duration: Duration,
}

/// Device of the router towards the sink: where a node's programs hang.
const UPLINK: &str = "uplink";

/// The three namespaces.
pub(crate) struct Path3 {
    pub(crate) client: Netns,
    pub(crate) router: Netns,
    pub(crate) sink: Netns,
}

impl Path3 {
    fn new() -> anyhow::Result<Self> {
        let path =
            Self { client: Netns::new("client")?, router: Netns::new("router")?, sink: Netns::new("sink")? };
        path.client.veth("eth0", &path.router, "downlink")?;
        path.router.veth(UPLINK, &path.sink, "eth0")?;
        path.client.ip("addr add 192.168.1.2/24 dev eth0")?;
        path.router.ip("addr add 192.168.1.1/24 dev downlink")?;
        path.router.ip(&format!("addr add 192.168.2.1/24 dev {UPLINK}"))?;
        path.sink.ip("addr add 192.168.2.2/24 dev eth0")?;
        path.client.ip("route add default via 192.168.1.1")?;
        path.sink.ip("route add default via 192.168.2.1")?;
        path.router.sysctl("ipv4/ip_forward", "1")?;
        // The one backend that traffic goes to, and a stranger: the peers' traffic lies outside their sets.
        for address in [tables::backend(0), tables::stranger(0)] {
            path.sink.ip(&format!("addr add {address}/32 dev lo"))?;
            path.router.ip(&format!("route add {address}/32 via 192.168.2.2"))?;
        }
        // No address resolution while packets are counted.
        for (from, device, address, to, peer) in [
            (&path.client, "eth0", "192.168.1.1", &path.router, "downlink"),
            (&path.router, "downlink", "192.168.1.2", &path.client, "eth0"),
            (&path.router, UPLINK, "192.168.2.2", &path.sink, "eth0"),
            (&path.sink, "eth0", "192.168.2.1", &path.router, UPLINK),
        ] {
            let mac = to.mac(peer)?;
            from.ip(&format!("neigh replace {address} lladdr {mac} dev {device} nud permanent"))?;
        }
        Ok(path)
    }

    /// Switches segmentation and receive offloads of every device on the path.
    fn offload(&self, on: bool) -> anyhow::Result<()> {
        let state = if on { "on" } else { "off" };
        for (netns, device) in
            [(&self.client, "eth0"), (&self.router, "downlink"), (&self.router, UPLINK), (&self.sink, "eth0")]
        {
            netns.exec(&format!("ethtool -K {device} tso {state} gso {state}"))?;
        }
        Ok(())
    }
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
                    // Another variant comes first each round: whatever follows a pause is not always the same.
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
            let summaries: Vec<(&'static str, Summary)> =
                variants.iter().filter_map(|v| Some((v.name(), summary(samples.get(v.name())?)?))).collect();
            figures.extend(figure(&label, traffic.unit(), &summaries));
            groups.push((
                traffic,
                plot::Group {
                    label,
                    bars: summaries.iter().map(|(name, s)| plot::Bar::new(name, s)).collect(),
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
            groups.iter().filter(|(t, _)| (*t == Traffic::Udp) == udp).map(|(_, g)| g.clone()).collect(),
        )?;
    }
    Ok(figures)
}

/// At least this share of the bare path's throughput.
const GOAL: f64 = 0.97;

fn figure(label: &str, unit: &'static str, summaries: &[(&'static str, Summary)]) -> Option<Figure> {
    let of = |name| summaries.iter().find(|(n, _)| *n == name).map(|(_, s)| s);
    let (ours, bare) = (of(variant::OURS)?, of(variant::BARE)?);
    let peers = summaries.iter().filter(|(n, _)| *n != variant::OURS && *n != variant::BARE);
    let best = peers
        .clone()
        .filter(|(n, _)| *n != variant::EMPTY)
        .max_by(|a, b| a.1.median.total_cmp(&b.1.median))?;
    let mut figure = Figure::of(format!("b {label}"), unit, ours).peer_of(variant::BARE, bare);
    for (name, peer) in peers {
        figure = figure.peer_of(name, peer);
    }
    let ratio = ours.median / bare.median;
    let ahead = ours.median > best.1.median;
    let met = ratio >= GOAL && ahead;
    let figure = figure.ratio(ratio).goal("at least 97 % of the bare path, and ahead of the peers", met);
    if met {
        return Some(figure);
    }
    let mut why = Vec::new();
    if ratio < GOAL {
        why.push(format!(
            "{:.1} % of the bare path, {:.1} points short",
            ratio * 100.0,
            (GOAL - ratio) * 100.0
        ));
    }
    if !ahead {
        let behind = (1.0 - ours.median / best.1.median) * 100.0;
        why.push(format!("{behind:.1} % behind {}", best.0));
    }
    if let Some(empty) = of(variant::EMPTY) {
        let share = empty.median / bare.median * 100.0;
        why.push(format!("programs that do nothing, on the same hooks, reach {share:.1} %"));
    }
    let spread = (bare.max - bare.min) / bare.median * 100.0;
    why.push(format!("the bare path itself varies by {spread:.1} % between runs"));
    Some(figure.note(why.join("; ")))
}
