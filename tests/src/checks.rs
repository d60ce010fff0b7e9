//! What a cut must do to clients, to be asked of every topology.

use std::{
    net::IpAddr,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread::JoinHandle,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, bail, ensure};
use nodefence_common::Reason;

use crate::{
    Agent, Cluster, Conn, Family, Options, Outcome, Place,
    capture::Frame,
    client::{UdpConn, pattern, try_new},
    emulated,
    tcp_info::retransmitted,
    topology::Service,
};

/// Limit of anything that should happen at once. Generous: machines are slow, but stalls here last for ever.
pub const SOON: Duration = Duration::from_secs(10);

/// What flags a node.
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
}

/// A flow under test: who, where to.
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
    /// Where there is none to be had.
    pub fn to_b(&self, service: Service) -> Result<Conn> {
        let to = self.cluster.service(service, self.place, self.family);
        Conn::connect_to(self.cluster.at(self.place), to, "node-b", SOON).with_context(|| self.to_string())
    }

    /// A UDP flow to node B's backend.
    ///
    /// # Errors
    /// Where there is none to be had.
    pub fn udp_to_b(&self) -> Result<UdpConn> {
        let to = self.cluster.service(Service::Dns, self.place, self.family);
        UdpConn::connect_to(self.cluster.at(self.place), to, "node-b", SOON).with_context(|| self.to_string())
    }

    /// New connections are answered by C or refused at once; not one of them waits.
    ///
    /// # Errors
    /// Where one waits, or B answers.
    pub fn new_connections(&self, service: Service) -> Result<()> {
        let to = self.cluster.service(service, self.place, self.family);
        let (mut served, mut refused) = (0, 0);
        for _ in 0..24 {
            match try_new(self.cluster.at(self.place), to, SOON) {
                (Outcome::Answered, Some(name)) if name == "node-c" => served += 1,
                (Outcome::Refused | Outcome::Reset, _) => refused += 1,
                other => bail!("{self}: new connection to {service:?}: {other:?}"),
            }
        }
        ensure!(served > 0, "{self}: of 24 new connections to {service:?} none reached node C");
        ensure!(refused > 0, "{self}: no new connection to {service:?} was sent to node B");
        Ok(())
    }

    /// Everything a flagged node means for this place and IP version: established flows reset at their next packet, new
    /// ones refused, UDP refused, what is no backend left alone; and after the flag all works again.
    ///
    /// # Errors
    /// What does not hold.
    pub fn cut_and_back(&self, fence: &mut impl Fence, udp: bool) -> Result<()> {
        let mut kept = self.to_b(Service::Web)?;
        let mut host = self.to_b(Service::Host)?;
        let datagrams = self.udp_to_b()?;
        fence.flag("node-b")?;
        reset_at_next_packet(&mut kept).with_context(|| format!("{self}: pod"))?;
        reset_at_next_packet(&mut host).with_context(|| format!("{self}: host network"))?;
        if udp {
            let outcome = datagrams.request();
            ensure!(outcome == Outcome::Refused, "{self}: UDP {outcome:?}");
        }
        self.new_connections(Service::Web)?;
        self.new_connections(Service::Host)?;
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
    /// One client of each place and IP version waits in a long poll on node B, whose processes then freeze: they hear nothing until
    /// the node is flagged, and are reset then without having sent anything. Gives the longest time that took.
    ///
    /// # Errors
    /// What does not hold.
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
    let start = Instant::now();
    fence.flag("node-b")?;
    for (case, conn) in idle {
        let outcome = conn.wait_end(SOON);
        ensure!(outcome == Outcome::Reset, "{case}: idle client: {outcome:?} after {:?}", start.elapsed());
    }
    let took = start.elapsed();
    fence.unflag("node-b")?;
    Ok(took)
}

/// The next request on the connection ends in ECONNRESET, soon.
///
/// # Errors
/// Where it ends otherwise.
pub fn reset_at_next_packet(conn: &mut Conn) -> Result<Duration> {
    conn.limit(Some(SOON))?;
    let start = Instant::now();
    let outcome = conn.request();
    ensure!(outcome == Outcome::Reset, "established connection: {outcome:?} after {:?}", start.elapsed());
    let took = start.elapsed();
    let again = retransmitted(&conn.stream)?;
    // An emulated machine may stand still for longer than a retransmission takes.
    ensure!(again == 0 || emulated(), "reset after {took:?} only, at retransmission {again}");
    Ok(took)
}

/// Flows to node C that go on all the time: every byte is compared, no error is forgiven.
#[derive(Debug)]
pub struct Load {
    stop: Arc<AtomicBool>,
    bytes: Arc<AtomicU64>,
    threads: Vec<JoinHandle<Result<()>>>,
}

