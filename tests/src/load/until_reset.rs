//! Sends on one TCP connection all the time, and records the time of its reset.

use std::{
    io::{ErrorKind, Write as _},
    net::TcpStream,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
        mpsc::{Receiver, RecvTimeoutError, channel},
    },
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, bail};
use nodefence::flags::monotonic_ns;

use super::Running;

/// A request that a `nodefence-peer` takes and never answers.
const BYTE: &[u8] = b"p";
/// The sender sleeps between sends from this pace on. For a shorter pace it spins, since a sleep is coarser.
const SLEEP_FROM: Duration = Duration::from_millis(1);

/// The reset of a connection.
#[derive(Clone, Copy, Debug)]
pub struct Reset {
    /// When the reset was seen, as CLOCK_MONOTONIC in nanoseconds. The agent uses the same clock.
    pub at: u64,
    /// The longest delay of a send, which shows how long the thread got no processor.
    pub still: Duration,
}

/// A connection that sends bytes at a fixed pace, until this is dropped.
#[derive(Debug)]
pub struct Sending {
    sent: Arc<AtomicU64>,
    reset: Receiver<Result<Reset>>,
    running: Running<()>,
}

impl Sending {
    /// Starts to send a byte each `pace`. With less than a millisecond the sender takes a whole processor. The sending thread calls `prepare` first.
    ///
    /// # Errors
    /// Fails if the socket's options cannot be set.
    pub fn start(
        stream: TcpStream,
        pace: Duration,
        prepare: impl FnOnce() -> Result<()> + Send + 'static,
    ) -> Result<Self> {
        stream.set_nodelay(true)?;
        stream.set_nonblocking(true)?;
        let (tell, reset) = channel();
        let sent = Arc::new(AtomicU64::new(0));
        let count = Arc::clone(&sent);
        let mut running = Running::default();
        running.start(move |stop| {
            let ended = prepare().and_then(|()| send(stream, pace, &count, stop));
            if let Some(ended) = ended.transpose() {
                // An error is ignored: the receiver may have given up.
                let _nobody_waits = tell.send(ended);
            }
            Ok(())
        });
        Ok(Self { sent, reset, running })
    }

    /// The number of bytes that the kernel has accepted.
    pub fn sent(&self) -> u64 {
        self.sent.load(Ordering::Relaxed)
    }

    /// Waits for the reset. `None` means that no reset came within `patience`.
    ///
    /// # Errors
    /// Fails if the connection ended otherwise.
    pub fn wait(&self, patience: Duration) -> Result<Option<Reset>> {
        match self.reset.recv_timeout(patience) {
            Ok(reset) => reset.map(Some),
            Err(RecvTimeoutError::Timeout) => Ok(None),
            Err(RecvTimeoutError::Disconnected) => bail!("the connection ended without a RST"),
        }
    }

    /// Ends the connection.
    ///
    /// # Errors
    /// Fails if the sending thread panicked.
    pub fn finish(self) -> Result<()> {
        self.running.finish().map(drop)
    }
}

/// Sends until the reset. `None` means that the thread was told to stop before a reset.
fn send(mut stream: TcpStream, pace: Duration, sent: &AtomicU64, stop: &AtomicBool) -> Result<Option<Reset>> {
    let mut next = Instant::now();
    let mut still = Duration::ZERO;
    while !stop.load(Ordering::Relaxed) {
        // The write after a RST returns the error (`tcp_reset`, net/ipv4/tcp_input.c).
        match stream.write(BYTE) {
            Ok(_) => {
                sent.fetch_add(1, Ordering::Relaxed);
            }
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => {}
            Err(error) if error.kind() == ErrorKind::ConnectionReset => {
                return Ok(Some(Reset { at: monotonic_ns(), still }));
            }
            Err(error) => return Err(error).context("the connection was not reset, but ended"),
        }
        let now = Instant::now();
        still = still.max(now.saturating_duration_since(next));
        next = (next + pace).max(now);
        if pace >= SLEEP_FROM {
            std::thread::sleep(next.saturating_duration_since(Instant::now()));
        }
        while Instant::now() < next {
            std::hint::spin_loop();
        }
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, TcpListener};

    use super::*;

    fn pair() -> (TcpStream, TcpStream) {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a listener");
        let client = TcpStream::connect(listener.local_addr().expect("an address")).expect("connected");
        (client, listener.accept().expect("accepted").0)
    }

    #[test]
    fn a_reset_is_told_and_so_is_another_end() {
        let pace = Duration::from_millis(1);
        let (client, server) = pair();
        let sending = Sending::start(client, pace, || Ok(())).expect("started");
        assert!(sending.wait(Duration::from_millis(20)).expect("goes on").is_none());
        assert!(sending.sent() > 0);
        let before = monotonic_ns();
        // A close with unread data sends a RST (`tcp_close`, net/ipv4/tcp.c).
        drop(server);
        let reset = sending.wait(Duration::from_secs(10)).expect("an end").expect("a reset");
        assert!(reset.at > before);
        sending.finish().expect("ended");

        let (client, _server) = pair();
        client.shutdown(std::net::Shutdown::Write).expect("shut down");
        let sending = Sending::start(client, pace, || Ok(())).expect("started");
        let told = sending.wait(Duration::from_secs(10)).expect_err("no reset").to_string();
        assert_eq!(told, "the connection was not reset, but ended");
    }
}
