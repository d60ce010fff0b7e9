//! A backend for the tests and the demo: TCP, UDP, SCTP or MPTCP on the given ports, over IPv4 and IPv6.
//!
//! `nodefence-peer NAME tcp=8080 udp=5300 ...` writes one line to standard output once all ports are open.
//!
//! A TCP, SCTP or MPTCP connection takes any number of requests. Lengths are 4 bytes in network order.
//! - `w` (who): the answer is the name and a line end.
//! - `e` length payload (echo): the answer is the payload.
//! - `s` length payload (upload): the answer is one byte `k` once the payload was read.
//! - `d` length (download): the answer is this many bytes of [`pattern`].
//! - `p` (long poll): there is never an answer.
//!
//! Each UDP datagram is answered with the name, a space and the datagram.

use std::{
    io::{Read, Write},
    net::{Ipv6Addr, SocketAddrV6, TcpListener, TcpStream, UdpSocket},
    thread,
};

use anyhow::{Context as _, Result, bail};
use nodefence_tests::client::{Over, pattern};
use rustix::net::{AddressFamily, SocketFlags, SocketType, bind, listen, socket_with};

fn main() -> Result<()> {
    let mut words = std::env::args().skip(1);
    let name = words.next().context("usage: nodefence-peer NAME [tcp|sctp|mptcp|udp=PORT]...")?;
    for word in words {
        let (protocol, port) =
            word.split_once('=').context("expected tcp=PORT, sctp=PORT, mptcp=PORT or udp=PORT")?;
        let at = (Ipv6Addr::UNSPECIFIED, port.parse::<u16>().context("port")?);
        let name = name.clone();
        match protocol {
            "tcp" => {
                let listener = TcpListener::bind(at)?;
                thread::spawn(move || tcp(&listener, &name));
            }
            "sctp" | "mptcp" => {
                let over = if protocol == "sctp" { Over::Sctp } else { Over::Mptcp };
                let listener = listener(over, at.1)?;
                thread::spawn(move || tcp(&listener, &name));
            }
            "udp" => {
                let socket = UdpSocket::bind(at)?;
                thread::spawn(move || udp(&socket, &name));
            }
            _ => bail!("expected tcp=PORT, sctp=PORT, mptcp=PORT or udp=PORT, got {word}"),
        }
    }
    println!("ready");
    std::io::stdout().flush()?;
    loop {
        thread::park();
    }
}

/// A listening SCTP or MPTCP socket, which is then used like a TCP socket.
fn listener(over: Over, port: u16) -> Result<TcpListener> {
    let protocol = Some(over.protocol());
    let socket = socket_with(AddressFamily::INET6, SocketType::STREAM, SocketFlags::CLOEXEC, protocol);
    let socket = socket.with_context(|| format!("{over:?}"))?;
    bind(&socket, &SocketAddrV6::new(Ipv6Addr::UNSPECIFIED, port, 0, 0))?;
    listen(&socket, 64)?;
    Ok(socket.into())
}

fn tcp(listener: &TcpListener, name: &str) {
    for stream in listener.incoming().flatten() {
        let name = name.to_owned();
        thread::spawn(move || {
            let _ = stream.set_nodelay(true);
            // An error is ignored: a connection usually ends because the client ends it.
            let _ = serve(stream, &name);
        });
    }
}

fn serve(mut stream: TcpStream, name: &str) -> std::io::Result<()> {
    loop {
        let mut op = [0];
        stream.read_exact(&mut op)?;
        match op[0] {
            b'w' => stream.write_all(format!("{name}\n").as_bytes())?,
            b'e' => {
                let mut payload = vec![0; length(&mut stream)?];
                stream.read_exact(&mut payload)?;
                stream.write_all(&payload)?;
            }
            b's' => {
                let wanted = length(&mut stream)? as u64;
                let got = std::io::copy(&mut (&mut stream).take(wanted), &mut std::io::sink())?;
                if got == wanted {
                    stream.write_all(b"k")?;
                }
            }
            b'd' => {
                let wanted = length(&mut stream)?;
                stream.write_all(&pattern(wanted))?;
            }
            b'p' => {}
            _ => return Ok(()),
        }
    }
}

fn length(stream: &mut TcpStream) -> std::io::Result<usize> {
    let mut bytes = [0; 4];
    stream.read_exact(&mut bytes)?;
    Ok(u32::from_be_bytes(bytes) as usize)
}

fn udp(socket: &UdpSocket, name: &str) {
    let mut buffer = vec![0; 65_536];
    loop {
        if let Ok((len, from)) = socket.recv_from(&mut buffer) {
            let mut answer = format!("{name} ").into_bytes();
            answer.extend_from_slice(buffer.get(..len).unwrap_or_default());
            let _ = socket.send_to(&answer, from);
        }
    }
}
