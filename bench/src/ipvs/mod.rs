//! Large IPVS tables: reading and planning, draining a node, memory, kube-proxy's syncs beside the agent. They need a kernel with IPVS:
//! `cargo xtask bench ipvs` runs them in a VM, and puts the figures beside those of the rescue.
mod bare;
mod drain;
mod memory;
mod read;
mod sync;
mod world;

use std::{path::Path, time::Duration};

use serde_json::json;

use self::world::{Shape, World};
use crate::{figure, machine};

/// The prefix of the line of figures; the rest of the line is JSON (`xtask/src/vm/bench.rs` reads it).
const FIGURES: &str = "@@figures";

/// The amount of work.
struct Sizes {
    services: usize,
    each: usize,
    rounds: u32,
    drain: drain::Sizes,
    watched: Duration,
    sync: sync::Sizes,
}

impl Sizes {
    fn new(quick: bool) -> Self {
        if quick {
            let drain = drain::Sizes { services: 250, each: 4, rounds: 2, naive_rounds: 1 };
            let sync = sync::Sizes { services: 100, each: 10, rounds: 2, length: Duration::from_secs(20) };
            return Self {
                services: 1_000,
                each: 10,
                rounds: 3,
                drain,
                watched: Duration::from_secs(5),
                sync,
            };
        }
        let drain = drain::Sizes { services: 1_000, each: 4, rounds: 3, naive_rounds: 1 };
        let sync = sync::Sizes { services: 1_000, each: 10, rounds: 4, length: Duration::from_secs(90) };
        Self { services: 10_000, each: 10, rounds: 7, drain, watched: Duration::from_secs(30), sync }
    }
}

/// Measures beside an API server, and prints a line of figures as [`run`] does.
pub(crate) fn run_sync(quick: bool) -> anyhow::Result<()> {
    let machine = machine::facts(&std::env::args().collect::<Vec<_>>());
    print(&machine, &[sync::run(&Sizes::new(quick).sync)?]);
    Ok(())
}

fn print(machine: &serde_json::Value, figures: &[figure::Figure]) {
    println!("{FIGURES} {}", json!({ "machine": machine, "figures": figures }));
}

/// Measures, and prints one line with the figures and the machine.
pub(crate) fn run(quick: bool, agent: &Path) -> anyhow::Result<()> {
    let machine = machine::facts(&std::env::args().collect::<Vec<_>>());
    let sizes = Sizes::new(quick);
    let world = World::new()?;
    let wide = Shape::wide(sizes.services, sizes.each);
    world.fill(&wide)?;
    let mut figures = Vec::new();
    let mut note = |figure: figure::Figure| -> anyhow::Result<()> {
        // Printed at once: should a later figure fail, this one is not lost.
        eprintln!("{}", serde_json::to_string(&figure)?);
        figures.push(figure);
        Ok(())
    };
    note(read::run(&world, &wide, sizes.rounds)?)?;
    note(memory::run(&world, &wide, sizes.watched, agent)?)?;
    note(drain::run(&world, &sizes.drain, agent)?)?;
    print(&machine, &figures);
    Ok(())
}
