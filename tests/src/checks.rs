//! Checks the required effects of a cut on clients. Tests run these checks in every topology.

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

/// The limit for waits without a promised time. It is generous, since machines are slow, and a client that is not told waits for ever.
pub const SOON: Duration = Duration::from_secs(10);

/// The means by which a test flags nodes and reads counters: an agent, or the programs without one.
pub trait Fence {
    /// Flags a node.
    ///
    /// # Errors
    /// Fails if the means fails.
    fn flag(&mut self, node: &str) -> Result<()>;
    /// Withdraws the flag of a node.
    ///
    /// # Errors
    /// Fails if the means fails.
    fn unflag(&mut self, node: &str) -> Result<()>;
    /// The number of packets counted for this reason.
    ///
    /// # Errors
    /// Fails if the means fails.
    fn counter(&mut self, reason: Reason) -> Result<u64>;

    /// Flags a node without the start of a command. Returns the time of the request.
    ///
    /// # Errors
    /// Fails if the means fails.
    fn flag_now(&mut self, node: &str) -> Result<Instant> {
        let began = Instant::now();
        self.flag(node)?;
        Ok(began)
    }

    /// Whether answers are made in place. Then only packets that cannot be resized are handed to user space.
    ///
    /// # Errors
    /// Fails if that is unknown.
    fn answers_in_place(&self) -> Result<bool>;

