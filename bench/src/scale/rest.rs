//! (1) The agent's cost while nothing changes and no node is flagged.
use std::time::Duration;

use super::world::World;
use crate::{
    figure::{Figure, Value},
    progress::Progress,
};

/// Percent of a processor that the agent may take.
const SHARE: f64 = 0.5;
/// Resident memory that the agent may have, in MiB.
const MEMORY: f64 = 64.0;

/// Lets this much time pass.
fn pass(time: Duration, label: &str) {
    let seconds = u32::try_from(time.as_secs()).unwrap_or(u32::MAX);
    let mut progress = Progress::start(label, seconds);
    for _ in 0..seconds {
        std::thread::sleep(Duration::from_secs(1));
        progress.step();
    }
}

/// `settle` is the pause after the load, `time` the length of the measurement.
pub(super) fn run(world: &World, settle: Duration, time: Duration) -> anyhow::Result<Vec<Figure>> {
    pass(settle, "rest: until the agent has settled");
    let memory = world.agent.proc()?.memory("VmRSS")?;
    let before = world.meter.now()?;
    pass(time, "rest: nothing changes, no node is flagged");
    let rest = world.meter.now()? - before;
    let most = world.agent.proc()?.memory("VmHWM")?;
    let share = rest.share();
    let over =
        if share > SHARE { format!("{:.1} times what is promised; ", share / SHARE) } else { String::new() };
    let each_second = |count: f64| format!("{:.1}", count / rest.seconds);
    Ok(vec![
        Figure::new("rest, share of a processor", "%", Value::Number(share))
            .goal(format!("at most {SHARE} %"), share <= SHARE)
            .note(format!(
                "{over}over {:.0} s, audit included; calls a second: {} of bpf(2), {} sent and {} received by netlink",
                rest.seconds,
                each_second(rest.bpf),
                each_second(rest.sent),
                each_second(rest.received)
            )),
        Figure::new("rest, resident memory (VmRSS)", "MiB", Value::Number(memory))
            .peer("peak (VmHWM)", Value::Number(most))
            .goal(format!("under {MEMORY} MiB a minute after the load"), memory < MEMORY)
            .note(format!("{:.0} s after the load", settle.as_secs_f64())),
    ])
}
