//! The agent is killed, stopped or replaced at every step of the drain and of the restore.

use std::{
    collections::BTreeSet,
    path::Path,
    process::Child,
    sync::atomic::AtomicBool,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, anyhow, ensure};
use nodefence::report::{Client, Request};
use nodefence_tests::{
    Agent, Cluster, Conn, Family, Place,
    ambush::{Ambush, Blow},
    client::{UdpConn, wait_until},
    load::{repeat, under},
    topology::Service,
};
use serde_json::Value;

use super::common::{
    LIMIT, agent, cluster, is_out, saved, untouched, wait_drained, wait_same, weighted_on_b,
};

/// The time within which an agent that serves clients answers.
const ANSWERED: Duration = Duration::from_secs(1);

/// Gives the agent a command, and waits until the blow has fallen at the `nth` step of its work, or until the work is done. Gives the ambush and the command, which
/// may still wait for its answer.
fn struck(
    agent: &Agent,
    nth: usize,
    blow: Blow,
    verb: &str,
    done: impl Fn() -> bool,
) -> Result<(Ambush, Child)> {
    let ambush = Ambush::lay(agent.proc()?.pid(), "drain", nth, blow)?;
    let told = agent.begin(&[verb, "node-b"])?;
    let begun = Instant::now();
    while !ambush.hit() && !done() {
        ensure!(begun.elapsed() < LIMIT, "step {nth}: neither reached nor passed\n{}", agent.log());
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    Ok((ambush, told))
}

/// Whether an agent answers at this socket.
fn answers(socket: &Path) -> bool {
    let asked = Client::connect(socket).and_then(|mut client| {
        client.set_patience(ANSWERED)?;
        client.ask::<Value>(&Request::Nodes)
    });
    asked.is_ok()
}

/// Another agent takes over while the thread that drains is held at a step. The thread goes on once the first agent has heard of the hand-over and answers no client
/// any more. Then the first agent ends.
fn upgraded(cluster: &Cluster, agent: &mut Agent, ambush: Ambush, flags: bool) -> Result<()> {
    let socket = agent.socket();
    let lifting = std::thread::spawn(move || {
        let heard = wait_until("the hand-over", LIMIT, || !answers(&socket));
        ambush.lift().and(heard)
    });
    let weighted = || weighted_on_b(&cluster.a.ns).map(BTreeSet::from_iter);
    let first = weighted()?;
    // The drained node stays drained meanwhile.
    let watch = |stop: &AtomicBool| {
        let mut before = first.clone();
        repeat(stop, || {
            let now = weighted()?;
            ensure!(
                !flags || now.is_subset(&before),
                "restored between two agents: {now:?}, before {before:?}"
            );
            before = now;
            Ok(Duration::ZERO)
        })
    };
    let (restarted, watched) = under([watch], || agent.restart(&["--take-over"]));
    lifting.join().map_err(|_| anyhow!("the thread that lifts the ambush panicked"))??;
    restarted?;
    for looks in watched {
        let looks = looks.with_context(|| agent.log())?;
        ensure!(looks > 0, "the table was never looked at");
    }
    Ok(())
}

fn flows_to_b(cluster: &Cluster) -> Result<(Conn, UdpConn)> {
    let at = |service| cluster.service(service, Place::Pod, Family::V4);
    Ok((
        Conn::connect_to(cluster.at(Place::Pod), at(Service::Web), "node-b", LIMIT)?,
        UdpConn::connect_to(cluster.at(Place::Pod), at(Service::Dns), "node-b", LIMIT)?,
    ))
}

fn at_every_step(blow: Blow) -> Result<()> {
    let cluster = cluster()?;
    let before = saved(&cluster.a.ns)?;
    let mut agent = agent(&cluster)?;
    let mut steps_out = None;
    let mut steps_back = None;
    for nth in 1.. {
        for (verb, steps) in [("flag", &mut steps_out), ("unflag", &mut steps_back)] {
            let flags = verb == "flag";
            let what = format!("{verb}, {blow:?} at step {nth}");
            let begun_at: Instant;
            // Without these flows the drain would have nothing to delete.
            let _held = if flags { Some(flows_to_b(&cluster)?) } else { None };
            let settled = || {
                let is_back = || saved(&cluster.a.ns).is_ok_and(|now| now == before);
                if flags { is_out(&cluster, &agent) } else { is_back() }
            };
            if steps.is_some() {
                begun_at = Instant::now();
                agent.expect(&[verb, "node-b"])?;
            } else {
                let (ambush, mut told) = struck(&agent, nth, blow, verb, settled)?;
                let mut hit = ambush.hit();
                if hit && blow == Blow::Hold {
                    upgraded(&cluster, &mut agent, ambush, flags)?;
                } else {
                    hit = ambush.lift()?;
                }
                let guarded = |began: Instant, log: &str| -> Result<()> {
                    let took = wait_same(&cluster, &before, began, log);
                    println!("{what}: restored {:?} later", took.with_context(|| what.clone())?);
                    Ok(())
                };
                match blow {
                    _ if !hit => *steps = Some(nth - 1),
                    Blow::Hold => {}
                    Blow::Kill => {
                        let began = Instant::now();
                        agent.kill();
                        // In every second turn the guard restores. In the others the next agent starts before that.
                        if (nth % 2 == 0) == flags {
                            guarded(began, &agent.log())?;
                        }
                        agent.restart(&[])?;
                        // `flags.json` may lack a command that was not answered.
                        if !told.wait()?.success() {
                            agent.expect(&[verb, "node-b"])?;
                        }
                    }
                    Blow::Stop => {
                        // The agent stands still until the guard has restored, so that each of its threads notices.
                        let began = Instant::now();
                        agent.proc()?.freeze()?;
                        let guarded = guarded(began, &agent.log());
                        agent.proc()?.thaw()?;
                        guarded?;
                        // An agent that had drained something ends then, and its `flags.json` may lack the command.
                        agent.restart(&["--take-over"])?;
                        let _said_before = agent.cli(&[verb, "node-b"])?;
                    }
                }
                told.wait()?;
                begun_at = Instant::now();
            }
            if flags {
                wait_drained(&cluster, &agent).context(what)?;
            } else {
                wait_same(&cluster, &before, begun_at, &agent.log()).context(what)?;
                untouched(&agent)?;
            }
        }
        if let (Some(out), Some(back)) = (steps_out, steps_back) {
            println!("{blow:?} at {out} steps of the drain and {back} of the restore");
            // The drain has steps for lines of the ledger, for the guard and for three rounds of changes. The restore has steps for changes and for a line.
            // With fewer, steps were missed.
            ensure!(out >= 6 && back >= 2, "too few steps");
            break;
        }
    }
    Ok(())
}

#[test]
fn killed_at_every_step() -> Result<()> {
    at_every_step(Blow::Kill)
}

#[test]
fn stopped_at_every_step() -> Result<()> {
    at_every_step(Blow::Stop)
}

#[test]
fn upgraded_at_every_step() -> Result<()> {
    at_every_step(Blow::Hold)
}
