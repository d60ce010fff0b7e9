//! The watchdog of the tests: busy programs do not count as a stand-still of the machine.

use std::{
    hint::spin_loop,
    thread::{available_parallelism, sleep},
    time::{Duration, Instant},
};

use anyhow::{Result, ensure};
use nodefence_tests::{
    load::{Running, repeat},
    watch::{Watch, stood_still},
};
use rustix::process::setpriority_process;

/// The number of busy threads for each processor. A thread of the same precedence would have to wait behind several of them.
const BUSY: usize = 16;

/// The threads have the highest precedence that threads of the agent have, and use all processor time.
#[test]
fn busy_threads_of_the_highest_precedence_are_no_stand_still() -> Result<()> {
    let _watch = Watch::here();
    let mut busy = Running::default();
    for _ in 0..available_parallelism()?.get() * BUSY {
        busy.start(|stop| {
            setpriority_process(None, -20)?;
            repeat(stop, || {
                spin_loop();
                Ok(Duration::ZERO)
            })
        });
    }
    let began = Instant::now();
    sleep(Duration::from_secs(1));
    let took = began.elapsed();
    let still = stood_still(began);
    busy.finish()?;
    ensure!(still < took / 4, "{still:?} of {took:?}");
    Ok(())
}
