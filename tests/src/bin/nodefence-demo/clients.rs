//! The clients. Each client runs in a thread of its own and records each of its requests.

use std::{
    io::{ErrorKind, Read as _, Write as _},
    net::SocketAddr,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use anyhow::Result;
use nodefence_tests::{
    Conn, Netns, Outcome,
    client::{UdpConn, try_new},
    load::{Running, at_intervals, repeat},
};

use crate::{
    live::Live,
    request::{End, Kind, Request},
};

/// The pause of a client between two requests.
const THINK: Duration = Duration::from_millis(40);
/// The pause between two new connections.
const NEW: Duration = Duration::from_millis(25);
/// A client gives up a new connection after this time, as a person does.
const GIVE_UP: Duration = Duration::from_secs(2);
/// How often a waiting client checks whether the run is over.
const TICK: Duration = Duration::from_millis(50);

/// The shared state of all clients of a run.
#[derive(Debug, Default)]
pub(crate) struct Shared {
    /// All requests so far.
    pub(crate) notes: Mutex<Vec<Note>>,
    /// Counters for the progress on the terminal.
    pub(crate) live: Live,
}

/// One request, with absolute times.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Note {
    client: usize,
    kind: Kind,
    start: Instant,
    end: Instant,
    how: End,
}

impl Note {
    /// The request with times relative to `zero`, in milliseconds.
    pub(crate) fn request(&self, zero: Instant) -> Request {
        let ms = |at: Instant| match at.checked_duration_since(zero) {
            Some(after) => after.as_secs_f64() * 1e3,
            None => -(zero - at).as_secs_f64() * 1e3,
        };
        Request {
            client: self.client,
            kind: self.kind,
            start: ms(self.start),
            end: ms(self.end),
            how: self.how,
        }
    }
}

impl Shared {
    /// Counts a request that begins now. Returns the time.
    fn begin(&self) -> Instant {
        self.live.begin();
        Instant::now()
    }

    /// Records the end of a request that was counted by [`Shared::begin`].
    fn note(&self, client: usize, kind: Kind, start: Instant, how: End) {
        self.live.end(how);
        self.record(client, kind, start, how);
    }

    /// Records a request without counting it.
    fn record(&self, client: usize, kind: Kind, start: Instant, how: End) {
        if let Ok(mut notes) = self.notes.lock() {
            notes.push(Note { client, kind, start, end: Instant::now(), how });
        }
    }
}

/// A client in a namespace that uses a Service.
#[derive(Clone, Debug)]
pub(crate) struct Client {
    pub(crate) id: usize,
    pub(crate) ns: Arc<Netns>,
    pub(crate) to: SocketAddr,
    pub(crate) shared: Arc<Shared>,
}

impl Client {
    /// Sends requests on one TCP connection. When the connection breaks, the client makes the next one at once.
    pub(crate) fn keep_alive(self, clients: &mut Running<()>, conn: Conn) {
        clients.start(move |over| {
            let mut current = Some(conn);
            repeat(over, || {
                let start = self.shared.begin();
                let Some(conn) = &mut current else {
                    match Conn::connect(&self.ns, self.to, GIVE_UP) {
                        Ok(next) => {
                            self.shared.live.cancel();
                            current = Some(next);
                            return Ok(Duration::ZERO);
                        }
                        // A refused reconnect counts as a request. The client tries again after a pause.
                        Err(error) => {
                            self.shared.note(self.id, Kind::KeepAlive, start, end(Outcome::of(&error)));
                            return Ok(THINK);
                        }
                    }
                };
                let how = ask(conn, over);
                self.shared.note(self.id, Kind::KeepAlive, start, how);
                if how == End::Answered {
                    return Ok(THINK);
                }
                current = None;
                Ok(Duration::ZERO)
            })
            .map(drop)
        });
    }

    /// Sends requests from one UDP socket, and so in one flow, as a SIP phone or a metrics sender does. After an error the client makes the next socket.
    pub(crate) fn udp(self, clients: &mut Running<()>, mut conn: UdpConn) {
        clients.start(move |over| {
            repeat(over, || {
                let start = self.shared.begin();
                let how = ask_udp(&conn, over);
                self.shared.note(self.id, Kind::Udp, start, how);
                if matches!(how, End::Refused | End::Other)
                    && let Ok(next) = UdpConn::connect(&self.ns, self.to, TICK)
                {
                    conn = next;
                }
                Ok(THINK)
            })
            .map(drop)
        });
    }

    /// Opens a new connection for one request at each interval [`NEW`].
    pub(crate) fn new_connections(self, clients: &mut Running<()>) {
        clients.start(move |over| {
            let connect = |_| {
                let start = self.shared.begin();
                let (outcome, _) = try_new(&self.ns, self.to, GIVE_UP);
                self.shared.note(self.id, Kind::New, start, end(outcome));
            };
            at_intervals(over, NEW, connect).map(drop)
        });
    }

    /// Waits in a long poll and sends nothing.
    pub(crate) fn idle(self, clients: &mut Running<()>, mut conn: Conn) {
        clients.start(move |over| {
            let start = Instant::now();
            let mut how = End::Waiting;
            while how == End::Waiting && !over.load(Ordering::Relaxed) {
                how = match conn.wait_end(TICK) {
                    Outcome::TimedOut => End::Waiting,
                    outcome => end(outcome),
                };
            }
            self.shared.record(self.id, Kind::Idle, start, how);
            Ok(())
        });
    }
}

fn ask(conn: &mut Conn, over: &AtomicBool) -> End {
    let waited = (|| -> Result<End, std::io::Error> {
        conn.limit(Some(TICK))?;
        conn.stream.write_all(b"w")?;
        let mut byte = [0];
        while byte[0] != b'\n' {
            match conn.stream.read(&mut byte) {
                Ok(0) => return Ok(End::Other),
                Ok(_) => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock && !over.load(Ordering::Relaxed) => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(End::Waiting),
                Err(error) => return Err(error),
            }
        }
        Ok(End::Answered)
    })();
    waited.unwrap_or_else(|error| end(Outcome::of(&error)))
}

fn ask_udp(conn: &UdpConn, over: &AtomicBool) -> End {
    let start = Instant::now();
    if let Err(error) = conn.socket.send(b"who") {
        return end(Outcome::of(&error));
    }
    let mut buffer = [0; 64];
    while start.elapsed() < GIVE_UP {
        match conn.socket.recv(&mut buffer) {
            Ok(_) => return End::Answered,
            Err(error) if error.kind() == ErrorKind::WouldBlock && over.load(Ordering::Relaxed) => {
                return End::Waiting;
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            Err(error) => return end(Outcome::of(&error)),
        }
    }
    End::GaveUp
}

fn end(outcome: Outcome) -> End {
    match outcome {
        Outcome::Answered => End::Answered,
        Outcome::Reset => End::Reset,
        Outcome::Refused => End::Refused,
        Outcome::TimedOut => End::GaveUp,
        Outcome::Other => End::Other,
    }
}
