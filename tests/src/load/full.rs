//! Loads a path fully, by small datagrams or by one TCP stream.
#![expect(unsafe_code, reason = "sendmmsg(2), for which no safe wrapper reuses its headers")]

use std::{
    io::{Read as _, Write as _},
    net::{TcpStream, UdpSocket},
    os::fd::AsRawFd as _,
    sync::atomic::{AtomicBool, AtomicU64, Ordering},
    time::{Duration, Instant},
};

use anyhow::{Result, ensure};

use super::{repeat, under};

/// The payload of a datagram, which makes a frame of 64 + 42 bytes.
const PAYLOAD: [u8; 64] = [0x5a; 64];
/// The number of datagrams in a system call.
const BATCH: usize = 32;

/// Sends datagrams from a connected socket for this time. Returns how long the sending really took.
///
/// # Errors
/// Fails if a datagram cannot be sent, except for want of room.
pub fn datagrams(socket: &UdpSocket, length: Duration) -> Result<Duration> {
    let mut payload = PAYLOAD;
    let mut part = libc::iovec { iov_base: payload.as_mut_ptr().cast(), iov_len: payload.len() };
    let started = Instant::now();
    // SAFETY: all zero is a valid msghdr: no name, no parts, no control data.
    let mut headers: [libc::mmsghdr; BATCH] = unsafe { std::mem::zeroed() };
    for header in &mut headers {
        header.msg_hdr.msg_iov = &raw mut part;
        header.msg_hdr.msg_iovlen = 1;
    }
    while started.elapsed() < length {
        for _ in 0..8 {
            // SAFETY: the headers, the part and the payload outlive the call; the kernel only reads what they point to.
            let sent =
                unsafe { libc::sendmmsg(socket.as_raw_fd(), headers.as_mut_ptr(), BATCH as libc::c_uint, 0) };
            if sent < 0 {
                let error = std::io::Error::last_os_error();
                ensure!(error.raw_os_error() == Some(libc::ENOBUFS), "cannot send: {error}");
            }
        }
    }
    Ok(started.elapsed())
}

/// Measures the bytes that one end of a connection reads in a second, while the other end sends all the time. The measurement takes `length`, once the window
/// has opened. The thread of each end calls its `prepare` first.
///
/// # Errors
/// Fails if an end fails.
pub fn stream(
    [mut from, mut to]: [TcpStream; 2],
    length: Duration,
    [prepare_from, prepare_to]: [&(dyn Fn() -> Result<()> + Sync); 2],
) -> Result<f64> {
    let bytes = &AtomicU64::new(0);
    // Each closure owns its end of the connection, which closes when its thread ends for whatever reason. So neither end waits for ever for the other.
    let receive = move |_: &AtomicBool| {
        prepare_to()?;
        let mut buffer = vec![0; 1 << 18];
        loop {
            match to.read(&mut buffer)? {
                0 => return Ok(()),
                count => bytes.fetch_add(count as u64, Ordering::Relaxed),
            };
        }
    };
    let send = move |stop: &AtomicBool| {
        prepare_from()?;
        let buffer = vec![0x5a; 1 << 17];
        repeat(stop, || {
            from.write_all(&buffer)?;
            Ok(Duration::ZERO)
        })
    };
    let measure = || {
        std::thread::sleep(length / 4);
        let before = bytes.load(Ordering::Relaxed);
        let started = Instant::now();
        std::thread::sleep(length);
        let read = bytes.load(Ordering::Relaxed) - before;
        read as f64 / started.elapsed().as_secs_f64()
    };
    let ((read, sent), received) = under([receive], || under([send], measure));
    for end in sent.into_iter().map(|sent| sent.map(drop)).chain(received) {
        end?;
    }
    Ok(read)
}
