//! An agent that ends, or hands over to another one.

use std::{
    sync::atomic::AtomicBool,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, ensure};
use nodefence_tests::{
    load::{repeat, under},
    promises::{ENDED, RESTORED},
    watch::within,
};

use super::{
    common::{saved, wait_drained, weighted_on_b},
    life::drained,
};

/// The least number of looks at the table: two in each second. Each look starts a program, which is slow on an emulated processor.
const LOOKS: u64 = 2 * RESTORED.as_secs();

#[test]
fn an_agent_that_ends_restores_and_one_that_hands_over_does_not() -> Result<()> {
    let (cluster, before, mut agent) = drained()?;
    // The successor's programs load slowly. The node must stay drained meanwhile, and for longer than a guard waits.
    let watch = |stop: &AtomicBool| {
        repeat(stop, || {
            let found = weighted_on_b(&cluster.a.ns)?;
            ensure!(found.is_empty(), "restored between two agents: {found:?}");
            Ok(Duration::ZERO)
        })
    };
    let (restarted, watched) = under([watch], || {
        agent.restart(&["--take-over"])?;
        std::thread::sleep(RESTORED);
        anyhow::Ok(())
    });
    restarted?;
    for looks in watched {
        let looks = looks.with_context(|| agent.log())?;
        ensure!(looks >= LOOKS, "{looks} looks");
    }
    wait_drained(&cluster, &agent)?;
    let begun = Instant::now();
    agent.terminate()?;
    within("restored and ended", ENDED, begun)?;
    let now = saved(&cluster.a.ns)?;
    ensure!(now == before, "{now:#?}\n{before:#?}\n{}", agent.log());
    Ok(())
}
