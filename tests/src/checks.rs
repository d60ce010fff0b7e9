//! The required effects of a cut on clients, checked in every topology.

use std::{
    net::IpAddr,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, bail, ensure};
use nodefence::report::{Client, CounterRow, FlagReport, Request};
use nodefence_common::Reason;

use crate::{
    Agent, Cluster, Conn, Family, Options, Outcome, Place,
    capture::Frame,
    client::{Attempt, FIRST_SYN, UdpConn},
    load::steady::Load,
    promises::FREED,
    tcp_info::{FIRST_SEGMENT, data_segments, retransmitted},
    topology::Service,
    unlisted, watch,
};

/// Limit for waits that nothing is promised of. Generous: machines are slow, and stalls here last for ever.
pub const SOON: Duration = Duration::from_secs(10);
/// A means by which a test flags nodes.
pub trait Fence {
    /// Flags it.
    ///
    /// # Errors
    /// Where that fails.
    fn flag(&mut self, node: &str) -> Result<()>;
    /// Takes the flag back.
    ///
    /// # Errors
    /// Where that fails.
    fn unflag(&mut self, node: &str) -> Result<()>;
    /// Packets counted for a reason.
    ///
    /// # Errors
    /// Where that fails.
    fn counter(&mut self, reason: Reason) -> Result<u64>;

    /// Flags a node without the start of a command. Gives the time of the request.
    ///
    /// # Errors
    /// Where that fails.
    fn flag_now(&mut self, node: &str) -> Result<Instant> {
        let began = Instant::now();
        self.flag(node)?;
        Ok(began)
    }

    /// Whether answers are made in place: nothing but a packet that cannot be resized is handed to user space.
    ///
    /// # Errors
    /// Where that cannot be told.
    fn answers_in_place(&self) -> Result<bool>;

    /// Packets by how they were answered.
    ///
    /// # Errors
    /// Where that fails.
    fn counts(&mut self) -> Result<Counts> {
        Ok(Counts {
            reset: self.counter(Reason::Reset)?,
            refused: self.counter(Reason::Refused)?,
            unreachable: self.counter(Reason::Unreachable)?,
            handed: self.counter(Reason::Handed)?,
            // No reader takes packets from that ring.
            unanswered: 0,
        })
    }
}

impl Fence for Agent {
    fn flag(&mut self, node: &str) -> Result<()> {
        Agent::flag(self, node)
    }

    fn unflag(&mut self, node: &str) -> Result<()> {
        Agent::unflag(self, node)
    }

    fn counter(&mut self, reason: Reason) -> Result<u64> {
        Agent::counter(self, reason)
    }

    fn answers_in_place(&self) -> Result<bool> {
        Agent::answers_in_place(self)
    }

    fn flag_now(&mut self, node: &str) -> Result<Instant> {
        let mut client = Client::connect(&self.socket())?;
        let node = node.to_owned();
        let reason = "test".to_owned();
        let began = Instant::now();
        let for_ms = None;
        let sudo_user = None;
        let request = Request::Flag { node, for_ms, reason, force: false, wait: false, sudo_user };
        client.ask::<FlagReport>(&request)?;
        Ok(began)
    }

    fn counts(&mut self) -> Result<Counts> {
        let rows: Vec<CounterRow> = Client::connect(&self.socket())?.ask(&Request::Counters)?;
        let of = |name: &str| {
            let row = rows.iter().find(|row| row.reason == name);
            row.map(|row| row.packets).with_context(|| format!("no counter {name}"))
        };
        Ok(Counts {
            reset: of(Reason::Reset.name())?,
            refused: of(Reason::Refused.name())?,
            unreachable: of(Reason::Unreachable.name())?,
            handed: of(Reason::Handed.name())?,
            unanswered: of("unanswerable")? + of("not_injected")?,
        })
    }
}

