//! The clients of (d): each a socket of its own, half of them idle in epoll, half sending.
use std::{
    net::SocketAddrV4,
    os::fd::{AsRawFd as _, OwnedFd},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU32, Ordering},
        mpsc,
    },
    thread::JoinHandle,
    time::{Duration, Instant},
};

use anyhow::{Context as _, bail, ensure};
use nix::{
    errno::Errno,
    sched::{CloneFlags, unshare},
    sys::{
        epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout},
        resource::{Resource, getrlimit, setrlimit},
        socket::{
            AddressFamily, MsgFlags, SockFlag, SockProtocol, SockType, SockaddrIn, bind, connect, getsockopt,
            send, setsockopt, socket, sockopt,
        },
    },
};

use nodefence_tests::Netns;

use super::{SERVICE, SERVICE_PORT, Sizes};

/// Handshakes of one worker under way at a time.
const IN_FLIGHT: usize = 128;
/// How long all handshakes may take together.
const PATIENCE: Duration = Duration::from_secs(60);
/// First source port in use.
const FIRST_PORT: u16 = 2_000;
/// Source ports of one client address that are in use.
pub(super) const PER_ADDRESS: u32 = 25_000;
/// Descriptors that are left to everything but flows.
const SPARE_FILES: u64 = 400;

/// How many flows one worker (a thread with a table of files of its own) can hold. A process may not be allowed to
/// raise its limit of open files (CAP_SYS_RESOURCE), but the limit holds for each table.
pub(crate) fn per_worker() -> anyhow::Result<usize> {
    let (soft, hard) = getrlimit(Resource::RLIMIT_NOFILE)?;
    let wanted = hard.max(65_536 + SPARE_FILES);
    let limit = if setrlimit(Resource::RLIMIT_NOFILE, wanted, wanted).is_ok() {
        wanted
    } else if setrlimit(Resource::RLIMIT_NOFILE, hard, hard).is_ok() {
        hard
    } else {
        soft
    };
    ensure!(
        limit > 2 * SPARE_FILES,
        "the limit of open files ({limit}) leaves no room for flows: raise it (ulimit -n)"
    );
    Ok((limit - SPARE_FILES).min(65_536) as usize)
}

/// Gives the calling thread a table of files of its own.
pub(crate) fn own_files() -> anyhow::Result<()> {
    unshare(CloneFlags::CLONE_FILES).context("cannot give a worker its own table of files")
}

/// Flows that are held by workers.
pub(super) struct Flows {
    shared: Arc<Shared>,
    total: usize,
    workers: Vec<JoinHandle<anyhow::Result<Held>>>,
}

struct Shared {
    go: AtomicBool,
    stop: AtomicBool,
    errors: AtomicU32,
}

/// When all flows had their errors. Pairs are of idle and of sending flows.
#[derive(Default)]
pub(super) struct Errors {
    /// Seconds to each error, in order.
    pub(super) seconds: Vec<f64>,
    /// Seconds to the last error.
    pub(super) last: [f64; 2],
    /// Flows without one.
    pub(super) left: [u32; 2],
}

/// What one worker saw: when each flow had its error. Even flows are idle, odd ones send.
struct Held {
    errors: Vec<Option<Instant>>,
}

impl Flows {
    /// Connects all of them to the service.
    pub(super) fn establish(netns: &Netns, sizes: &Sizes) -> anyhow::Result<Self> {
        let each = per_worker()? & !1;
        let total = sizes.flows as usize;
        let shared = Arc::new(Shared {
            go: AtomicBool::new(false),
            stop: AtomicBool::new(false),
            errors: AtomicU32::new(0),
        });
        let (up, ready) = mpsc::channel();
        let mut workers = Vec::new();
        for first in (0..total).step_by(each) {
            let range = first..total.min(first + each);
            let (shared, up, every) = (Arc::clone(&shared), up.clone(), sizes.every);
            workers.push(netns.spawn(move || {
                own_files()?;
                let sockets = connect_all(range);
                // The receiver waits for every worker; it is gone only if another one failed.
                let _ = up.send(sockets.is_ok());
                hold(&shared, sockets?, every)
            })?);
        }
        drop(up);
        let all_up = (0..workers.len()).all(|_| ready.recv().unwrap_or(false));
        let flows = Self { shared, total, workers };
        if !all_up {
            flows.end()?;
            bail!("the flows did not come up");
        }
        Ok(flows)
    }

