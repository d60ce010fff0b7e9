//! Clients that use UDP.

use std::{
    net::{IpAddr, SocketAddr, UdpSocket},
    time::Duration,
};

use anyhow::{Context as _, Result, bail};

use super::outcome::Outcome;
use crate::Netns;

/// A connected UDP socket.
#[derive(Debug)]
pub struct UdpConn {
    /// The socket.
    pub socket: UdpSocket,
}

impl UdpConn {
    /// Makes a socket in `ns`, connected to `to`. Reads get the limit `limit`.
    ///
    /// # Errors
    /// Fails with the kernel's error.
    pub fn connect(ns: &Netns, to: SocketAddr, limit: Duration) -> std::io::Result<Self> {
        let socket = ns.run(move || {
            let any: IpAddr = if to.is_ipv4() { [0; 4].into() } else { [0_u16; 8].into() };
            let socket = UdpSocket::bind((any, 0))?;
            socket.connect(to)?;
            std::io::Result::Ok(socket)
        })?;
        socket.set_read_timeout(Some(limit))?;
        Ok(Self { socket })
    }

    /// Makes sockets until the balancer has picked the backend `name`.
    ///
    /// # Errors
    /// Fails if an exchange fails, or if 200 sockets all went elsewhere.
    pub fn connect_to(ns: &Netns, to: SocketAddr, name: &str, limit: Duration) -> Result<Self> {
        for _ in 0..200 {
            let conn = Self::connect(ns, to, limit)?;
            if conn.who().with_context(|| format!("ask {to} over UDP for its name"))? == name {
                return Ok(conn);
            }
        }
        bail!("200 UDP sockets to {to} and none went to {name}")
    }

    /// Asks the backend behind this flow for its name.
    ///
    /// # Errors
    /// Fails with the socket's error.
    pub fn who(&self) -> std::io::Result<String> {
        let answer = self.exchange(b"who")?;
        Ok(answer.split(' ').next().unwrap_or_default().to_owned())
    }

    /// Sends one datagram and returns the answer.
    ///
    /// # Errors
    /// Fails with the socket's error.
    pub fn exchange(&self, payload: &[u8]) -> std::io::Result<String> {
        self.socket.send(payload)?;
        let mut buffer = vec![0; 65_536];
        let len = self.socket.recv(&mut buffer)?;
        buffer.truncate(len);
        Ok(String::from_utf8_lossy(&buffer).into_owned())
    }

    /// Makes one exchange and returns its outcome.
    pub fn request(&self) -> Outcome {
        Outcome::from_result(self.who())
    }
}
