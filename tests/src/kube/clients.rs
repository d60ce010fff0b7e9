//! Clients of a Service while a node with endpoints hangs: clients with long-lived connections, and clients with new ones.

use std::{
    fmt::Display,
    net::SocketAddr,
    sync::{
        Mutex, OnceLock, PoisonError,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    thread::sleep,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, ensure};

use super::Beside;
use crate::{
    Conn, Netns, Node, Outcome, Place,
    audit::BOTH,
    client::{FIRST_SYN, wait_until},
    emulated,
    load::{at_intervals, repeat, under},
    tcp_info,
    topology::Service,
    watch::{figure, missed, overdue, stood_still},
};

/// The number of clients with long-lived connections. Half of them use each IP version.
const CLIENTS: usize = 40;
/// The interval between new connections.
const NEW: Duration = Duration::from_millis(100);
/// A client that waits longer than this for an answer waits for the hung node.
const CAUGHT: Duration = Duration::from_millis(150);
/// How long clients run after the flag: longer than until a lost SYN or a lost first segment is sent again.
pub(super) const AFTER: Duration = Duration::from_secs(2);
/// The same for one place of each test: longer than a verdict holds without a renewal.
pub(super) const AFTER_A_RENEWAL: Duration = Duration::from_secs(4);
/// The time limit until all clients are connected.
const SET_UP: Duration = Duration::from_secs(60);
/// The time limit of any other wait.
pub(super) const LIMIT: Duration = Duration::from_secs(8);

/// The pause between two requests of a client. On an emulated processor it is longer, so that the clients alone do not keep that busy.
fn request_pause() -> Duration {
    Duration::from_millis(if emulated() { 200 } else { 25 })
}

/// How long a client may wait after the flag: at most until a lost SYN is sent again.
pub(super) const STALL: Duration = Duration::from_secs(1);

/// The state that all clients share.
struct Watched<'a> {
    ns: &'a Netns,
    /// The address of the Service in each IP version.
    to: [SocketAddr; 2],
    flagged: OnceLock<Instant>,
    /// How many clients with long-lived connections have had an answer.
    served: AtomicUsize,
    /// Requests without an answer yet: the destination, whether the connection is new, and the start.
    waiting: Mutex<Vec<(SocketAddr, bool, Instant)>>,
}

/// A client's wait, and how long the machine stood still during it.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Wait {
    pub(super) took: Duration,
    still: Duration,
}

impl Wait {
    pub(super) fn since(begun: Instant) -> Self {
        Self { took: begun.elapsed(), still: stood_still(begun) }
    }

    /// The longer of two waits.
    pub(super) fn max(self, other: Self) -> Self {
        if other.own() > self.own() { other } else { self }
    }

    /// Records the wait as a figure, and checks it against [`STALL`].
    ///
    /// # Errors
    /// Fails if the wait was longer than [`STALL`].
    pub(super) fn held(self, what: &str) -> Result<Self> {
        figure(what, self.took.as_secs_f64() * 1e3, "ms");
        self.bounded(what)
    }

    /// Checks the wait against [`STALL`].
    ///
    /// # Errors
    /// Fails if the wait was longer than [`STALL`].
    pub(super) fn bounded(self, what: impl Display) -> Result<Self> {
        if self.own() <= STALL { Ok(self) } else { Err(overdue(STALL, format!("{what}: {self:?}"))) }
    }

    /// The wait without the machine's standstill.
    pub(super) fn own(self) -> Duration {
        self.took.saturating_sub(self.still)
    }
}

/// The result of one new connection and one request on it.
struct New {
    to: SocketAddr,
    begun: Instant,
    wait: Wait,
    outcome: Outcome,
    who: String,
    /// How many segments were sent again until it was connected.
    again: u32,
}

/// A request without an answer yet. It is removed from the list when this is dropped.
struct Asks<'a> {
    waiting: &'a Mutex<Vec<(SocketAddr, bool, Instant)>>,
    since: (SocketAddr, bool, Instant),
}

impl Drop for Asks<'_> {
    fn drop(&mut self) {
        let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(at) = waiting.iter().position(|one| *one == self.since) {
            waiting.swap_remove(at);
        }
    }
}

