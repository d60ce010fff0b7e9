//! A relay of bytes between a client and the API server. It counts them, and cuts connections.

use std::{
    io::{self, Read, Write},
    net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream},
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread,
};

use anyhow::{Context as _, Result};

use super::control::PORT as SERVER;
use crate::Netns;

/// The port of the loopback device on which the relay listens.
pub const PORT: u16 = 6444;

/// A relay. It runs until the process ends.
#[derive(Debug, Clone, Default)]
pub struct Wire(Arc<State>);

#[derive(Debug, Default)]
struct State {
    refuses: AtomicBool,
    to_server: AtomicU64,
    to_client: AtomicU64,
    open: Mutex<Vec<TcpStream>>,
}

impl Wire {
    /// Starts a relay to the API server on the loopback device of `ns`.
    ///
    /// # Errors
    /// Fails if the port is in use.
    pub fn start(ns: &Netns) -> Result<Self> {
        Self::between(ns, ns)
    }

    /// Same as [`Wire::start`], for a client in another namespace than the API server's. The client needs no other way out of its namespace.
    ///
    /// # Errors
    /// Fails as [`Wire::start`] does.
    pub fn between(client: &Netns, server: &Netns) -> Result<Self> {
        let this = Self::default();
        let own = this.clone();
        // A socket stays in the namespace of the thread that made it.
        let listener = client
            .run(|| TcpListener::bind((Ipv4Addr::LOCALHOST, PORT)))
            .with_context(|| format!("listen on port {PORT}"))?;
        server.spawn(move || {
            for near in listener.incoming().map_while(Result::ok) {
                // An error is ignored: the client reports that its connection was closed.
                let _unreachable = own.join(near);
            }
            Ok(())
        })?;
        Ok(this)
    }

    fn join(&self, near: TcpStream) -> io::Result<()> {
        if self.0.refuses.load(Ordering::Relaxed) {
            return reset(&near);
        }
        let far = TcpStream::connect(SocketAddr::from((Ipv4Addr::LOCALHOST, SERVER)))?;
        self.open().push(near.try_clone()?);
        let to_server = (near.try_clone()?, far.try_clone()?);
        let this = self.clone();
        thread::spawn(move || copy(to_server, &this.0.to_server));
        let this = self.clone();
        thread::spawn(move || copy((far, near), &this.0.to_client));
        Ok(())
    }

    fn open(&self) -> std::sync::MutexGuard<'_, Vec<TcpStream>> {
        self.0.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Ends all connections to the client by a RST. Until [`Wire::heal`] new ones end in the same way.
    pub fn reset(&self) {
        self.0.refuses.store(true, Ordering::Relaxed);
        for near in self.open().drain(..) {
            // An error is ignored: the connection has ended by itself.
            let _ended = reset(&near);
        }
    }

    /// Lets new connections pass again.
    pub fn heal(&self) {
        self.0.refuses.store(false, Ordering::Relaxed);
    }

    /// How many bytes the API server has sent so far, with what TLS adds.
    pub fn from_server(&self) -> u64 {
        self.0.to_client.load(Ordering::Relaxed)
    }

    /// How many bytes the client has sent so far, with what TLS adds.
    pub fn from_client(&self) -> u64 {
        self.0.to_server.load(Ordering::Relaxed)
    }
}

/// Ends a connection by a RST, whoever else has its file.
pub(super) fn reset(connection: &TcpStream) -> io::Result<()> {
    Ok(rustix::net::connect_unspec(connection)?)
}

fn copy((mut from, mut into): (TcpStream, TcpStream), count: &AtomicU64) {
    let mut buffer = vec![0; 64 << 10];
    while let Ok(length @ 1..) = from.read(&mut buffer) {
        count.fetch_add(length as u64, Ordering::Relaxed);
        if into.write_all(&buffer[..length]).is_err() {
            break;
        }
    }
    let _closed = into.shutdown(Shutdown::Write);
}
