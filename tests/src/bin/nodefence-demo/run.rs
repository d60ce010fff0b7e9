//! One run: the cluster, its clients, the freeze, and in the second run the flag.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread::sleep,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, bail};
use nodefence::flags::monotonic_ns;
use nodefence_tests::{
    Agent, Cluster, Conn, Family, Options, Place, client::UdpConn, load::Running, topology::Service,
};

use crate::{
    clients::{Client, Shared},
    live,
    request::{BUCKET_MS, Request},
};

/// The lengths of the parts of a run, in seconds.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Times {
    /// From the start to the freeze.
    before: u64,
    /// From the freeze to the flag.
    unflagged: u64,
    /// From the freeze to the end.
    after: u64,
}

impl Times {
    pub(crate) const FULL: Self = Self { before: 3, unflagged: 4, after: 14 };
    /// Long enough to see clients wait, and then to see that no client waits any more.
    pub(crate) const SHORT: Self = Self { before: 1, unflagged: 1, after: 5 };

    /// The length of the whole run.
    pub(crate) fn seconds(self) -> u64 {
        self.before + self.after
    }

    fn buckets(self) -> u64 {
        self.seconds() * 1_000 / BUCKET_MS as u64
    }
}

/// The number of keep-alive clients in each of the three places. Half of them are on each backend.
const KEEP_ALIVE: usize = 8;
/// The number of UDP clients outside.
const UDP: usize = 8;
/// The time limit for each client to connect.
const LIMIT: Duration = Duration::from_secs(3);

/// Whether the run is with nodefence or without it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Plan {
    Without,
    With,
}

impl Plan {
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Without => "without nodefence",
            Self::With => "with the node flagged",
        }
    }
}

/// The results of a run.
#[derive(Debug)]
pub(crate) struct Run {
    pub(crate) plan: Plan,
    times: Times,
    /// CLOCK_MONOTONIC at the freeze, in nanoseconds.
    pub(crate) frozen_ns: u64,
    /// When `nodefence flag` was started, in milliseconds after the freeze.
    pub(crate) flagged: Option<f64>,
    /// When `nodefence flag` said that the flag is in force, in milliseconds after the freeze.
    pub(crate) flag_holds: Option<f64>,
    /// When the run was ended, in milliseconds after the freeze. Waits are counted up to this time.
    pub(crate) ended: f64,
    pub(crate) requests: Vec<Request>,
    /// Clients that were connected to the healthy node when the other one froze.
    pub(crate) on_healthy: Vec<usize>,
}

impl Run {
    /// The number of the first shown bucket. It is negative, since bucket 0 begins at the freeze.
    pub(crate) fn first_bucket(&self) -> i64 {
        -(self.times.before as i64 * 1_000) / BUCKET_MS
    }

    /// The number of shown buckets.
    pub(crate) fn buckets(&self) -> usize {
        self.times.buckets() as usize
    }
}

pub(crate) fn run(plan: Plan, times: Times, stop: &Arc<AtomicBool>) -> Result<Run> {
    println!("== {} ==", plan.name());
    let not_stopped = || if stop.load(Ordering::Relaxed) { bail!("interrupted") } else { Ok(()) };
    let cluster = Cluster::new(Options::default())?;
    not_stopped()?;
    let agent = match plan {
        Plan::Without => None,
        Plan::With => {
            let ns = &cluster.a.ns;
            let file = cluster.services_file();
            let extra = ["--proxy", "nftables"];
            Some(Agent::start_with(ns, cluster.a.name, &cluster.interfaces(), &file, &extra)?)
        }
    };
    not_stopped()?;
    let shared = Arc::new(Shared::default());
    let (clients, on_healthy) = start_clients(&cluster, &shared)?;
    live::head();
    let begin = Instant::now();
    let zero = begin + Duration::from_secs(times.before);
    let mut stage = Stage {
        times,
        begin,
        zero,
        frozen: false,
        flagged: None,
        flag_holds: None,
        cells: Vec::new(),
        usual: 1,
    };
    let watched = stage.watch(&cluster, agent.as_ref(), &shared, stop);
    let ended = Instant::now();
    // Waiting clients check every 50 ms whether the run is over.
    let clients = clients.finish();
    watched?;
    clients?;
    let zero = stage.zero;
    let notes = shared.notes.lock().map(|mut notes| std::mem::take(&mut *notes)).unwrap_or_default();
    if plan == Plan::Without {
        println!(
            "  -- cut short: a client without a time limit of its own would wait on for minutes, or for ever --"
        );
    }
    println!();
    Ok(Run {
        plan,
        times,
        on_healthy,
        frozen_ns: monotonic_ns().saturating_sub(zero.elapsed().as_nanos() as u64),
        flagged: stage.flagged.map(|at| (at - zero).as_secs_f64() * 1e3),
        flag_holds: stage.flag_holds.map(|at| (at - zero).as_secs_f64() * 1e3),
        ended: (ended - zero).as_secs_f64() * 1e3,
        requests: notes.iter().map(|note| note.request(zero)).collect(),
    })
}

