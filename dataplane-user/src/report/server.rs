//! The agent's end of the socket: which clients may connect, which are answered, and which connections are closed.

use std::{
    collections::BTreeMap,
    future::Future,
    io,
    os::{
        fd::AsFd as _,
        unix::fs::{MetadataExt as _, PermissionsExt as _},
    },
    path::{Path, PathBuf},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use futures::{SinkExt as _, StreamExt as _, future::BoxFuture};
use nix::{
    poll::{PollFd, PollFlags, PollTimeout, poll},
    sys::socket::{getsockopt, sockopt::PeerCredentials},
};
use tokio::{
    net::{UnixListener, UnixStream},
    sync::{Notify, Semaphore},
    time::timeout,
};
use tokio_util::codec::{Framed, LinesCodec, LinesCodecError};

use super::api::{ErrorKind, Failure, Reply, Request};

/// Longest request, in bytes.
const MAX_REQUEST: usize = 64 << 10;
/// How many connections there are at once. Where one more comes, the one that has been silent for longest is closed. Where all are
/// being served, or have come just now, the new one waits.
const MAX_CONNECTIONS: usize = 32;
/// How long the first request may take to come: a machine in trouble may hold a client up for seconds between two of its calls.
const PATIENCE_AT_FIRST: Duration = Duration::from_secs(10);
/// How long a connection may stay silent after an answer, and how long its peer may take to read one.
const PATIENCE: Duration = Duration::from_secs(30);

/// How often to look for a silent connection that may be closed, where all connections are taken.
const LOOK_AGAIN: Duration = Duration::from_millis(20);
/// How long a connection may be silent without being closed: a command that has just connected is about to send its request.
const SPARED: Duration = Duration::from_secs(1);
/// How long a flag is carried out before the agent looks whether its client is still there.
const CARRIED_OUT: Duration = Duration::from_secs(3);
/// How often the agent looks whether a client that waits for challenges is still there.
const LOOK_AT_PEER: Duration = Duration::from_secs(1);
/// How long to read from a client that may not command the agent, before it is told so.
const PATIENCE_WITH_STRANGERS: Duration = Duration::from_secs(1);

/// The process at the other end as it was when it connected, by the kernel's word (SO_PEERCRED, unix(7)).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Peer {
    /// The process's user.
    pub uid: u32,
}

/// Carries requests out.
pub trait Handler: Send + Sync + 'static {
    /// Answers one request of that peer.
    fn handle(&self, request: Request, peer: Peer) -> impl Future<Output = Reply> + Send;

    /// A hand-over was granted. `_heard`: whether the requester was told so; otherwise it had gone.
    fn handed_over(&self, _heard: bool) {}

    /// The answer to [`Request::On`] is on its way, or its requester had gone: the agent may start anew.
    fn turned_on(&self) {}
}

/// Why the socket cannot be served.
#[derive(Debug, thiserror::Error)]
#[error("socket {}: {what}: {source}", path.display())]
pub struct ServerError {
    path: PathBuf,
    what: &'static str,
    source: io::Error,
}

impl ServerError {
    /// Whether another agent listens there.
    pub fn is_busy(&self) -> bool {
        self.source.kind() == io::ErrorKind::AddrInUse
    }
}

/// The agent's end of the socket. Dropping it removes the socket's file, where it is still its own.
#[derive(Debug)]
pub struct Server {
    listener: UnixListener,
    path: PathBuf,
    inode: u64,
}

