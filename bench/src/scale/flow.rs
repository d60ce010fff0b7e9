//! One TCP connection that sends and sends, and when it is reset.
use std::{
    io::{ErrorKind, Read as _, Write as _},
    net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
        mpsc::{Receiver, RecvTimeoutError, channel},
    },
    thread::JoinHandle,
    time::{Duration, Instant},
};

use anyhow::{Context as _, bail};
use nodefence::flags::monotonic_ns;
use nodefence_tests::Netns;

use super::view::PORT;
use crate::cpus;

/// It sends a byte each so long: what a latency can be told to.
pub(super) const PACE: Duration = Duration::from_micros(20);
/// How long a connection may take to be made.
const PATIENCE: Duration = Duration::from_secs(10);
/// How long a server's connection that nothing comes by is kept. Its client was reset, and nobody told it.
const SILENCE: Duration = Duration::from_secs(30);
/// How often a server takes what has come: who wakes for each byte takes the processor from the agent.
const TAKE: Duration = Duration::from_millis(2);

/// A server of all addresses of a namespace; it takes what comes and says nothing.
pub(super) fn serve(netns: &Netns) -> anyhow::Result<()> {
    let listener = netns.run(|| TcpListener::bind((Ipv4Addr::UNSPECIFIED, PORT)))?;
    // It goes with the process.
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            std::thread::spawn(move || take(stream));
        }
    });
    Ok(())
}

fn take(mut stream: TcpStream) {
    let mut buffer = vec![0; 256 * 1024];
    if stream.set_read_timeout(Some(SILENCE)).is_err() {
        return;
    }
    while stream.read(&mut buffer).is_ok_and(|length| length > 0) {
        std::thread::sleep(TAKE);
    }
}

/// The end of a flow.
#[derive(Clone, Copy, Debug)]
pub(super) struct Reset {
    /// When it was seen: CLOCK_MONOTONIC, in ns.
    pub(super) at: u64,
    /// The longest time between two sends, in microseconds: how long the machine kept the flow from a processor.
    pub(super) still: f64,
}

/// The connection. It ends when it is dropped.
pub(super) struct Flow {
    stop: Arc<AtomicBool>,
    reset: Receiver<anyhow::Result<Reset>>,
    thread: Option<JoinHandle<()>>,
}

impl Flow {
    /// Connects from a namespace, and sends on a processor of its own.
    pub(super) fn start(netns: &Netns, to: Ipv4Addr, cpu: usize) -> anyhow::Result<Self> {
        let address = SocketAddr::from((to, PORT));
        let stream = netns
            .run(move || TcpStream::connect_timeout(&address, PATIENCE))
            .with_context(|| format!("connect to {address}"))?;
        stream.set_nodelay(true)?;
        stream.set_nonblocking(true)?;
        let stop = Arc::new(AtomicBool::new(false));
        let told = Arc::clone(&stop);
        let (tell, reset) = channel();
        let thread = std::thread::spawn(move || {
            let ended = cpus::stay_on(&[cpu]).and_then(|()| send(stream, &told));
            if let Some(ended) = ended.transpose() {
                // Whoever asked may have given up.
                let _ = tell.send(ended);
            }
        });
        Ok(Self { stop, reset, thread: Some(thread) })
    }

    /// Waits until it is reset; `None` where it was not within `patience`.
    pub(super) fn wait(&self, patience: Duration) -> anyhow::Result<Option<Reset>> {
        match self.reset.recv_timeout(patience) {
            Ok(reset) => reset.map(Some),
            Err(RecvTimeoutError::Timeout) => Ok(None),
            Err(RecvTimeoutError::Disconnected) => bail!("the flow ended without a RST"),
        }
    }
}

impl Drop for Flow {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// `None` where it was told to stop before it was reset.
fn send(mut stream: TcpStream, stop: &AtomicBool) -> anyhow::Result<Option<Reset>> {
    let mut next = Instant::now();
    let mut still = Duration::ZERO;
    while !stop.load(Ordering::Relaxed) {
        // A RST that has come is the error of the next write (tcp_reset, net/ipv4/tcp_input.c).
        match stream.write(&[0]) {
            Ok(_) => {}
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => {}
            Err(error) if error.kind() == ErrorKind::ConnectionReset => {
                return Ok(Some(Reset { at: monotonic_ns(), still: still.as_secs_f64() * 1e6 }));
            }
            Err(error) => return Err(error).context("the flow was not reset, but ended"),
        }
        // A spinning wait: a sleep is coarser than the pace.
        let now = Instant::now();
        still = still.max(now.saturating_duration_since(next));
        next = (next + PACE).max(now);
        while Instant::now() < next {
            std::hint::spin_loop();
        }
    }
    Ok(None)
}
