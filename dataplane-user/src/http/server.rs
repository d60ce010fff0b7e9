//! The TCP port: it is bound as soon as it is free, and its clients cannot hold up the agent or each other for long.

use std::{
    collections::VecDeque,
    convert::Infallible,
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use axum::Router;
use futures::future::BoxFuture;
use hyper::{Request, body::Incoming, server::conn::http1, service::service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::{
    net::{TcpListener, TcpStream},
    sync::{OwnedSemaphorePermit, Semaphore, watch},
    time::{Instant, sleep, timeout},
};
use tokio_util::sync::CancellationToken;
use tower::ServiceExt as _;

use super::{
    cache::{Cache, Facts},
    routes::routes,
};

/// How many connections there are at once. Where one more comes, the oldest one that has not sent its request is closed. Where all have sent
/// one, the new one waits.
const CONNECTIONS: usize = 32;
/// How long a connection may take to send its request.
const PATIENCE: Duration = Duration::from_secs(5);
/// How long a connection may take from its first byte to the last one of the answer. A client that reads slowly is closed then.
const WHOLE: Duration = Duration::from_secs(10);
/// The longest request, in bytes. Hyper answers a longer one with 431.
const LONGEST: usize = 16 << 10;
/// How long a connection is spared that has not sent its request: a client that has just connected is about to.
const SPARED: Duration = Duration::from_millis(250);
/// How often to look for a connection that may be closed, where all connections are taken.
const LOOK_AGAIN: Duration = Duration::from_millis(20);
/// How long to wait before the next try to listen, where another agent has the port.
const TRY_AGAIN: Duration = Duration::from_secs(1);
/// How long to wait after the kernel did not accept a connection.
const ACCEPT_AGAIN: Duration = Duration::from_millis(100);

/// Serves on this address until the future is dropped.
///
/// While `open` is false the port is closed. If the sender of `open` is gone, its last value holds. `begin` has the talk with one client go on
/// beside all others. A talk ends by itself, and goes on after this future is dropped.
pub async fn serve<F: Facts>(
    address: SocketAddr,
    facts: Arc<F>,
    open: watch::Receiver<bool>,
    begin: impl Fn(BoxFuture<'static, ()>),
) {
    let (cache, asked) = Cache::new(CONNECTIONS);
    let router = routes(Arc::clone(&facts), cache);
    tokio::select! {
        () = asked.answer(&*facts) => {}
        () = listen(address, &router, open, begin) => {}
    }
}

/// Opens the port when it is to be open, and closes it when it is not.
async fn listen(
    address: SocketAddr,
    router: &Router,
    mut open: watch::Receiver<bool>,
    begin: impl Fn(BoxFuture<'static, ()>),
) {
    let mut talks = Talks::default();
    loop {
        until(&mut open, true).await;
        let serving = async {
            let listener = bind(address).await;
            accept(&listener, router, &mut talks, &begin).await;
        };
        tokio::select! {
            () = serving => {}
            () = until(&mut open, false) => {
                tracing::info!(event = "http-closed", %address, "the HTTP port is closed");
            }
        }
    }
}

/// Returns once the port is to be open, or closed.
async fn until(open: &mut watch::Receiver<bool>, wanted: bool) {
    if open.wait_for(|open| *open == wanted).await.is_err() {
        // The sender is gone, and the last value was another one.
        std::future::pending::<()>().await;
    }
}

/// Listens as soon as the port is free. Another agent may have the port for a while: one that ends, or one that this agent replaces.
async fn bind(address: SocketAddr) -> TcpListener {
    let mut told = None;
    loop {
        match TcpListener::bind(address).await {
            Ok(listener) => {
                let address = listener.local_addr().unwrap_or(address);
                tracing::info!(event = "http-listens", %address, "the HTTP port is open");
                return listener;
            }
            Err(error) => {
                // One line for each reason, not one for each try.
                if told.replace(error.kind()) != Some(error.kind()) {
                    tracing::warn!(event = "http-not-bound", %address, %error, "the HTTP port cannot be opened; the agent tries again each second");
                }
            }
        }
        sleep(TRY_AGAIN).await;
    }
}

async fn accept(
    listener: &TcpListener,
    router: &Router,
    talks: &mut Talks,
    begin: &impl Fn(BoxFuture<'static, ()>),
) {
    loop {
        match listener.accept().await {
            Ok((stream, _)) => {
                let place = talks.place().await;
                begin(Box::pin(talk(stream, router.clone(), talks.enter(), place)));
            }
            Err(error) => {
                tracing::warn!(event = "accept-failed", %error, "the HTTP port did not accept a client");
                sleep(ACCEPT_AGAIN).await;
            }
        }
    }
}

/// A talk with a client: one request, and its answer.
async fn talk(stream: TcpStream, router: Router, waiting: Waiting, _place: OwnedSemaphorePermit) {
    let Waiting { asked, away, .. } = waiting;
    let answer = service_fn(|request: Request<Incoming>| {
        asked.store(true, Ordering::Relaxed);
        let answer = router.clone().oneshot(request);
        async { Ok::<_, Infallible>(answer.await.unwrap_or_else(|never| match never {})) }
    });
    let talk = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(PATIENCE)
        // One request for each connection: no client keeps a place.
        .keep_alive(false)
        .max_buf_size(LONGEST)
        .serve_connection(TokioIo::new(stream), answer);
    tokio::select! {
        () = away.cancelled() => {}
        ended = timeout(WHOLE, talk) => {
            if let Ok(Err(error)) = ended {
                tracing::debug!(event = "client-gone", %error, "a client of the HTTP port went away");
            }
        }
    }
    // Nobody needs to look at this one any more.
    asked.store(true, Ordering::Relaxed);
}

/// A connection that may not have sent its request yet.
#[derive(Clone)]
struct Waiting {
    since: Instant,
    /// Whether the request has come, or the talk is over.
    asked: Arc<AtomicBool>,
    /// Cancelled in order to close the connection.
    away: CancellationToken,
}

/// The connections that there are.
struct Talks {
    places: Arc<Semaphore>,
    /// In the order in which they came.
    waiting: VecDeque<Waiting>,
}

impl Default for Talks {
    fn default() -> Self {
        Self { places: Arc::new(Semaphore::new(CONNECTIONS)), waiting: VecDeque::new() }
    }
}

impl Talks {
    /// A place for one more connection, once there is one.
    async fn place(&mut self) -> OwnedSemaphorePermit {
        loop {
            if let Ok(place) = Arc::clone(&self.places).try_acquire_owned() {
                return place;
            }
            self.send_oldest_away();
            if let Ok(Ok(place)) = timeout(LOOK_AGAIN, Arc::clone(&self.places).acquire_owned()).await {
                return place;
            }
        }
    }

    /// Closes the connection that has been silent for longest.
    fn send_oldest_away(&mut self) {
        self.waiting.retain(|waiting| !waiting.asked.load(Ordering::Relaxed));
        if self.waiting.front().is_some_and(|oldest| oldest.since.elapsed() > SPARED)
            && let Some(oldest) = self.waiting.pop_front()
        {
            oldest.away.cancel();
        }
    }

    /// Notes a connection that has just come.
    fn enter(&mut self) -> Waiting {
        self.waiting.retain(|waiting| !waiting.asked.load(Ordering::Relaxed));
        let came = Waiting { since: Instant::now(), asked: Arc::default(), away: CancellationToken::new() };
        self.waiting.push_back(came.clone());
        came
    }
}

#[cfg(test)]
#[path = "server_tests.rs"]
mod tests;
