//! Holds established flows. Each flow has a socket of its own. Half of the flows are idle, half send. The time of each flow's error is recorded.

use std::{
    net::SocketAddrV4,
    os::fd::{AsRawFd as _, OwnedFd},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU32, Ordering},
        mpsc,
    },
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, bail, ensure};
use nix::{
    errno::Errno,
    sys::{
        epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout},
        socket::{
            AddressFamily, MsgFlags, SockFlag, SockProtocol, SockType, SockaddrIn, bind, connect, getsockopt,
            send, setsockopt, socket, sockopt,
        },
    },
};

use super::{Running, own_files, per_worker};
use crate::Netns;

/// The number of handshakes of one worker that are under way at a time.
const IN_FLIGHT: usize = 128;
/// The time limit of all handshakes of a worker.
const PATIENCE: Duration = Duration::from_secs(60);

/// The flows to make.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    /// The number of flows.
    pub flows: u32,
    /// Returns the source of the flow with a number.
    pub from: fn(u32) -> Result<SocketAddrV4>,
    /// The destination of all flows.
    pub to: SocketAddrV4,
    /// The interval at which each sending flow sends a byte.
    pub every: Duration,
}

/// Established flows, held by workers.
#[derive(Debug)]
pub struct Flows {
    shared: Arc<Shared>,
    total: usize,
    workers: Running<Held>,
}

#[derive(Debug, Default)]
struct Shared {
    go: AtomicBool,
    errors: AtomicU32,
}

/// The errors of all flows. The first value of each pair is for idle flows, the second for sending ones.
#[derive(Debug, Default)]
pub struct Errors {
    /// Seconds to each error, sorted.
    pub seconds: Vec<f64>,
    /// Seconds to the last error.
    pub last: [f64; 2],
    /// The number of flows without an error.
    pub left: [u32; 2],
}

/// The times of the errors of one worker's flows. Even flows are idle, odd flows send.
#[derive(Debug)]
struct Held {
    errors: Vec<Option<Instant>>,
}

impl Flows {
    /// Connects all flows from a namespace.
    ///
    /// # Errors
    /// Fails if a flow does not come up in time.
    pub fn establish(netns: &Netns, plan: &Plan) -> Result<Self> {
        let each = per_worker()? & !1;
        let total = plan.flows as usize;
        let shared = Arc::new(Shared::default());
        let (up, ready) = mpsc::channel();
        let mut workers = Running::default();
        for first in (0..total).step_by(each) {
            let range = first..total.min(first + each);
            let shared = Arc::clone(&shared);
            let up = up.clone();
            let plan = *plan;
            let stop = workers.stop();
            workers.add(netns.spawn(move || {
                own_files()?;
                let sockets = connect_all(range, &plan);
                // The receiver waits for every worker, and is gone only if another worker failed.
                let _ = up.send(sockets.is_ok());
                hold(&shared, &stop, sockets?, plan.every)
            })?);
        }
        drop(up);
        let all_up = (0..workers.count()).all(|_| ready.recv().unwrap_or(false));
        let flows = Self { shared, total, workers };
        if !all_up {
            flows.end()?;
            bail!("the flows did not come up");
        }
        Ok(flows)
    }

    /// Makes the sending half start to send.
    pub fn go(&self) {
        self.shared.go.store(true, Ordering::Relaxed);
    }

    /// Waits until all flows have an error, or until `cap` has passed since `started`.
    ///
    /// # Errors
    /// Fails if a flow had an error before `started`.
    pub fn wait(self, started: Instant, cap: Duration) -> Result<Errors> {
        while started.elapsed() < cap && (self.shared.errors.load(Ordering::Relaxed) as usize) < self.total {
            std::thread::sleep(Duration::from_millis(5));
        }
        let mut all = Errors::default();
        for held in self.end()? {
            for (at, error) in held.errors.into_iter().enumerate() {
                match error {
                    None => all.left[at % 2] += 1,
                    Some(time) if time < started => bail!("a flow had an error before anything was done"),
                    Some(time) => {
                        let seconds = time.duration_since(started).as_secs_f64();
                        all.last[at % 2] = all.last[at % 2].max(seconds);
                        all.seconds.push(seconds);
                    }
                }
            }
        }
        all.seconds.sort_by(f64::total_cmp);
        Ok(all)
    }

    fn end(self) -> Result<Vec<Held>> {
        self.workers.finish()
    }
}

