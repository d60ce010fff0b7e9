//! Packets that are not balanced anew are refused.
use std::{
    io,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, ensure};
use nodefence_common::Reason;
use nodefence_tests::{
    Agent, Cluster, Conn, Family, Options, Outcome, Place,
    client::{UdpConn, try_new, wait_until},
    topology::Service,
    watch::longest_gap,
};

use super::common::{BOTH, LIMIT, agent, connect, own_counter, rescuing};

/// The agent answers a packet that was handed to it within this time, or not at all.
const LATE: Duration = Duration::from_millis(500);

/// The number of 40 connections to the Service that are refused. Each must be answered at its first SYN.
fn refused(cluster: &Cluster, service: Service) -> Result<usize> {
    let to = cluster.service(service, Place::Outside, Family::V4);
    let mut refused = 0;
    for _ in 0..40 {
        let attempt = Conn::attempt(&cluster.client, to, LIMIT);
        attempt.at_first_syn()?;
        refused += usize::from(attempt.request().0 == Outcome::Refused);
    }
    Ok(refused)
}

#[test]
fn without_services_it_is_as_before() -> Result<()> {
    let cluster = Cluster::new(Options::default())?;
    let agent = cluster.agent()?;
    agent.flag("node-b")?;
    ensure!(refused(&cluster, Service::Web)? > 5, "nothing was refused");
    ensure!(agent.counter(Reason::Rescue)? == 0, "packets were handed over");
    let told = agent.expect(&["status", "-o", "wide"])?;
    ensure!(told.contains("the cluster file says nothing of Services"), "{told}");
    ensure!(told.contains("it has no `services`: what else a Service could use is not known"), "{told}");
    Ok(())
}

#[test]
fn who_cuts_nothing_or_answers_nothing_rescues_nothing() -> Result<()> {
    let cluster = Cluster::new(Options::default())?;
    for (extra, why) in
        [(["--mode", "observe"], "observe mode"), (["--answer", "drop"], "the answer is drop")]
    {
        let agent = agent(&cluster, &extra)?;
        agent.flag("node-b")?;
        let to = cluster.service(Service::Web, Place::Outside, Family::V4);
        for _ in 0..20 {
            let _ = try_new(&cluster.client, to, Duration::from_millis(100));
        }
        ensure!(agent.counter(Reason::Rescue)? == 0, "packets were handed over");
        let told = agent.expect(&["status", "-o", "wide"])?;
        ensure!(told.contains(why), "{told}");
        agent.unflag("node-b")?;
    }
    Ok(())
}

/// If all endpoints are on flagged nodes, all are exempt: packets pass, and nothing is rescued.
#[test]
fn with_all_endpoints_flagged_nothing_goes_round() -> Result<()> {
    let cluster = Cluster::new(Options::default())?;
    let agent = rescuing(&cluster, &[])?;
    agent.flag("node-b")?;
    agent.expect(&["flag", "node-c", "--force"])?;
    let to = cluster.service(Service::Web, Place::Outside, Family::V4);
    for at in 0..40 {
        let attempt = Conn::attempt(&cluster.client, to, LIMIT);
        attempt.at_first_syn().with_context(|| format!("connection {at}"))?;
        let (outcome, _) = attempt.request();
        ensure!(outcome == Outcome::Answered, "connection {at}: {outcome:?}");
    }
    ensure!(agent.counter(Reason::Rescue)? == 0, "{}", agent.expect(&["counters"])?);
    ensure!(agent.counter(Reason::Exempt)? > 0, "{}", agent.expect(&["counters"])?);
    Ok(())
}

/// Sends `count` datagrams to a pod of node B itself, one by one. Gives the number that was refused. The others got no answer.
fn to_the_pod(
    cluster: &Cluster,
    place: Place,
    family: Family,
    count: usize,
    limit: Duration,
) -> Result<usize> {
    let to = (cluster.b.pod_address(family), Service::Dns.ports().1).into();
    let conn = UdpConn::connect(cluster.at(place), to, limit)?;
    let refusal = |result: io::Result<usize>| match result.map_err(|error| error.kind()) {
        Err(io::ErrorKind::ConnectionRefused) => Ok(true),
        Err(io::ErrorKind::WouldBlock) => Ok(false),
        other => anyhow::bail!("{other:?}"),
    };
    let mut refused = 0;
    for at in 0..count {
        // A late refusal of the datagram before is reported here. The datagram is not sent then.
        while let Err(error) = conn.socket.send(b"who") {
            refused += usize::from(refusal(Err(error)).with_context(|| format!("send {at}"))?);
        }
        refused +=
            usize::from(refusal(conn.socket.recv(&mut [0; 64])).with_context(|| format!("datagram {at}"))?);
    }
    let late = refused < count && refusal(conn.socket.recv(&mut [0; 64]))?;
    Ok(refused + usize::from(late))
}

