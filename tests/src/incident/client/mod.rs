//! The clients of the incident: all of them in one process and one thread, which records each request.

mod recorder;
mod tcp;
mod udp;

use std::{
    net::{Ipv4Addr, SocketAddrV4},
    path::PathBuf,
    rc::Rc,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result};
use recorder::Recorder;
use tokio::{
    signal::unix::{SignalKind, signal},
    task::LocalSet,
    time::{sleep, sleep_until, timeout},
};

use super::{observed::now_us, record::Log};

/// How many clients there are, and how fast they send.
#[derive(Clone, Copy, Debug)]
pub struct Load {
    /// Clients that send requests on one connection.
    pub keep: u32,
    /// The pause of such a client from the beginning of a request to the next one.
    pub think: Duration,
    /// Connections on which nothing is sent.
    pub idle: u32,
    /// The time from one new connection to the next.
    pub new: Duration,
    /// The time from one datagram to the next, for the fixed port and for ports of their own.
    pub datagrams: Duration,
}

impl Load {
    /// The load of the incident.
    pub const FULL: Self = Self {
        keep: 40,
        think: Duration::from_millis(200),
        idle: 20,
        new: Duration::from_millis(50),
        datagrams: Duration::from_millis(50),
    };

    /// A quarter of it, beside kubelets that start and end pods on emulated processors.
    pub const LIGHT: Self = Self {
        keep: 10,
        think: Duration::from_millis(200),
        idle: 10,
        new: Duration::from_millis(200),
        datagrams: Duration::from_millis(200),
    };

    /// The load of this name on the command line.
    pub fn named(name: &str) -> Option<Self> {
        match name {
            "full" => Some(Self::FULL),
            "light" => Some(Self::LIGHT),
            _ => None,
        }
    }
}

/// The established connections all exist after this time, in which an emulated node is slow at the most.
const ESTABLISHED: Duration = Duration::from_secs(60);
/// The interval at which the process looks whether it still runs.
const TICK: Duration = Duration::from_millis(10);
/// Shorter gaps are not recorded.
const LATE: Duration = Duration::from_millis(20);

/// The servers, and where the log goes.
#[derive(Clone, Debug)]
pub struct Target {
    /// The address of the node through which the clients reach the servers.
    pub address: Ipv4Addr,
    /// The port of the TCP Service there.
    pub tcp: u16,
    /// The port of the UDP Service there.
    pub udp: u16,
    /// The file of the log.
    pub log: PathBuf,
}

/// Runs the clients until SIGTERM, and writes the log. Writes a line to standard output once all established connections exist.
///
/// # Errors
/// Fails if the established connections do not exist after a minute, or if the log cannot be written.
pub fn run(target: &Target, load: Load) -> Result<()> {
    // Nothing that runs beside the clients may delay them. Without root an error is ignored: gaps are measured all the same.
    let _without_root = rustix::process::setpriority_process(None, -20);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let recorder = Rc::new(Recorder::default());
    LocalSet::new().block_on(&runtime, clients(target, load, &recorder))?;
    // What still waits is recorded before the tasks end.
    let log: Log = recorder.finish();
    drop(runtime);
    log.write(&target.log)
}

async fn clients(target: &Target, load: Load, recorder: &Rc<Recorder>) -> Result<()> {
    let tcp = SocketAddrV4::new(target.address, target.tcp);
    let udp = SocketAddrV4::new(target.address, target.udp);
    let mut end = signal(SignalKind::terminate())?;
    tokio::task::spawn_local(gaps(Rc::clone(recorder)));
    let mut established = Vec::new();
    let until = Instant::now() + ESTABLISHED;
    for client in 0..load.keep + load.idle {
        let left = until.saturating_duration_since(Instant::now());
        let connected = timeout(left, tcp::established(tcp)).await;
        let connected = connected.ok().flatten().with_context(|| {
            format!("after {ESTABLISHED:?} only {client} connections to {tcp} have answered")
        })?;
        established.push(connected);
    }
    for (client, connected) in (0..).zip(established) {
        let recorder = Rc::clone(recorder);
        if client < load.keep {
            tokio::task::spawn_local(tcp::keep(recorder, tcp, client, connected, load.think));
        } else {
            tokio::task::spawn_local(tcp::idle(recorder, client - load.keep, connected));
        }
    }
    let new = Rc::clone(recorder);
    tokio::task::spawn_local(each(load.new, move |client| tcp::new(Rc::clone(&new), tcp, client)));
    let fresh = Rc::clone(recorder);
    tokio::task::spawn_local(each(load.datagrams, move |client| udp::fresh(Rc::clone(&fresh), udp, client)));
    tokio::task::spawn_local(udp::fixed(Rc::clone(recorder), udp, load.datagrams));
    println!("ready");
    end.recv().await.context("no signal can come any more")
}

/// Starts a task at each interval. A task that waits delays no other. After a gap the missed ones are left out.
async fn each<F: Future<Output = ()> + 'static>(every: Duration, one: impl Fn(u32) -> F) {
    let mut next = tokio::time::Instant::now();
    let mut number = 0;
    loop {
        tokio::task::spawn_local(one(number));
        number += 1;
        next = (next + every).max(tokio::time::Instant::now());
        sleep_until(next).await;
    }
}

/// Records when this thread did not run.
async fn gaps(recorder: Rc<Recorder>) {
    loop {
        let asked = now_us();
        sleep(TICK).await;
        let late = Duration::from_micros(now_us() - asked).saturating_sub(TICK);
        if late > LATE {
            recorder.gap(asked, late);
        }
    }
}
