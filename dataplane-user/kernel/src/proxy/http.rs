//! The HTTP request to kube-proxy's metrics port.
use std::{
    io::{self, Read as _, Write as _},
    net::{Ipv4Addr, SocketAddr, TcpStream},
    time::{Duration, Instant},
};

/// Where kube-proxy serves its mode and its metrics by default (`metricsBindAddress`, `proxyMode` in
/// cmd/kube-proxy/app/server.go).
pub(super) const METRICS: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), 10_249);
/// How long an answer may take: kube-proxy answers at once or not at all.
const PATIENCE: Duration = Duration::from_millis(300);

/// Sends a request of HTTP/1.0, and reads one answer until the other side closes.
///
/// # Errors
/// Where the answer is longer than `longest` bytes, or takes longer than a third of a second: half an answer is none.
pub(super) fn get(from: SocketAddr, path: &str, longest: usize) -> io::Result<Vec<u8>> {
    let mut stream = TcpStream::connect_timeout(&from, PATIENCE)?;
    stream.set_write_timeout(Some(PATIENCE))?;
    stream.write_all(format!("GET {path} HTTP/1.0\r\nHost: localhost\r\n\r\n").as_bytes())?;
    let begun = Instant::now();
    let mut answer = Vec::new();
    let mut part = [0; 4096];
    // The time is for the whole answer, in however many parts it comes.
    while let Some(left) = PATIENCE.checked_sub(begun.elapsed()).filter(|left| !left.is_zero()) {
        stream.set_read_timeout(Some(left))?;
        match stream.read(&mut part)? {
            0 => return Ok(answer),
            read => answer.extend_from_slice(&part[..read]),
        }
        if answer.len() > longest {
            return Err(io::Error::other(format!("http://{from}{path} tells more than {longest} bytes")));
        }
    }
    Err(io::Error::new(
        io::ErrorKind::TimedOut,
        format!("http://{from}{path} is not done after {PATIENCE:?}"),
    ))
}

/// The text of an answer whose status is 200.
pub(super) fn body(answer: &[u8]) -> Option<&str> {
    let answer = std::str::from_utf8(answer).ok()?;
    let (head, body) = answer.split_once("\r\n\r\n")?;
    let status = head.lines().next()?.split(' ').nth(1)?;
    (status == "200").then_some(body)
}