fn connect_all(range: std::ops::Range<usize>, plan: &Plan) -> Result<Vec<OwnedFd>> {
    let epoll = Epoll::new(EpollCreateFlags::empty())?;
    let mut sockets: Vec<OwnedFd> = Vec::with_capacity(range.len());
    let mut in_flight = 0;
    let started = Instant::now();
    let mut events = vec![EpollEvent::empty(); IN_FLIGHT];
    while sockets.len() < range.len() || in_flight > 0 {
        while sockets.len() < range.len() && in_flight < IN_FLIGHT {
            let at = sockets.len();
            let fd = open((plan.from)(u32::try_from(range.start + at)?)?, plan.to)?;
            epoll.add(&fd, EpollEvent::new(EpollFlags::EPOLLOUT | EpollFlags::EPOLLONESHOT, at as u64))?;
            sockets.push(fd);
            in_flight += 1;
        }
        let ready = epoll.wait(&mut events, EpollTimeout::from(100_u16))?;
        for event in &events[..ready] {
            let fd = &sockets[event.data() as usize];
            let error = getsockopt(fd, sockopt::SocketError)?;
            ensure!(error == 0, "flow {} failed: {}", event.data(), Errno::from_raw(error));
            epoll.delete(fd)?;
            in_flight -= 1;
        }
        if started.elapsed() > PATIENCE {
            bail!("only {} of {} flows came up", sockets.len() - in_flight, range.len());
        }
    }
    Ok(sockets)
}

/// Waits for errors in epoll, as clients do. Sends a byte on every other flow at each interval `every`, evenly spread.
fn hold(shared: &Shared, stop: &AtomicBool, sockets: Vec<OwnedFd>, every: Duration) -> Result<Held> {
    const SLICE: Duration = Duration::from_millis(5);
    let epoll = Epoll::new(EpollCreateFlags::empty())?;
    for (at, fd) in sockets.iter().enumerate() {
        epoll.add(fd, EpollEvent::new(EpollFlags::EPOLLIN | EpollFlags::EPOLLET, at as u64))?;
    }
    let mut errors = vec![None; sockets.len()];
    let failed = |errors: &mut Vec<Option<Instant>>, at: usize| {
        if errors[at].is_none() {
            errors[at] = Some(Instant::now());
            shared.errors.fetch_add(1, Ordering::Relaxed);
        }
    };
    while !shared.go.load(Ordering::Relaxed) && !stop.load(Ordering::Relaxed) {
        std::thread::sleep(Duration::from_millis(1));
    }
    let slices = (every.as_millis() / SLICE.as_millis()).max(1) as usize;
    let senders: Vec<usize> = (1..sockets.len()).step_by(2).collect();
    let slice = senders.len().div_ceil(slices).max(1);
    let mut turn = senders.iter().copied().cycle();
    let mut events = vec![EpollEvent::empty(); 1024];
    let mut next = Instant::now();
    while !stop.load(Ordering::Relaxed) {
        let now = Instant::now();
        if now >= next && !senders.is_empty() {
            for at in turn.by_ref().take(slice) {
                if errors[at].is_some() {
                    continue;
                }
                match send(sockets[at].as_raw_fd(), b"x", MsgFlags::MSG_NOSIGNAL) {
                    // A frozen server's window closes after a while. Then the kernel sends window probes.
                    Ok(_) | Err(Errno::EAGAIN | Errno::EINTR) => {}
                    Err(_) => failed(&mut errors, at),
                }
            }
            // A worker that falls behind sends no burst afterwards.
            next = (next + SLICE).max(now);
        }
        let rest = next.saturating_duration_since(Instant::now()).as_millis() as u16;
        let ready = match epoll.wait(&mut events, EpollTimeout::from(rest)) {
            Err(Errno::EINTR) => continue,
            other => other?,
        };
        for event in &events[..ready] {
            // If a send has already returned the error, the hang-up reports the same one, which counts once.
            if event.events().intersects(EpollFlags::EPOLLERR | EpollFlags::EPOLLHUP) {
                failed(&mut errors, event.data() as usize);
            }
        }
    }
    Ok(Held { errors })
}

fn open(from: SocketAddrV4, to: SocketAddrV4) -> Result<OwnedFd> {
    let fd = socket(
        AddressFamily::Inet,
        SockType::Stream,
        SockFlag::SOCK_NONBLOCK | SockFlag::SOCK_CLOEXEC,
        SockProtocol::Tcp,
    )?;
    // The buffers are small, since a hundred thousand sockets send only a byte each.
    setsockopt(&fd, sockopt::SndBuf, &4096)?;
    setsockopt(&fd, sockopt::RcvBuf, &4096)?;
    bind(fd.as_raw_fd(), &SockaddrIn::from(from)).context("cannot bind a client's socket")?;
    match connect(fd.as_raw_fd(), &SockaddrIn::from(to)) {
        Ok(()) | Err(Errno::EINPROGRESS) => Ok(fd),
        Err(error) => Err(error).context("cannot connect to the service"),
    }
}
