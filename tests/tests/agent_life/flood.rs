//! A flood of packets that the agent has to answer, on a machine with one processor.

use std::{
    net::{Ipv4Addr, SocketAddrV4},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, ensure};
use aya::maps::{Array, Map, MapData};
use nix::sys::signal::Signal;
use nodefence::report::{Request, Status};
use nodefence_common::{ANSWERS_PER_SECOND, Config, Reason, config_flags};
use nodefence_tests::{
    Netns,
    agent::PINNED_MAPS,
    load::syns::Syns,
    packet::{cpus, stay_on, stay_on_one_cpu},
    promises::ENDED,
    watch::{figure, wait_within, within},
};

use super::{ends::has_ended, start};

/// The promised time in which a client is answered, also under a flood.
const ANSWERED: Duration = Duration::from_secs(1);
const FLOOD: Duration = Duration::from_secs(5);

/// Makes the kernel programs hand over all packets that need an answer, as they do where IPVS does not translate redirected answers.
fn hand_all_over(ns: &Netns) -> Result<()> {
    ns.run(|| {
        let map = MapData::from_pin(format!("{PINNED_MAPS}/config")).and_then(Map::from_map_data)?;
        let mut config: Array<_, Config> = map.try_into()?;
        let before = config.get(&0, 0)?;
        config.set(0, &Config { flags: before.flags | config_flags::INJECT, ..before }, 0)?;
        Ok(())
    })
}

/// Floods an agent that may use one processor only. The sender uses the same processor, or another one.
fn under_a_flood(from_another: bool) -> Result<()> {
    let all = cpus()?;
    // Processes that this thread starts stay on that processor too.
    let only = stay_on_one_cpu()?;
    let (ns, agent) = start(&[])?;
    ns.ip("neigh add 10.9.1.1 lladdr 02:00:00:00:00:01 dev v0 nud permanent")?;
    agent.flag("node-b")?;
    hand_all_over(&ns)?;
    let proc = agent.proc()?;
    let ran = proc.ran("answers")?;
    let began = Instant::now();
    let by = all.into_iter().find(|cpu| *cpu != only).filter(|_| from_another).unwrap_or(only);
    let from = std::sync::Arc::clone(&ns);
    let syns = thread::spawn(move || {
        stay_on(by)?;
        let backend = SocketAddrV4::new(Ipv4Addr::new(10, 9, 1, 1), 80);
        Syns::start(&from, &[Ipv4Addr::new(10, 9, 0, 1)], backend)
    });
    let syns = syns.join().ok().context("the thread that starts the flood panicked")??;
    while began.elapsed() < FLOOD {
        let asked = Instant::now();
        agent.ask::<Status>(&Request::Status)?;
        within("status under a flood", ANSWERED, asked)?;
        thread::sleep(Duration::from_millis(50));
    }
    let [handed, limited] = [Reason::Handed, Reason::AnswerLimited].map(|reason| agent.counter(reason));
    let handed = handed?;
    let limited = limited?;
    let took = began.elapsed();
    let busy = (proc.ran("answers")? - ran).as_secs_f64() / took.as_secs_f64();
    let told = Instant::now();
    proc.signal(Signal::SIGTERM)?;
    wait_within("the end under a flood", ENDED, told, || has_ended(proc.pid()))?;
    figure("SYNs a second", syns.finish()?, "/s");
    figure("packets handed over a second", handed as f64 / took.as_secs_f64(), "/s");
    figure("the thread that answers", busy * 100.0, "% of a processor");
    // Each second has a budget of its own, also one that the flood only touches.
    let most = u64::from(ANSWERS_PER_SECOND) * (took.as_secs() + 2);
    // A sender on the agent's processor may be too slow to exceed the budget.
    ensure!(
        handed > 0 && (limited > 0 || !from_another),
        "no flood: {handed} handed over, {limited} dropped"
    );
    ensure!(handed <= most, "{handed} packets were handed over in {took:?}, at most {most}");
    Ok(())
}

#[test]
fn status_and_sigterm_are_answered_where_senders_have_the_same_processor() -> Result<()> {
    under_a_flood(false)
}

#[test]
fn status_and_sigterm_are_answered_where_senders_have_another_one() -> Result<()> {
    under_a_flood(true)
}
