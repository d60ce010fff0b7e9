//! A flag ends while packets that met the cut are on their way through the agent.
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
/// A client that has no answer within this time gets none: its packet was refused, or came to the agent too late.
const LIMIT: Duration = Duration::from_secs(1);
/// Less than the 200 ms after which the lease ends.
const SOON: Duration = Duration::from_millis(150);
const ROUNDS: usize = 20;
/// The number of rescued datagrams that proves enough. If they were balanced anew each would go to the other node with one chance in two.
const ENOUGH: usize = 12;

/// The counter of packets that were handed over. It is read without a new process, since that takes longer than the lease on an emulated processor.
fn handed_over(agent: &Agent) -> Result<u64> {
    let rows: Vec<CounterRow> = agent.ask(&Request::Counters)?;
    let row = rows.into_iter().find(|row| row.reason == Reason::Rescue.name());
    Ok(row.context("no counter of packets that are handed over")?.packets)
}

fn is_answered(socket: &UdpSocket) -> bool {
    let peeked = socket.set_nonblocking(true).and_then(|()| socket.peek(&mut [0; 64]));
    socket.set_nonblocking(false).is_ok() && peeked.is_ok()
}

/// After the unflag the backend gets datagrams again. A datagram that met the cut a moment before goes to the same backend by the flow's conntrack entry, as
/// later ones of its client do.
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
        // The thread that deletes stale flows each second is stopped, since these datagrams need their entries.
        let stale_flows = Still::of_next(agent.proc()?.pid(), "stale-flows", || Ok(()))?;
        let rescued = own_counter(&agent, "rescued")?;
        let met = handed_over(&agent)?;
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
        stale_flows.lift()?;
        let held = begun.elapsed();
        let mut answers = [0, 0];
        for client in &clients {
            let mut buffer = [0; 64];
            // A datagram that was refused, or came to the agent too late, has no answer.
            let Ok(len) = client.socket.recv(&mut buffer) else { continue };
            answers[usize::from(buffer[..len].starts_with(b"node-c"))] += 1;
        }
        let handed = handed_over(&agent)? - met;
        let rescued_now = own_counter(&agent, "rescued")? - rescued;
        println!(
            "round {round}: held for {held:?}, {answers:?} answered, {handed} handed over, {rescued_now} rescued"
        );
        // Not all datagrams were forwarded while the node was flagged, or some were refused because the lease had lapsed. Such a round shows nothing.
        if arrived.is_err() {
            continue;
        }
        // A datagram that met the cut and was answered all the same was rescued.
        let [by_b, _] = answers;
        ensure!(
            by_b as u64 == rescued_now,
            "{rescued_now} were rescued, B answered {by_b}, C {}",
            answers[1]
        );
        stayed += by_b;
    }
    ensure!(stayed >= ENOUGH || emulated(), "{stayed} were rescued in {ROUNDS} rounds");
    Ok(())
}