/// How a client heard of the cut.
#[derive(Clone, Copy, Debug)]
pub struct Told {
    /// Packets that had to be sent again.
    again: u32,
    /// Whether the first packet got the answer, or the machine stood still without a break for as long as a retransmission takes.
    at_first: bool,
    took: Duration,
    /// When the packet is sent again.
    resent: Duration,
}

/// Checks that each client heard of the cut at its first packet, whether that was answered in place or handed to user space. Either all are handed over, or
/// only those that cannot be resized in a tunnel.
fn heard_at_first(before: Counts, after: Counts, told: &[Told], in_place: bool) -> Result<()> {
    let sent = told.len() as u64 + told.iter().map(|one| u64::from(one.again)).sum::<u64>();
    let answered = after.reset + after.refused - before.reset - before.refused;
    let handed = after.handed - before.handed;
    ensure!(
        answered + handed >= sent,
        "{sent} packets met the cut: {answered} were answered in place, {handed} handed over; {told:?}"
    );
    ensure!(!in_place || handed == 0, "{handed} packets were handed over where answers are made in place");
    let lost = after.unanswered - before.unanswered;
    ensure!(lost == 0, "{lost} of {handed} packets that were handed over had no answer");
    let longest = told.iter().map(|one| one.took).max().unwrap_or_default();
    let name = if handed == 0 {
        "longest wait for an answer in place"
    } else {
        "longest wait for the agent's answer"
    };
    watch::figure(name, longest.as_secs_f64() * 1e3, "ms");
    all_at_first(told, &format!("{answered} answered in place, {handed} handed over"))
}

/// Checks that each client was reset at its first packet.
fn all_at_first(told: &[Told], how: &str) -> Result<()> {
    let late: Vec<&Told> = told.iter().filter(|one| !one.at_first).collect();
    match late.iter().map(|one| one.resent).max() {
        None => Ok(()),
        Some(bound) => Err(watch::overdue(bound, format!("told at a later packet only ({how}): {late:?}"))),
    }
}

/// A flow under test: its client and its destination.
#[derive(Clone, Copy, Debug)]
pub struct Case<'a> {
    /// The cluster.
    pub cluster: &'a Cluster,
    /// Where the client runs.
    pub place: Place,
    /// IP version.
    pub family: Family,
}

