//! A flag that ends while packets that met the cut are on their way through the agent.
use std::{
    net::UdpSocket,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, ensure};
use nodefence::report::{CounterRow, Request, UnflagReport};
use nodefence_common::Reason;
use nodefence_tests::{
    Agent, Cluster, Family, Options, Place,
    client::{UdpConn, wait_until},
    emulated,
    topology::Service,
    traced::Still,
};

use super::common::{own_counter, rescuing};

const CLIENTS: usize = 24;
/// Who gets no answer by then gets none: what is handed over is answered at once, or it was refused, or came too late.
const LIMIT: Duration = Duration::from_secs(1);
/// The lease ends 200 ms after it was renewed.
const SOON: Duration = Duration::from_millis(150);
const ROUNDS: usize = 20;
/// Each would go elsewhere with one chance in two.
const ENOUGH: usize = 12;

/// What the counter of packets that were handed over says, without a process for it: the lease would lapse meanwhile under emulation.
fn handed_over(agent: &Agent) -> Result<u64> {
    let rows: Vec<CounterRow> = agent.ask(&Request::Counters)?;
    let row = rows.into_iter().find(|row| row.reason == Reason::Rescue.name());
    Ok(row.context("no counter of what is handed over")?.packets)
}

fn is_answered(socket: &UdpSocket) -> bool {
    let peeked = socket.set_nonblocking(true).and_then(|()| socket.peek(&mut [0; 64]));
    socket.set_nonblocking(false).is_ok() && peeked.is_ok()
}

/// Its backend answers again: a datagram that met the cut a moment before goes there by the flow's entry, as all that its client has sent since then does.
#[cfg(target_arch = "x86_64")]
#[test]
fn datagrams_stay_with_a_backend_that_is_flagged_no_more() -> Result<()> {
    let cluster = Cluster::new(Options::default())?;
    let agent = rescuing(&cluster, &[])?;
    let to = cluster.service(Service::Dns, Place::Outside, Family::V4);
    let mut stayed = 0;
    for round in 0..ROUNDS {
        if stayed >= ENOUGH {
            break;
        }
        let clients: Vec<UdpConn> =
            (0..CLIENTS).map(|_| UdpConn::connect(&cluster.client, to, LIMIT)).collect::<Result<_, _>>()?;
        agent.flag_by_socket("node-b")?;
        // Each second what is pinned to the node is deleted. Not now: entries would go that these datagrams are to find.
        let pinned = Still::of_next(agent.proc()?.pid(), "stale-flows", || Ok(()))?;
        let (rescued, met) = (own_counter(&agent, "rescued")?, handed_over(&agent)?);
        let still = Still::of(agent.proc()?.pid(), "rescue")?;
        let begun = Instant::now();
        for client in &clients {
            client.socket.send(b"who")?;
        }
        let arrived = wait_until("each datagram is answered or handed over", SOON, || {
            let answered = clients.iter().filter(|client| is_answered(&client.socket)).count();
            handed_over(&agent).is_ok_and(|handed| answered as u64 + handed - met == CLIENTS as u64)
        });
        agent.ask::<UnflagReport>(&Request::Unflag { node: "node-b".to_owned() })?;
        still.lift()?;
        pinned.lift()?;
        let held = begun.elapsed();
        let mut answers = [0, 0];
        for client in &clients {
            let mut buffer = [0; 64];
            // One that was refused, or came too late, has none.
            let Ok(len) = client.socket.recv(&mut buffer) else { continue };
            answers[usize::from(buffer[..len].starts_with(b"node-c"))] += 1;
        }
        let handed = handed_over(&agent)? - met;
        let put_in = own_counter(&agent, "rescued")? - rescued;
        println!(
            "round {round}: held for {held:?}, {answers:?} answered, {handed} handed over, {put_in} put in"
        );
        // The kernel had not forwarded all while the node was flagged, or refused some since nobody renewed the lease: the round shows nothing.
        if arrived.is_err() {
            continue;
        }
        // One that has met the cut and is answered all the same was put in.
        let [by_b, _] = answers;
        ensure!(by_b as u64 == put_in, "{put_in} were put in, B answered {by_b}, C {}", answers[1]);
        stayed += by_b;
    }
    ensure!(stayed >= ENOUGH || emulated(), "{stayed} were put in in {ROUNDS} rounds");
    Ok(())
}
