//! Measures how long this machine stood still. Started by `chrt -f 1`, no program of this machine delays it.

use std::{
    io::Write as _,
    thread::sleep,
    time::{Duration, Instant},
};

use anyhow::Result;

/// The interval at which the clock is read. Each wake-up costs an emulated processor part of its time.
const TICK: Duration = Duration::from_millis(20);
/// Shorter stand-stills matter to no bound of the incident.
const SHORTEST: Duration = Duration::from_millis(50);

/// Writes the milliseconds of each stand-still once it is over, until nobody reads any more.
pub(crate) fn run() -> Result<()> {
    let mut out = std::io::stdout().lock();
    loop {
        let due = Instant::now() + TICK;
        sleep(TICK);
        let late = due.elapsed();
        if late >= SHORTEST {
            writeln!(out, "{}", late.as_millis())?;
            out.flush()?;
        }
    }
}