    /// Numbers of packets, by how they were answered.
    ///
    /// # Errors
    /// Fails if the means fails.
    fn counts(&mut self) -> Result<Counts> {
        Ok(Counts {
            reset: self.counter(Reason::Reset)?,
            refused: self.counter(Reason::Refused)?,
            unreachable: self.counter(Reason::Unreachable)?,
            handed: self.counter(Reason::Handed)?,
            // Without an agent nothing reads the ring of packets that were handed over.
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

/// How a client was told of the cut.
#[derive(Clone, Copy, Debug)]
pub struct Told {
    /// How many packets were sent again.
    again: u32,
    /// Whether the first packet got the answer. Also set where the machine stood still without a break for as long as a retransmission takes.
    at_first: bool,
    took: Duration,
    /// After this time a packet without an answer is sent again.
    resent: Duration,
}

/// Checks that each client was told of the cut at its first packet, whether that packet was answered in place or handed to user space. Where `in_place` is set,
/// no packet may be handed over.
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

/// Checks that each client was told at its first packet.
fn all_at_first(told: &[Told], how: &str) -> Result<()> {
    let late: Vec<&Told> = told.iter().filter(|one| !one.at_first).collect();
    match late.iter().map(|one| one.resent).max() {
        None => Ok(()),
        Some(bound) => Err(watch::overdue(bound, format!("told at a later packet only ({how}): {late:?}"))),
    }
}

/// The clients under test: their place and their IP version.
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
    /// Opens a connection to node B's backend of a Service.
    ///
    /// # Errors
    /// Fails if no such connection comes up.
    pub fn to_b(&self, service: Service) -> Result<Conn> {
        let to = self.cluster.service(service, self.place, self.family);
        Conn::connect_to(self.cluster.at(self.place), to, "node-b", SOON).with_context(|| self.to_string())
    }

    /// Opens a UDP flow to node B's backend.
    ///
    /// # Errors
    /// Fails if no such flow comes up.
    pub fn udp_to_b(&self) -> Result<UdpConn> {
        let to = self.cluster.service(Service::Dns, self.place, self.family);
        UdpConn::connect_to(self.cluster.at(self.place), to, "node-b", SOON).with_context(|| self.to_string())
    }

    /// Checks that each new connection is answered by node C or refused, at its first SYN.
    ///
    /// # Errors
    /// Fails if a connection needs a second SYN, or if node B answers.
    pub fn new_connections(&self, service: Service) -> Result<()> {
        let refused = self.refused(service)?;
        all_at_first(&refused, "new connections").with_context(|| self.to_string())
    }

    /// Makes 24 new connections. Returns those that were refused. Node C must answer the first SYN of each other connection.
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

    /// Checks all effects of a flag for this place and IP version. Established connections are reset; one that is not challenged is reset at its next packet.
    /// New connections to node B are refused. With `udp`, datagrams are refused. Once the flag is withdrawn, all backends of node B answer again.
    ///
    /// # Errors
    /// The error names the failed check.
    pub fn cut_and_back(&self, fence: &mut impl Fence, udp: bool) -> Result<()> {
        let mut pod = self.to_b(Service::Web)?;
        let mut host = self.to_b(Service::Host)?;
        // An agent challenges the clients of the two connections above, which may so be reset before they send anything. It does not challenge this one.
        let unlisted = (self.place == Place::Pod).then(|| unlisted::to_b(self.cluster, self.family));
        let mut unlisted = unlisted.transpose().with_context(|| self.to_string())?;
        let datagrams = self.udp_to_b()?;
        let before = fence.counts()?;
        fence.flag("node-b")?;
        let mut told = vec![
            reset(&mut pod).with_context(|| format!("{self}: pod"))?,
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
    /// Checks idle clients. One client of each place and IP version waits in a long poll on node B, whose processes then freeze. Clients get nothing until the
    /// node is flagged. Then each client is reset within the promised time, without having sent anything. Returns the longest time that a reset took.
    ///
    /// # Errors
    /// The error names the failed check.
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
        let freed = reset_after_a_flag(&mut idle, fence);
        self.b.thaw()?;
        freed
    }
}

fn reset_after_a_flag(idle: &mut [(Case<'_>, Conn)], fence: &mut impl Fence) -> Result<Duration> {
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

/// Checks that the next request on the connection ends in ECONNRESET, and that the request's first segment got that answer.
///
/// # Errors
/// Fails if the request ends otherwise, if it waited for a retransmission, or if the connection had been reset before.
pub fn reset_at_next_packet(conn: &mut Conn) -> Result<Duration> {
    let told = reset_by_packet(conn)?;
    all_at_first(&[told], "an established connection")?;
    Ok(told.took)
}

/// Same as [`reset_at_next_packet`], for a connection whose client an agent challenges. Such a connection may have been reset before the request.
///
/// # Errors
/// Fails if the request ends otherwise, or if it waited for a retransmission.
pub fn reset_by_now(conn: &mut Conn) -> Result<()> {
    all_at_first(&[reset(conn)?], "an established connection")
}

/// Same as [`reset`], but the request must have sent a segment before the reset.
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

/// Checks the checksums of every captured packet, and that at least one RST came from `from`.
///
/// # Errors
/// Fails if a checksum is wrong or no RST arrived. The error names the first packet whose checksum is wrong.
pub fn sums_hold(frames: &[Frame], from: IpAddr) -> Result<()> {
    for frame in frames {
        frame.verify()?;
    }
    let resets =
        frames.iter().filter_map(Frame::segment).filter(|segment| segment.rst && segment.src == from);
    ensure!(resets.count() > 0, "no RST from {from} among {} packets", frames.len());
    Ok(())
}

/// Runs all checks with the real agent and CLI: [`Case::cut_and_back`] for every place and IP version, with load on node C, and then
/// [`Cluster::idle_clients_are_freed`]. Returns the agent's status and its counts of packets.
///
/// # Errors
/// The error names the failed check and has the agent's log.
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

/// Numbers of packets, by how they were answered.
#[derive(Clone, Copy, Debug)]
pub struct Counts {
    /// Answered in place by a RST.
    pub reset: u64,
    /// Answered in place by RST|ACK.
    pub refused: u64,
    /// Answered in place by an ICMP port unreachable.
    pub unreachable: u64,
    /// Dropped, and handed to the agent to answer.
    pub handed: u64,
    /// Handed over, and not answered.
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
