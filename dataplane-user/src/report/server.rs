use std::{future::Future, io, os::unix::fs::PermissionsExt as _, path::PathBuf, sync::Arc, time::Duration};

use futures::{SinkExt as _, StreamExt as _};
use nix::sys::socket::{getsockopt, sockopt::PeerCredentials};
use tokio::{
    net::{UnixListener, UnixStream},
    sync::Semaphore,
    time::timeout,
};
use tokio_util::codec::{Framed, LinesCodec, LinesCodecError};

use super::api::{ErrorKind, Failure, Reply, Request};

/// Longest request, in bytes.
const MAX_REQUEST: usize = 64 << 10;
/// Requests that are served at once; more wait.
const MAX_CONNECTIONS: usize = 32;
/// How long a connection may stay silent, and how long its peer may take to read an answer.
const PATIENCE: Duration = Duration::from_secs(30);

/// How long one who may not ask is heard out.
const PATIENCE_WITH_STRANGERS: Duration = Duration::from_secs(1);

/// Who carries requests out.
pub trait Handler: Send + Sync + 'static {
    /// Answers one request.
    fn handle(&self, request: Request) -> impl Future<Output = Reply> + Send;
}

/// Why the socket cannot be served.
#[derive(Debug, thiserror::Error)]
#[error("socket {}: {what}: {source}", path.display())]
pub struct ServerError {
    path: PathBuf,
    what: &'static str,
    source: io::Error,
}

/// The agent's end of the socket. Dropping it removes the socket's file.
#[derive(Debug)]
pub struct Server {
    listener: UnixListener,
    path: PathBuf,
}

impl Server {
    /// Listens. A file that lies there is removed: only the holder of the agent's lock may call this, so it is one that
    /// an earlier agent left.
    ///
    /// # Errors
    /// Where the socket cannot be made, or what lies there is no socket.
    pub fn bind(path: PathBuf) -> Result<Self, ServerError> {
        let wrong = |what| {
            let path = path.clone();
            move |source| ServerError { path, what, source }
        };
        match std::fs::symlink_metadata(&path) {
            Ok(meta) if std::os::unix::fs::FileTypeExt::is_socket(&meta.file_type()) => {
                std::fs::remove_file(&path).map_err(wrong("cannot remove the stale one"))?;
            }
            Ok(_) => {
                let source = io::Error::other("something that is no socket lies there");
                return Err(wrong("cannot listen")(source));
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(wrong("cannot look at it")(error)),
        }
        let listener = UnixListener::bind(&path).map_err(wrong("cannot listen"))?;
        let this = Self { listener, path: path.clone() };
        // The folder is 0700 before anything lies in it; this is the second lock on the same door.
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600))
            .map_err(wrong("cannot set its mode"))?;
        Ok(this)
    }

    /// Serves until the future is dropped.
    pub async fn serve<H: Handler>(&self, handler: Arc<H>) {
        let slots = Arc::new(Semaphore::new(MAX_CONNECTIONS));
        loop {
            let Ok(slot) = Arc::clone(&slots).acquire_owned().await else { return };
            match self.listener.accept().await {
                Ok((stream, _)) => {
                    let handler = Arc::clone(&handler);
                    tokio::spawn(async move {
                        if let Err(error) = talk(stream, &*handler).await {
                            tracing::debug!(%error, "a client of the socket went away");
                        }
                        drop(slot);
                    });
                }
                Err(error) => {
                    tracing::warn!(%error, "accept on the socket");
                    tokio::time::sleep(Duration::from_millis(100)).await;
                }
            }
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _gone = std::fs::remove_file(&self.path);
    }
}

async fn talk(stream: UnixStream, handler: &impl Handler) -> Result<(), LinesCodecError> {
    let allowed = allowed(&stream);
    let mut lines = Framed::new(stream, LinesCodec::new_with_max_length(MAX_REQUEST));
    if let Err(failure) = allowed {
        // Read first: who is still writing would only see a broken pipe.
        let _unheard = timeout(PATIENCE_WITH_STRANGERS, lines.next()).await;
        return send(&mut lines, &Reply::Error(failure)).await;
    }
    while let Ok(Some(line)) = timeout(PATIENCE, lines.next()).await {
        let reply = match line {
            Ok(line) => match serde_json::from_str::<Request>(&line) {
                Ok(request) => handler.handle(request).await,
                Err(error) => Reply::Error(Failure::new(ErrorKind::Invalid, format!("no request: {error}"))),
            },
            Err(LinesCodecError::MaxLineLengthExceeded) => {
                let message = format!("a request is at most {MAX_REQUEST} bytes long");
                return send(&mut lines, &Reply::Error(Failure::new(ErrorKind::Invalid, message))).await;
            }
            Err(error) => return Err(error),
        };
        send(&mut lines, &reply).await?;
    }
    Ok(())
}

async fn send(lines: &mut Framed<UnixStream, LinesCodec>, reply: &Reply) -> Result<(), LinesCodecError> {
    let line = serde_json::to_string(reply).map_err(io::Error::from)?;
    timeout(PATIENCE, lines.send(line)).await.map_err(io::Error::from)?
}

/// Only root, or whoever the agent runs as.
fn allowed(stream: &UnixStream) -> Result<(), Failure> {
    let own = nix::unistd::geteuid().as_raw();
    match getsockopt(stream, PeerCredentials) {
        Ok(peer) if peer.uid() == 0 || peer.uid() == own => Ok(()),
        Ok(peer) => {
            let message = format!("user {} may not command the agent; run as root", peer.uid());
            Err(Failure::new(ErrorKind::Refused, message))
        }
        Err(error) => Err(Failure::failed(format_args!("cannot tell who is asking: {error}"))),
    }
}
