//! Clients of datagrams.

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
    /// A socket of `ns`, connected to `to`, with a limit for reads.
    ///
    /// # Errors
    /// The kernel's error.
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
    /// Where an exchange fails, or 200 sockets all went elsewhere.
    pub fn connect_to(ns: &Netns, to: SocketAddr, name: &str, limit: Duration) -> Result<Self> {
        for _ in 0..200 {
            let conn = Self::connect(ns, to, limit)?;
            if conn.who().with_context(|| format!("ask {to} over UDP for its name"))? == name {
                return Ok(conn);
            }
        }
        bail!("200 UDP sockets to {to} and none went to {name}")
    }

    /// The name of the backend behind this flow.
    ///
    /// # Errors
    /// The socket's error.
    pub fn who(&self) -> std::io::Result<String> {
        let answer = self.exchange(b"who")?;
        Ok(answer.split(' ').next().unwrap_or_default().to_owned())
    }

    /// One datagram there and its answer back.
    ///
    /// # Errors
    /// The socket's error.
    pub fn exchange(&self, payload: &[u8]) -> std::io::Result<String> {
        self.socket.send(payload)?;
        let mut buffer = vec![0; 65_536];
        let len = self.socket.recv(&mut buffer)?;
        buffer.truncate(len);
        Ok(String::from_utf8_lossy(&buffer).into_owned())
    }

    /// One exchange, as an outcome.
    pub fn request(&self) -> Outcome {
        Outcome::from_result(self.who())
    }
}
