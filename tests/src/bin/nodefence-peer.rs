//! A backend for the tests and the demo: TCP on some ports, UDP, SCTP or MPTCP on others, over IPv4 and IPv6.
//!
//! `nodefence-peer NAME tcp=8080 udp=5300 ...`; writes one line to standard output once all ports are open.
//!
//! TCP, SCTP and MPTCP requests, any number on one connection (lengths are 4 bytes, network order):
//! `w` who are you: the name and a line end; `e` length payload: the payload back; `s` length payload: read it all, one
//! byte `k` back; `d` length: so many bytes of [`pattern`] back; `p` long poll: never answered.
//! UDP: each datagram is answered with the name, a space and the datagram.

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

/// A socket that is used as one of TCP.
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
            // The client's end is the ordinary end.
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