impl Load {
    /// Starts flows to node C, one from each place, each of echoes and downloads in turn.
    ///
    /// # Errors
    /// Where one cannot be opened.
    pub fn on_c(cluster: &Cluster, family: Family) -> Result<Self> {
        let (stop, bytes) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let mut threads = Vec::new();
        for place in Place::ALL {
            let to = cluster.service(Service::Web, place, family);
            let mut conn = Conn::connect_to(cluster.at(place), to, "node-c", SOON)?;
            let (stop, bytes) = (Arc::clone(&stop), Arc::clone(&bytes));
            threads.push(std::thread::spawn(move || {
                let payload = pattern(40_000);
                while !stop.load(Ordering::Relaxed) {
                    let start = Instant::now();
                    conn.echo(&payload).with_context(|| format!("echo, {place:?}"))?;
                    conn.download(60_000).with_context(|| format!("download, {place:?}"))?;
                    bytes.fetch_add(100_000, Ordering::Relaxed);
                    // Half of the time, on an emulated machine, which has one processor, a small part: the flows under test need it
                    // too.
                    std::thread::sleep(start.elapsed() * if emulated() { 15 } else { 1 });
                }
                Ok(())
            }));
        }
        Ok(Self { stop, bytes, threads })
    }

    /// Ends it.
    ///
    /// # Errors
    /// Where a byte was wrong, a connection broke, or nothing was transferred.
    pub fn finish(mut self) -> Result<u64> {
        self.stop.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            match thread.join() {
                Ok(result) => result?,
                Err(_) => bail!("a load thread panicked"),
            }
        }
        let bytes = self.bytes.load(Ordering::Relaxed);
        ensure!(bytes > 0, "the load transferred nothing");
        Ok(bytes)
    }
}

/// Every captured packet sums up, and at least one RST arrived from `from`.
///
/// # Errors
/// The first packet that does not, or that no RST is among them.
pub fn sums_hold(frames: &[Frame], from: IpAddr) -> Result<()> {
    for frame in frames {
        frame.verify()?;
    }
    let resets =
        frames.iter().filter_map(Frame::segment).filter(|segment| segment.rst && segment.src == from);
    ensure!(resets.count() > 0, "no RST from {from} among {} packets", frames.len());
    Ok(())
}

/// The whole of it, by the real agent and CLI. Every place and IP version: cut and back; then idle clients of a node whose
/// processes are frozen; flows to node C go on all the while. Gives the agent's status and the packets it counted.
///
/// # Errors
/// What does not hold, with the agent's log.
pub fn matrix(options: Options) -> Result<(serde_json::Value, Counts)> {
    let cluster = Cluster::new(options)?;
    let mut agent = cluster.agent()?;
    let all = cut_everywhere(&cluster, &mut agent);
    all.with_context(|| format!("{options:?}; the agent's log:\n{}", agent.log()))
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
    /// Dropped and answered by the agent.
    pub handed: u64,
}

/// Where an emulated machine stands still for seconds, verdicts lapse as they must. What was seen then is asked again, thrice at
/// most, and only if the datapath counted a packet that passed for that reason.
fn unless_lapsed(agent: &mut Agent, mut check: impl FnMut(&mut Agent) -> Result<()>) -> Result<()> {
    for _ in 0..3 {
        let before = agent.counter(Reason::Lapsed)?;
        let Err(error) = check(agent) else { return Ok(()) };
        let lapsed = agent.counter(Reason::Lapsed)? - before;
        if lapsed == 0 || !emulated() {
            return Err(error.context(format!("{lapsed} packets met a lapsed verdict")));
        }
        println!("{lapsed} packets met a lapsed verdict, so again: {error:#}");
        agent.unflag("node-b")?;
    }
    bail!("verdicts lapsed three times: this machine is too slow, or they are not renewed")
}

fn cut_everywhere(cluster: &Cluster, agent: &mut Agent) -> Result<(serde_json::Value, Counts)> {
    for family in [Family::V4, Family::V6] {
        let load = Load::on_c(cluster, family)?;
        for place in Place::ALL {
            unless_lapsed(agent, |agent| Case { cluster, place, family }.cut_and_back(agent, true))?;
        }
        load.finish()?;
    }
    unless_lapsed(agent, |agent| cluster.idle_clients_are_freed(agent).map(drop))?;
    ensure!(agent.counter(Reason::Failed)? == 0, "answers that could not be made");
    let counts = Counts {
        reset: agent.counter(Reason::Reset)?,
        refused: agent.counter(Reason::Refused)?,
        unreachable: agent.counter(Reason::Unreachable)?,
        handed: agent.counter(Reason::Handed)?,
    };
    Ok((agent.status()?, counts))
}