struct Stage {
    times: Times,
    begin: Instant,
    zero: Instant,
    frozen: bool,
    flagged: Option<Instant>,
    flag_holds: Option<Instant>,
    cells: Vec<live::Counts>,
    usual: u64,
}

impl Stage {
    /// Goes through the run bucket by bucket: freezes the node, flags it, and prints the progress.
    fn watch(
        &mut self,
        cluster: &Cluster,
        agent: Option<&Agent>,
        shared: &Shared,
        stop: &AtomicBool,
    ) -> Result<()> {
        let _ = shared.live.take();
        std::thread::scope(|scope| {
            let mut flag = None;
            for bucket in 0.. {
                let at = self.begin + Duration::from_millis(bucket * BUCKET_MS as u64);
                if !self.frozen && at >= self.begin + Duration::from_secs(self.times.before) {
                    // Time zero is the real time of the freeze, which is late on a busy machine.
                    self.zero = Instant::now();
                    cluster.b.freeze()?;
                    self.frozen = true;
                    println!("  -- every process of node B is frozen; its kernel still answers --");
                }
                if let Some(agent) = agent
                    && flag.is_none()
                    && self.frozen
                    && self.zero.elapsed() >= Duration::from_secs(self.times.unflagged)
                {
                    println!("  -- nodefence flag node-b --");
                    self.flagged = Some(Instant::now());
                    flag = Some(scope.spawn(move || agent.flag("node-b").map(|()| Instant::now())));
                }
                sleep(
                    (at + Duration::from_millis(BUCKET_MS as u64)).saturating_duration_since(Instant::now()),
                );
                if stop.load(Ordering::Relaxed) {
                    bail!("interrupted");
                }
                self.cell(shared, bucket);
                // The run goes on until all printed seconds are complete and the last drawn bucket is over. Both are needed, since the freeze may have been
                // late.
                let shown = bucket + 1 >= self.times.buckets();
                if self.frozen && shown && self.zero.elapsed() >= Duration::from_secs(self.times.after) {
                    break;
                }
            }
            match flag.map(std::thread::ScopedJoinHandle::join) {
                Some(Ok(done)) => {
                    self.flag_holds = Some(done.context("nodefence flag node-b")?);
                    Ok(())
                }
                Some(Err(_)) => bail!("the thread that flags panicked"),
                None => Ok(()),
            }
        })
    }

    fn cell(&mut self, shared: &Shared, bucket: u64) {
        let counts = shared.live.take();
        self.cells.push(counts);
        if bucket % 10 == 9 {
            if !self.frozen {
                // The usual number of answers is the mean of a whole second. A single bucket may have more, where a busy machine catches up.
                let sum: u64 = self.cells.iter().map(|cell| cell.answered).sum();
                self.usual = self.usual.max(sum.div_ceil(10));
            }
            let second = (bucket / 10) as i64 - self.times.before as i64;
            if bucket < self.times.buckets() {
                live::line(second, &self.cells, self.usual, shared.live.waiting());
            }
            self.cells.clear();
        }
    }
}

/// Starts the clients. Also returns the ids of those that are connected to the healthy node.
fn start_clients(cluster: &Cluster, shared: &Arc<Shared>) -> Result<(Running<()>, Vec<usize>)> {
    let mut clients = Running::default();
    let mut on_healthy = Vec::new();
    let mut id = 0;
    let mut client = |place: Place, service: Service| {
        id += 1;
        let ns = match place {
            Place::Outside => &cluster.client,
            Place::Pod => &cluster.a.pod,
            Place::Node => &cluster.a.ns,
        };
        let to = cluster.service(service, place, Family::V4);
        Client { id, ns: Arc::clone(ns), to, shared: Arc::clone(shared) }
    };
    // The backend of each client is fixed, so that both runs have the same clients on each backend.
    let mut backend = |at: usize, id: usize| {
        if at.is_multiple_of(2) {
            return "node-b";
        }
        on_healthy.push(id);
        "node-c"
    };
    for place in Place::ALL {
        for at in 0..KEEP_ALIVE {
            let client = client(place, Service::Web);
            let conn = Conn::connect_to(&client.ns, client.to, backend(at, client.id), LIMIT)?;
            client.keep_alive(&mut clients, conn);
        }
    }
    for at in 0..UDP {
        let client = client(Place::Outside, Service::Dns);
        let conn = UdpConn::connect_to(&client.ns, client.to, backend(at, client.id), LIMIT)?;
        conn.socket.set_read_timeout(Some(Duration::from_millis(50)))?;
        client.udp(&mut clients, conn);
    }
    let idle = client(Place::Outside, Service::Web);
    let mut conn = Conn::connect_to(&idle.ns, idle.to, "node-b", LIMIT)?;
    conn.long_poll()?;
    idle.idle(&mut clients, conn);
    client(Place::Outside, Service::Web).new_connections(&mut clients);
    Ok((clients, on_healthy))
}