impl Watched<'_> {
    /// Runs a client with a long-lived connection. After a reset the client makes a new connection at once and sends its request again. Returns the longest
    /// wait for an answer after the flag, and how often the client was reset.
    fn keeps_alive(&self, to: SocketAddr, stop: &AtomicBool) -> Result<(Wait, u32)> {
        let mut conn = Conn::connect(self.ns, to, LIMIT)?;
        let mut longest = Wait::default();
        let mut resets = 0;
        conn.who()?;
        self.served.fetch_add(1, Ordering::Relaxed);
        repeat(stop, || {
            let begun = Instant::now();
            let _asks = self.asks(to, false);
            while let Err(error) = conn.who() {
                ensure!(Outcome::of(&error) == Outcome::Reset, "a request ended with {error}");
                resets += 1;
                ensure!(resets == 1, "a client was reset once more on its new connection");
                conn = Conn::connect(self.ns, to, LIMIT).context("connect again")?;
            }
            if let Some(flagged) = self.flagged.get() {
                let wait = Wait::since(begun.max(*flagged));
                longest = longest.max(wait);
            }
            Ok(request_pause())
        })?;
        Ok((longest, resets))
    }

    fn new_connection(&self, to: SocketAddr) -> New {
        let begun = Instant::now();
        let _asks = self.asks(to, true);
        let mut again = 0;
        let result = Conn::connect(self.ns, to, LIMIT).and_then(|mut conn| {
            again = tcp_info::retransmitted(&conn.stream)?;
            conn.who()
        });
        let wait = Wait::since(begun);
        let outcome = result.as_ref().map_or_else(Outcome::of, |_| Outcome::Answered);
        New { to, begun, wait, outcome, who: result.unwrap_or_default(), again }
    }

    /// Lists a request as one without an answer, until the result is dropped.
    fn asks(&self, to: SocketAddr, new: bool) -> Asks<'_> {
        let since = (to, new, Instant::now());
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner).push(since);
        Asks { waiting: &self.waiting, since }
    }

    /// Whether clients of each IP version wait for the hung node, on new and on long-lived connections.
    fn caught(&self) -> bool {
        let waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        let waits = |to: SocketAddr, new: bool| {
            waiting.iter().any(|one| (one.0, one.1) == (to, new) && one.2.elapsed() > CAUGHT)
        };
        self.to.into_iter().all(|to| waits(to, true) && waits(to, false))
    }

    /// Makes new connections, to both addresses of the Service in turn.
    fn new_connections(&self, stop: &AtomicBool) -> Result<Vec<New>> {
        at_intervals(stop, NEW, |number| self.new_connection(self.to[number % self.to.len()]))
    }
}

/// Runs clients at `place`, hangs a node, and checks the clients' outcomes. `live` is the other node with endpoints. `flag` flags the hung node, and returns
/// the time from which the flag was in force. The clients run for `after` from then on.
pub(super) fn hangs(
    beside: &Beside,
    place: Place,
    hung: &Node,
    live: &Node,
    after: Duration,
    flag: impl Fn() -> Result<Instant>,
) -> Result<()> {
    let cluster = &beside.cluster;
    let watched = Watched {
        ns: cluster.at(place),
        to: BOTH.map(|family| cluster.service(Service::Web, place, family)),
        flagged: OnceLock::new(),
        served: AtomicUsize::new(0),
        waiting: Mutex::default(),
    };
    let hang = || -> Result<Instant> {
        wait_until("each client has had an answer", SET_UP, || {
            watched.served.load(Ordering::Relaxed) == CLIENTS
        })?;
        hung.freeze()?;
        wait_until("clients wait for the node that hangs", LIMIT, || watched.caught())?;
        watched.flagged.get_or_init(Instant::now);
        let flagged = flag()?;
        sleep(after);
        Ok(flagged)
    };
    let watched = &watched;
    let keeping = watched.to.into_iter().cycle().take(CLIENTS);
    let keeping = keeping.map(|to| move |stop: &AtomicBool| watched.keeps_alive(to, stop));
    let new = |stop: &AtomicBool| watched.new_connections(stop);
    let ((flagged, new), clients) = under(keeping, || under([new], hang));
    let mut longest = Wait::default();
    let mut resets = [0; 2];
    for (at, client) in clients.into_iter().enumerate() {
        let (wait, reset) = client.with_context(|| format!("client {at} of {:?}", watched.to[at % 2]))?;
        longest = longest.max(wait);
        resets[at % 2] += reset;
    }
    let flagged = flagged?;
    let new: Vec<New> = new.into_iter().collect::<Result<Vec<_>>>()?.into_iter().flatten().collect();
    let (after, before): (Vec<&New>, Vec<&New>) = new.iter().partition(|one| one.begun >= flagged);
    let slowest = after.iter().map(|one| one.wait.took).max().unwrap_or_default();
    figure("slowest new connection after the flag", slowest.as_secs_f64() * 1e3, "ms");
    println!(
        "{}, {place:?}, {} hangs: {resets:?} of {CLIENTS} clients reset, {longest:?} after the flag at most; {} new connections after it, the slowest \
         took {slowest:?}",
        beside.proxy.mode,
        hung.name,
        after.len()
    );
    longest.held("longest wait of a client after the flag")?;
    // Of the twenty clients of each IP version ten are connected to the hung node on average, with a standard deviation of two.
    ensure!(
        resets.iter().all(|resets| *resets >= 2),
        "{resets:?} clients were reset: {} was not picked",
        hung.name
    );
    for one in before {
        let seen = one.outcome == Outcome::Answered || one.outcome == Outcome::Reset;
        ensure!(seen, "{} before the flag", one.text(flagged));
        if one.begun + one.wait.own() > flagged + STALL {
            return Err(overdue(STALL, format!("{} before the flag", one.text(flagged))));
        }
    }
    for to in watched.to {
        let count = after.iter().filter(|one| one.to == to).count();
        ensure!(count >= 5, "{count} new connections to {to}");
    }
    for one in after {
        let sound = one.outcome == Outcome::Answered && one.who == live.name;
        ensure!(sound, "{}", one.text(flagged));
        if one.again > 0 && one.wait.took >= FIRST_SYN {
            return Err(missed(FIRST_SYN, one.text(flagged)));
        }
        one.wait.bounded(one.text(flagged))?;
    }
    Ok(())
}

impl New {
    fn text(&self, flagged: Instant) -> String {
        let Self { to, begun, wait, outcome, who, again } = self;
        let early = flagged.saturating_duration_since(*begun);
        let late = begun.saturating_duration_since(flagged);
        format!(
            "new connection to {to} {late:?} after the flag ({early:?} before): {outcome:?} by `{who}`, {wait:?}, {again} segments again"
        )
    }
}