impl Case<'_> {
    /// A connection to node B's backend of a Service.
    ///
    /// # Errors
    /// Where there is no such connection.
    pub fn to_b(&self, service: Service) -> Result<Conn> {
        let to = self.cluster.service(service, self.place, self.family);
        Conn::connect_to(self.cluster.at(self.place), to, "node-b", SOON).with_context(|| self.to_string())
    }

    /// A UDP flow to node B's backend.
    ///
    /// # Errors
    /// Where there is no such flow.
    pub fn udp_to_b(&self) -> Result<UdpConn> {
        let to = self.cluster.service(Service::Dns, self.place, self.family);
        UdpConn::connect_to(self.cluster.at(self.place), to, "node-b", SOON).with_context(|| self.to_string())
    }

    /// Checks that new connections are answered by C or refused, at the first SYN of each.
    ///
    /// # Errors
    /// Where one waits, or B answers.
    pub fn new_connections(&self, service: Service) -> Result<()> {
        let refused = self.refused(service)?;
        all_at_first(&refused, "new connections").with_context(|| self.to_string())
    }

    /// How many of 24 new connections were refused. The first SYN of all others must reach C.
    fn refused(&self, service: Service) -> Result<Vec<Told>> {
        let to = self.cluster.service(service, self.place, self.family);
        let mut served = 0;
        let mut refused = Vec::new();
        for _ in 0..24 {
            let attempt = Conn::attempt(self.cluster.at(self.place), to, SOON);
            let at_first = attempt.at_first_syn();
            let Attempt { again, took, .. } = attempt;
            match attempt.request() {
                (Outcome::Answered, Some(name)) if name == "node-c" => {
                    at_first.with_context(|| format!("{self}: new connection to {service:?} on node C"))?;
                    served += 1;
                }
                (Outcome::Refused, _) => {
                    let at_first = at_first.is_ok();
                    refused.push(Told { again, at_first, took, resent: FIRST_SYN });
                }
                other => bail!("{self}: new connection to {service:?}: {other:?}"),
            }
        }
        ensure!(served > 0, "{self}: of 24 new connections to {service:?} none reached node C");
        ensure!(!refused.is_empty(), "{self}: no new connection to {service:?} was sent to node B");
        Ok(refused)
    }

    /// Everything a flagged node means for this place and IP version: established flows reset, at their next packet where no challenge is sent, new
    /// ones refused, UDP refused, what is no backend left alone; and after the flag all works again.
    ///
    /// # Errors
    /// Names the check that failed.
    pub fn cut_and_back(&self, fence: &mut impl Fence, udp: bool) -> Result<()> {
        let mut kept = self.to_b(Service::Web)?;
        let mut host = self.to_b(Service::Host)?;
        // An agent challenges the clients of the others: these may be reset before they send anything.
        let unlisted = (self.place == Place::Pod).then(|| unlisted::to_b(self.cluster, self.family));
        let mut unlisted = unlisted.transpose().with_context(|| self.to_string())?;
        let datagrams = self.udp_to_b()?;
        let before = fence.counts()?;
        fence.flag("node-b")?;
        let mut told = vec![
            reset(&mut kept).with_context(|| format!("{self}: pod"))?,
            reset(&mut host).with_context(|| format!("{self}: host network"))?,
        ];
        if let Some(conn) = &mut unlisted {
            told.push(
                reset_by_packet(conn).with_context(|| format!("{self}: a client that is not challenged"))?,
            );
        }
        told.extend(self.refused(Service::Web)?);
        told.extend(self.refused(Service::Host)?);
        let in_place = fence.answers_in_place()? && !self.cluster.options.overlay.is_tunnel();
        heard_at_first(before, fence.counts()?, &told, in_place).with_context(|| self.to_string())?;
        if udp {
            let outcome = datagrams.request();
            ensure!(outcome == Outcome::Refused, "{self}: UDP {outcome:?}");
        }
        fence.unflag("node-b")?;
        self.to_b(Service::Web).context("after the flag")?;
        self.to_b(Service::Host).context("after the flag")?;
        self.udp_to_b().context("after the flag")?;
        Ok(())
    }
}

impl std::fmt::Display for Case<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:?}, {:?}, {:?}", self.place, self.family, self.cluster.options)
    }
}

impl Cluster {
    /// One client of each place and IP version waits in a long poll on node B, whose processes then freeze. Clients hear nothing until the node is flagged.
    /// Then each is reset within the promised second, without having sent anything. Gives the longest time that took.
    ///
    /// # Errors
    /// Names the check that failed.
    pub fn idle_clients_are_freed(&self, fence: &mut impl Fence) -> Result<Duration> {
        let mut idle = Vec::new();
        for family in [Family::V4, Family::V6] {
            for place in Place::ALL {
                let case = Case { cluster: self, place, family };
                let mut conn = case.to_b(Service::Web)?;
                conn.long_poll()?;
                idle.push((case, conn));
            }
        }
        self.b.freeze()?;
        let freed = told_of_a_flag(&mut idle, fence);
        self.b.thaw()?;
        freed
    }
}