/// The numbers of datagrams that were counted as answered and as not answered. The agent answers most of them. If an emulated processor stood still for longer
/// than the lease, the kernel answers, and the agent drops packets that are too old.
fn counted(agent: &Agent) -> Result<[u64; 2]> {
    let answered = agent.counter(Reason::Unreachable)?;
    let limited = agent.counter(Reason::IcmpLimited)? + agent.counter(Reason::IcmpSenderLimited)?;
    let own = |name| own_counter(agent, name);
    Ok([answered + own("rescue_untranslated")?, limited + own("rescue_icmp_limited")? + own("rescue_late")?])
}

/// The agent remembers that it refused a flow a moment ago. It answers the next datagram all the same, and rescues new connections meanwhile. The node's own
/// address has no sender's budget.
#[test]
fn each_datagram_to_a_hung_pod_itself_is_refused() -> Result<()> {
    const COUNT: usize = 100;
    let cluster = Cluster::new(Options::default())?;
    let agent = rescuing(&cluster, &[])?;
    cluster.b.freeze()?;
    agent.flag("node-b")?;
    let mut refused = 0;
    let mut lost = 0;
    for family in BOTH {
        let begun = Instant::now();
        let now = to_the_pod(&cluster, Place::Node, family, COUNT, LIMIT)?;
        refused += now;
        lost += COUNT - now;
        ensure!(now == COUNT || longest_gap(begun) > LATE, "{now} refused, {family:?}");
        ensure!(
            counted(&agent)? == [refused, lost].map(|count| count as u64),
            "{}",
            agent.expect(&["counters"])?
        );
        for _ in 0..10 {
            connect(&cluster, Service::Web, Place::Node, family, &cluster.c)?;
        }
    }
    ensure!(own_counter(&agent, "rescue_untranslated")? > 0, "{}", agent.expect(&["counters"])?);
    Ok(())
}

#[test]
fn what_is_beyond_the_budget_is_refused_at_once() -> Result<()> {
    let cluster = Cluster::new(Options::default())?;
    let agent = rescuing(&cluster, &["--rescue-per-second", "20"])?;
    cluster.b.freeze()?;
    agent.flag("node-b")?;
    ensure!(refused(&cluster, Service::Web)? > 5, "nothing was refused");
    let row = || agent.status().map(|mut status| status["rescue"].take());
    // The agent reads this counter from time to time.
    let is_told = || row().is_ok_and(|row| row["beyond_budget"].as_u64() > Some(5));
    wait_until("packets beyond the budget are counted", LIMIT, is_told)
        .with_context(|| format!("{:?}", row()))?;
    ensure!(row()?["rescued"].as_u64() > Some(0), "{}", row()?);
    let told = agent.expect(&["status", "-o", "wide"])?;
    ensure!(told.contains("refused at once beyond the budget (--rescue-per-second)"), "{told}");
    Ok(())
}

/// How long a socket waits for its answer in tests where most datagrams get none.
const LOOK: Duration = Duration::from_millis(25);

/// The answers of the agent and of the kernel programs count against one budget of the machine.
#[test]
fn refusals_of_datagrams_have_a_budget() -> Result<()> {
    const COUNT: usize = 60;
    let cluster = Cluster::new(Options::default())?;
    let agent = rescuing(&cluster, &["--icmp-per-second", "3"])?;
    cluster.b.freeze()?;
    agent.flag("node-b")?;
    let begun = Instant::now();
    let refused = to_the_pod(&cluster, Place::Node, Family::V4, COUNT, LOOK)?;
    // Each second has a budget, also the first and the last one, of which only a part is measured.
    let most = 3 * (begun.elapsed().as_secs() + 2);
    let counted = counted(&agent)?;
    ensure!(counted[0] <= most, "{} answers, {most} at most", counted[0]);
    // A socket stores only one of two errors that arrive before it is read.
    let all_seen = longest_gap(begun) < LOOK;
    ensure!(counted.iter().sum::<u64>() == COUNT as u64, "{COUNT} sent, counted {counted:?}");
    ensure!(
        refused >= 3 && (refused as u64 == counted[0] || (!all_seen && refused as u64 <= counted[0])),
        "{refused} refused, counted {counted:?}"
    );
    ensure!(own_counter(&agent, "rescue_icmp_limited")? > 0, "{}", agent.expect(&["counters"])?);
    Ok(())
}

/// Each sender also has a budget of its own.
#[test]
fn refusals_of_one_sender_s_datagrams_have_a_budget() -> Result<()> {
    const COUNT: usize = 60;
    let cluster = Cluster::new(Options::default())?;
    let agent = rescuing(&cluster, &[])?;
    cluster.b.freeze()?;
    agent.flag("node-b")?;
    let begun = Instant::now();
    let refused = to_the_pod(&cluster, Place::Pod, Family::V4, COUNT, LOOK)?;
    let most = 6 + begun.elapsed().as_secs() + 1;
    let limited = counted(&agent)?[1];
    ensure!((5..=most as usize).contains(&refused), "{refused} refused of {COUNT}, {most} at most");
    ensure!(limited >= COUNT as u64 - most, "{limited} of {COUNT} limited");
    let others = to_the_pod(&cluster, Place::Node, Family::V4, COUNT, LIMIT)?;
    ensure!(others == COUNT || longest_gap(begun) > LATE, "{others} of another sender's {COUNT} refused");
    Ok(())
}
