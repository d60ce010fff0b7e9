//! A million random packets, many of them mutated, are shared among the configurations. The programs and a plain model must agree on each packet.
//!
//! `NODEFENCE_FUZZ_PACKETS` and `NODEFENCE_FUZZ_SEED` choose another number and another seed.
use std::{env, thread};

use anyhow::{Context as _, Result, anyhow, ensure};
use nodefence_common::{ANSWERS_PER_SECOND, Reason};
use nodefence_tests::{
    model::{Backend, Budgets, World},
    packet::{Programs, XDP},
    packet_world::{EXEMPT, HOST, LAST, STALE, add_ports, bytes, world},
};
use rand::Rng as _;

use draw::bare_backend;
use run::{Counts, Setup, WHOLE, run};

mod draw;
mod run;

const EVERY: &[&str] = &["nf_egress_l2", "nf_egress_l2", "nf_egress_l3", XDP, XDP];
const CUTTING: &[&str] = &["nf_egress_l2", "nf_egress_l2", "nf_egress_l3", XDP];
const MOSTLY_XDP: &[&str] = &[XDP, XDP, XDP, "nf_egress_l2"];

/// Each list of setups runs in one thread, which loads the programs once. On an emulated processor the load takes a large part of the time.
const THREADS: [&[Setup]; 2] = [
    &[
        Setup {
            name: "as it starts",
            share: 4,
            programs: EVERY,
            adapt: |_| {},
            reaches: &["reset", "refused", "unreachable", "handed"],
        },
        Setup {
            name: "answers handed over",
            share: 3,
            programs: CUTTING,
            adapt: |world| {
                world.injects = true;
                world.budgets = Budgets { icmp: 5, answers: ANSWERS_PER_SECOND, samples: 7 };
            },
            reaches: &["handed", "reset", "icmp_limited", "answer_limited"],
        },
        Setup {
            name: "budgets",
            share: 3,
            programs: CUTTING,
            adapt: |world| world.budgets = Budgets { icmp: 5, answers: ANSWERS_PER_SECOND, samples: 7 },
            reaches: &["icmp_limited", "unreachable", "sampled", "not sampled"],
        },
    ],
    &[
        Setup {
            name: "rescues taken",
            share: 4,
            programs: EVERY,
            adapt: |world| world.rescues = true,
            reaches: &["rescue", "reset", "refused"],
        },
        Setup {
            name: "XDP below VLAN devices",
            share: 3,
            programs: MOSTLY_XDP,
            adapt: |world| world.vlans = true,
            reaches: &["left to egress", "answered by XDP", "dropped"],
        },
        Setup {
            name: "generic XDP",
            share: 3,
            programs: MOSTLY_XDP,
            adapt: |world| world.generic = true,
            reaches: &["left to egress", "dropped"],
        },
    ],
];

fn whole_world() -> World {
    let mut world =
        World { budgets: Budgets { icmp: u32::MAX, answers: ANSWERS_PER_SECOND, samples: 0 }, ..world() };
    for node in 0..=LAST {
        for sixth in [false, true] {
            let generation = if node == STALE { 3 } else { 10 + node };
            let backend = Backend { node, generation, host_network: node == HOST };
            let ip = bare_backend(node, sixth);
            if node == HOST || node == EXEMPT {
                add_ports(&mut world, ip, node);
            }
            world.backends.insert(bytes(ip), backend);
        }
    }
    world
}

fn number(name: &str, default: u64) -> Result<u64> {
    match env::var(name) {
        Ok(text) => text.parse().with_context(|| format!("{name}: expected a number, found {text:?}")),
        Err(_) => Ok(default),
    }
}

#[test]
fn the_programs_do_what_the_model_does() -> Result<()> {
    let packets = number("NODEFENCE_FUZZ_PACKETS", 1_000_000)?;
    let seed = number("NODEFENCE_FUZZ_SEED", rand::rng().random())?;
    println!("{packets} packets, NODEFENCE_FUZZ_SEED={seed}");
    let threads = THREADS.map(|setups| thread::spawn(move || run_each(setups, seed, packets)));
    let mut all = Counts::new();
    let mut failures = Vec::new();
    for handle in threads {
        match handle.join().map_err(|_| anyhow!("a thread panicked"))? {
            Ok(counts) => add(&mut all, counts),
            Err(error) => failures.push(format!("{error:#}")),
        }
    }
    ensure!(failures.is_empty(), "{}", failures.join("\n"));
    // In the kernel's test run no socket is connected and no helper fails. Senders have no budgets of their own here.
    let out_of_reach =
        |reason: &Reason| matches!(reason, Reason::Failed | Reason::OwnSocket | Reason::IcmpSenderLimited);
    for reason in Reason::ALL.iter().filter(|reason| !out_of_reach(reason)) {
        ensure!(
            packets < 100_000 || all.contains_key(reason.name()),
            "no packet was counted as {}",
            reason.name()
        );
    }
    Ok(())
}

fn run_each(setups: &[Setup], seed: u64, packets: u64) -> Result<Counts> {
    let mut programs = Programs::load()?;
    let mut all = Counts::new();
    for setup in setups {
        let mut world = whole_world();
        (setup.adapt)(&mut world);
        let packets = (packets * setup.share).div_ceil(WHOLE);
        let counts = run(&mut programs, setup, &world, seed, packets)
            .with_context(|| format!("{}, seed {seed}", setup.name))?;
        println!("{}: {counts:?}", setup.name);
        for kind in setup.reaches {
            ensure!(packets < 2_000 || counts.contains_key(kind), "{}: no packet was {kind}", setup.name);
        }
        add(&mut all, counts);
    }
    Ok(all)
}

fn add(all: &mut Counts, counts: Counts) {
    for (kind, count) in counts {
        *all.entry(kind).or_default() += count;
    }
}