fn told_of_a_flag(idle: &mut [(Case<'_>, Conn)], fence: &mut impl Fence) -> Result<Duration> {
    for (case, conn) in &mut *idle {
        let outcome = conn.wait_end(Duration::from_millis(200));
        ensure!(outcome == Outcome::TimedOut, "{case}: idle client before the flag: {outcome:?}");
    }
    let began = fence.flag_now("node-b")?;
    for (case, conn) in idle {
        let outcome = conn.wait_end(SOON);
        ensure!(outcome == Outcome::Reset, "{case}: idle client: {outcome:?} after {:?}", began.elapsed());
    }
    let took = watch::within("flag to the last of six idle clients", FREED, began)?;
    fence.unflag("node-b")?;
    Ok(took)
}

/// Checks that the next request on the connection ends in ECONNRESET, by the answer to its first segment.
///
/// # Errors
/// Where it ends otherwise, or waited for a retransmission, or the connection had been reset before.
pub fn reset_at_next_packet(conn: &mut Conn) -> Result<Duration> {
    let told = reset_by_packet(conn)?;
    all_at_first(&[told], "an established connection")?;
    Ok(told.took)
}

/// As [`reset_at_next_packet`], of a connection whose client an agent challenges: it may have been reset before.
///
/// # Errors
/// Where the request ends otherwise, or waited for a retransmission.
pub fn reset_by_now(conn: &mut Conn) -> Result<()> {
    all_at_first(&[reset(conn)?], "an established connection")
}

/// As [`reset`], by a segment that the request sent.
fn reset_by_packet(conn: &mut Conn) -> Result<Told> {
    let before = data_segments(&conn.stream)?;
    let told = reset(conn)?;
    ensure!(data_segments(&conn.stream)? > before, "reset before it sent anything: {told:?}");
    Ok(told)
}

fn reset(conn: &mut Conn) -> Result<Told> {
    conn.limit(Some(SOON))?;
    let began = Instant::now();
    let outcome = conn.request();
    let took = began.elapsed();
    ensure!(outcome == Outcome::Reset, "established connection: {outcome:?} after {took:?}");
    let again = retransmitted(&conn.stream)?;
    let at_first = again == 0 || watch::longest_gap(began) >= FIRST_SEGMENT;
    Ok(Told { again, at_first, took, resent: FIRST_SEGMENT })
}

/// Checks the sums of every captured packet, and that at least one RST arrived from `from`.
///
/// # Errors
/// Names the first packet whose sum is wrong, or says that no RST arrived.
pub fn sums_hold(frames: &[Frame], from: IpAddr) -> Result<()> {
    for frame in frames {
        frame.verify()?;
    }
    let resets =
        frames.iter().filter_map(Frame::segment).filter(|segment| segment.rst && segment.src == from);
    ensure!(resets.count() > 0, "no RST from {from} among {} packets", frames.len());
    Ok(())
}

/// All checks, with the real agent and CLI. For every place and IP version: cut, and back. Then idle clients of a node whose processes are frozen. Flows to
/// node C go on all the while. Gives the agent's status and its counts of packets.
///
/// # Errors
/// Names the check that failed, with the agent's log.
pub fn matrix(options: Options) -> Result<(serde_json::Value, Counts)> {
    let cluster = Cluster::new(options)?;
    let mut agent = cluster.agent()?;
    let all = cut_everywhere(&cluster, &mut agent);
    let lapsed = agent.counter(Reason::Lapsed);
    all.with_context(|| {
        format!(
            "{options:?}, packets that met a lapsed verdict: {lapsed:?}; the agent's log:\n{}",
            agent.log()
        )
    })
}

/// Packets by how they were answered.
#[derive(Clone, Copy, Debug)]
pub struct Counts {
    /// Made into a RST in place.
    pub reset: u64,
    /// Made into RST|ACK in place.
    pub refused: u64,
    /// Made into ICMP port unreachable in place.
    pub unreachable: u64,
    /// Dropped, and handed to the agent to answer.
    pub handed: u64,
    /// Of the packets handed over: not answered.
    pub unanswered: u64,
}

fn cut_everywhere(cluster: &Cluster, agent: &mut Agent) -> Result<(serde_json::Value, Counts)> {
    for family in [Family::V4, Family::V6] {
        let load = Load::on_c(cluster, family)?;
        for place in Place::ALL {
            Case { cluster, place, family }.cut_and_back(agent, true)?;
        }
        load.finish()?;
    }
    cluster.idle_clients_are_freed(agent)?;
    ensure!(agent.counter(Reason::Failed)? == 0, "answers that could not be made");
    ensure!(agent.counter(Reason::Lapsed)? == 0, "a verdict lapsed that the agent renews");
    Ok((agent.status()?, agent.counts()?))
}