    /// Starts the sending half.
    pub(super) fn go(&self) {
        self.shared.go.store(true, Ordering::Relaxed);
    }

    /// Waits until all have an error or `cap` has passed since `started`.
    pub(super) fn wait(self, started: Instant, cap: Duration) -> anyhow::Result<Errors> {
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

    fn end(self) -> anyhow::Result<Vec<Held>> {
        self.shared.stop.store(true, Ordering::Relaxed);
        self.shared.go.store(true, Ordering::Relaxed);
        self.workers
            .into_iter()
            .map(|worker| worker.join().map_err(|_| anyhow::anyhow!("a worker of the clients panicked"))?)
            .collect()
    }
}

fn connect_all(range: std::ops::Range<usize>) -> anyhow::Result<Vec<OwnedFd>> {
    let epoll = Epoll::new(EpollCreateFlags::empty())?;
    let mut sockets: Vec<OwnedFd> = Vec::with_capacity(range.len());
    let mut in_flight = 0;
    let started = Instant::now();
    let mut events = vec![EpollEvent::empty(); IN_FLIGHT];
    while sockets.len() < range.len() || in_flight > 0 {
        while sockets.len() < range.len() && in_flight < IN_FLIGHT {
            let at = sockets.len();
            let fd = open(u32::try_from(range.start + at)?)?;
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

/// Waits as clients do, an error wakes them, and sends a byte on every other flow each `every`, evenly spread.
fn hold(shared: &Shared, sockets: Vec<OwnedFd>, every: Duration) -> anyhow::Result<Held> {
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
    while !shared.go.load(Ordering::Relaxed) {
        std::thread::sleep(Duration::from_millis(1));
    }
    let slices = (every.as_millis() / SLICE.as_millis()).max(1) as usize;
    let senders: Vec<usize> = (1..sockets.len()).step_by(2).collect();
    let slice = senders.len().div_ceil(slices).max(1);
    let mut turn = senders.iter().copied().cycle();
    let mut events = vec![EpollEvent::empty(); 1024];
    let mut next = Instant::now();
    while !shared.stop.load(Ordering::Relaxed) {
        let now = Instant::now();
        if now >= next && !senders.is_empty() {
            for at in turn.by_ref().take(slice) {
                if errors[at].is_some() {
                    continue;
                }
                match send(sockets[at].as_raw_fd(), b"x", MsgFlags::MSG_NOSIGNAL) {
                    // A frozen server's window closes after a while; the kernel probes it then.
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
            // Where the sender took the error already, that it hung up says the same.
            if event.events().intersects(EpollFlags::EPOLLERR | EpollFlags::EPOLLHUP) {
                failed(&mut errors, event.data() as usize);
            }
        }
    }
    Ok(Held { errors })
}

fn open(index: u32) -> anyhow::Result<OwnedFd> {
    let fd = socket(
        AddressFamily::Inet,
        SockType::Stream,
        SockFlag::SOCK_NONBLOCK | SockFlag::SOCK_CLOEXEC,
        SockProtocol::Tcp,
    )?;
    // Small buffers: a hundred thousand sockets send a byte each.
    setsockopt(&fd, sockopt::SndBuf, &4096)?;
    setsockopt(&fd, sockopt::RcvBuf, &4096)?;
    let port = FIRST_PORT + u16::try_from(index % PER_ADDRESS)?;
    let host = u8::try_from(10 + index / PER_ADDRESS)?;
    bind(fd.as_raw_fd(), &SockaddrIn::new(192, 168, 1, host, port))
        .context("cannot bind a client's socket")?;
    let service: SocketAddrV4 = format!("{SERVICE}:{SERVICE_PORT}").parse()?;
    match connect(fd.as_raw_fd(), &SockaddrIn::from(service)) {
        Ok(()) | Err(Errno::EINPROGRESS) => Ok(fd),
        Err(error) => Err(error).context("cannot connect to the service"),
    }
}