impl Server {
    /// Listens. A socket that nobody listens on was left by an earlier agent, and is removed.
    ///
    /// # Errors
    /// Where the socket cannot be made, somebody listens there (an agent with another run folder), or what lies there is no socket.
    pub fn bind(path: PathBuf) -> Result<Self, ServerError> {
        let wrong = |what| {
            let path = path.clone();
            move |source| ServerError { path, what, source }
        };
        Self::check(&path)?;
        Self::remove_stale(&path)?;
        let listener = UnixListener::bind(&path).map_err(|source| {
            let what = match source.kind() {
                io::ErrorKind::AddrInUse => "another agent listens there (--socket gives this one its own)",
                _ => "cannot listen",
            };
            wrong(what)(source)
        })?;
        let meta = std::fs::symlink_metadata(&path).map_err(wrong("cannot look at it"))?;
        let this = Self { listener, path: path.clone(), inode: meta.ino() };
        // The folder is 0700 before anything lies in it. The socket's mode is a second protection.
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600))
            .map_err(wrong("cannot set its mode"))?;
        Ok(this)
    }

    /// Whether the socket's file is still there, and this end's own: otherwise no client finds this end any more.
    pub fn is_there(&self) -> bool {
        std::fs::symlink_metadata(&self.path).is_ok_and(|meta| meta.ino() == self.inode)
    }

    /// Removes the socket's file, where it is still this end's own: no client finds this end any more.
    pub fn remove(&self) {
        // Another agent's socket may lie there by now.
        if self.is_there() {
            let _gone = std::fs::remove_file(&self.path);
        }
    }

    /// Removes a socket that nobody listens on. What is no socket stays.
    ///
    /// # Errors
    /// Where it cannot be looked at or removed.
    pub fn remove_stale(path: &Path) -> Result<(), ServerError> {
        let refuses = || {
            let answer = std::os::unix::net::UnixStream::connect(path);
            answer.is_err_and(|error| error.kind() == io::ErrorKind::ConnectionRefused)
        };
        if Self::check(path).unwrap_or(false) && refuses() {
            std::fs::remove_file(path).map_err(|source| ServerError {
                path: path.to_owned(),
                what: "cannot remove the stale one",
                source,
            })?;
        }
        Ok(())
    }

    /// Whether a socket could be made at `path`, and whether one lies there. Changes nothing.
    ///
    /// # Errors
    /// Where the path is too long, or what lies there is no socket.
    pub fn check(path: &Path) -> Result<bool, ServerError> {
        let wrong = |what| move |source| ServerError { path: path.to_owned(), what, source };
        std::os::unix::net::SocketAddr::from_pathname(path).map_err(wrong("cannot listen"))?;
        match std::fs::symlink_metadata(path) {
            Ok(meta) if std::os::unix::fs::FileTypeExt::is_socket(&meta.file_type()) => Ok(true),
            Ok(_) => {
                let source = io::Error::other("something that is no socket lies there");
                Err(wrong("cannot listen")(source))
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
            Err(error) => Err(wrong("cannot look at it")(error)),
        }
    }

    /// Serves until the future is dropped. `begin` has the talk with one client go on beside all others. A talk ends by itself, and goes on
    /// after this future is dropped.
    pub async fn serve<H: Handler>(&self, handler: Arc<H>, begin: impl Fn(BoxFuture<'static, ()>)) {
        let slots = Arc::new(Semaphore::new(MAX_CONNECTIONS));
        let silent = Arc::new(Silent::default());
        loop {
            match self.listener.accept().await {
                Ok((stream, _)) => {
                    let slot = match Arc::clone(&slots).try_acquire_owned() {
                        Ok(slot) => slot,
                        Err(_) => loop {
                            silent.send_oldest_away();
                            match timeout(LOOK_AGAIN, Arc::clone(&slots).acquire_owned()).await {
                                Ok(Ok(slot)) => break slot,
                                Ok(Err(_closed)) => return,
                                // Connections that were accepted a moment ago had not begun to wait yet.
                                Err(_late) => {}
                            }
                        },
                    };
                    let handler = Arc::clone(&handler);
                    let silent = Arc::clone(&silent);
                    begin(Box::pin(async move {
                        if let Err(error) = talk(stream, &*handler, &silent).await {
                            tracing::debug!(
                                event = "client-gone",
                                %error,
                                "a client of the socket went away"
                            );
                        }
                        drop(slot);
                    }));
                }
                Err(error) => {
                    tracing::warn!(event = "accept-failed", %error, "the socket did not accept a client");
                    tokio::time::sleep(Duration::from_millis(100)).await;
                }
            }
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.remove();
    }
}

/// Connections whose next request has not come yet.
#[derive(Debug, Default)]
struct Silent {
    /// Connections in the order in which they fell silent.
    waiting: Mutex<BTreeMap<u64, (Instant, Arc<Notify>)>>,
    next: AtomicU64,
}

impl Silent {
    fn enter(self: &Arc<Self>) -> Waiting {
        let gone = Arc::new(Notify::new());
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        self.waiting().insert(number, (Instant::now(), Arc::clone(&gone)));
        Waiting { silent: Arc::clone(self), number, gone }
    }

    fn waiting(&self) -> MutexGuard<'_, BTreeMap<u64, (Instant, Arc<Notify>)>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn send_oldest_away(&self) {
        let mut waiting = self.waiting();
        if let Some(oldest) = waiting.first_entry().filter(|oldest| oldest.get().0.elapsed() > SPARED) {
            oldest.remove().1.notify_one();
        }
    }
}

/// A connection that waits for its next request.
struct Waiting {
    silent: Arc<Silent>,
    number: u64,
    gone: Arc<Notify>,
}

impl Drop for Waiting {
    fn drop(&mut self) {
        self.silent.waiting().remove(&self.number);
    }
}

async fn talk(
    stream: UnixStream,
    handler: &impl Handler,
    silent: &Arc<Silent>,
) -> Result<(), LinesCodecError> {
    let allowed = allowed(&stream);
    let mut lines = Framed::new(stream, LinesCodec::new_with_max_length(MAX_REQUEST));
    let peer = match allowed {
        Ok(peer) => peer,
        Err(failure) => {
            // The request is read first: a client that is still writing would only see a broken pipe.
            let _unheard = timeout(PATIENCE_WITH_STRANGERS, lines.next()).await;
            return send(&mut lines, &Reply::Error(failure)).await;
        }
    };
    let mut patience = PATIENCE_AT_FIRST;
    loop {
        let waiting = silent.enter();
        let line = tokio::select! {
            // A request that has come is answered, whoever else waits.
            biased;
            line = timeout(patience, lines.next()) => line,
            () = waiting.gone.notified() => return Ok(()),
        };
        drop(waiting);
        let Ok(Some(line)) = line else { return Ok(()) };
        patience = PATIENCE;
        // The request was left in the socket while this process or the machine stood still. Its client has given up, and said so.
        if gone(lines.get_ref()) {
            return Ok(());
        }
        let reply = match line {
            Ok(line) => match serde_json::from_str::<Request>(&line) {
                Ok(request @ Request::HandOver) => {
                    let reply = handler.handle(request, peer).await;
                    let sent = !gone(lines.get_ref()) && send(&mut lines, &reply).await.is_ok();
                    if matches!(reply, Reply::Ok(_)) {
                        handler.handed_over(sent);
                    }
                    continue;
                }
                Ok(request @ Request::On { .. }) => {
                    let reply = handler.handle(request, peer).await;
                    let sent = send(&mut lines, &reply).await;
                    handler.turned_on();
                    sent?;
                    continue;
                }
                // A client that was killed while it waits for challenges would hold its place.
                Ok(request @ Request::Flag { .. }) => tokio::select! {
                    reply = handler.handle(request, peer) => reply,
                    () = until_gone(lines.get_ref()) => return Ok(()),
                },
                Ok(request) => handler.handle(request, peer).await,
                Err(error) => Reply::Error(Failure::new(ErrorKind::Invalid, format!("no request: {error}"))),
            },
            Err(LinesCodecError::MaxLineLengthExceeded) => {
                let message = format!("a request is at most {MAX_REQUEST} bytes long");
                return send(&mut lines, &Reply::Error(Failure::new(ErrorKind::Invalid, message))).await;
            }
            Err(LinesCodecError::Io(error)) if error.kind() == io::ErrorKind::InvalidData => {
                Reply::Error(Failure::new(ErrorKind::Invalid, "no request: it is not UTF-8"))
            }
            Err(error) => return Err(error),
        };
        send(&mut lines, &reply).await?;
    }
}

/// Returns once the peer has closed its end. A request that has just come is carried out before the first look.
async fn until_gone(stream: &UnixStream) {
    tokio::time::sleep(CARRIED_OUT).await;
    while !gone(stream) {
        tokio::time::sleep(LOOK_AT_PEER).await;
    }
}

/// Whether the peer has closed its end, and not only said that it sends no more (unix_poll, net/unix/af_unix.c).
fn gone(stream: &UnixStream) -> bool {
    let mut polled = [PollFd::new(stream.as_fd(), PollFlags::empty())];
    let done = poll(&mut polled, PollTimeout::ZERO);
    done.is_ok() && polled[0].revents().is_some_and(|events| events.contains(PollFlags::POLLHUP))
}

async fn send(lines: &mut Framed<UnixStream, LinesCodec>, reply: &Reply) -> Result<(), LinesCodecError> {
    let line = serde_json::to_string(reply).map_err(io::Error::from)?;
    timeout(PATIENCE, lines.send(line)).await.map_err(io::Error::from)?
}

/// The peer, where it may command the agent: only root may, and the user that the agent runs as.
fn allowed(stream: &UnixStream) -> Result<Peer, Failure> {
    let own = nix::unistd::geteuid().as_raw();
    match getsockopt(stream, PeerCredentials) {
        Ok(peer) if peer.uid() == 0 || peer.uid() == own => Ok(Peer { uid: peer.uid() }),
        Ok(peer) => Err(stranger(peer.uid())),
        Err(error) => Err(nobody(error)),
    }
}

fn stranger(uid: u32) -> Failure {
    Failure::new(ErrorKind::Refused, format!("user {uid} may not command the agent; run as root"))
}

fn nobody(error: impl std::fmt::Display) -> Failure {
    Failure::failed(format_args!("cannot tell who is asking: {error}"))
}

#[cfg(test)]
mod tests;
