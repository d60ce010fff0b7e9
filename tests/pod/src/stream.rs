//! One connection of the server.

use std::{
    io::{ErrorKind, Read as _, Write as _},
    net::TcpStream,
};

use anyhow::Result;

/// A longer request is no request.
const LONGEST: usize = 16_384;

/// What a connection's client speaks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Protocol {
    /// A request is a line.
    Lines,
    /// A request is one of HTTP, after which the connection ends.
    Http,
}

/// A connection that never blocks.
#[derive(Debug)]
pub(crate) struct Stream {
    socket: TcpStream,
    protocol: Protocol,
    /// What was read of a request whose rest has not come yet.
    begun: Vec<u8>,
}

impl Stream {
    pub(crate) fn new(socket: TcpStream, protocol: Protocol) -> Result<Self> {
        socket.set_nonblocking(true)?;
        socket.set_nodelay(true)?;
        Ok(Self { socket, protocol, begun: Vec::new() })
    }

    pub(crate) fn socket(&self) -> &TcpStream {
        &self.socket
    }

    /// Reads what has come, and answers each complete request. Returns whether the connection goes on.
    pub(crate) fn serve(&mut self, suffix: &str) -> bool {
        let mut buffer = [0; 4_096];
        loop {
            match self.socket.read(&mut buffer) {
                Ok(0) => return false,
                Ok(len) => self.begun.extend_from_slice(buffer.get(..len).unwrap_or_default()),
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(_) => return false,
            }
            if self.begun.len() > LONGEST {
                return false;
            }
        }
        let (answers, goes_on) = match self.protocol {
            Protocol::Lines => (lines(&mut self.begun, suffix), true),
            Protocol::Http => http(&self.begun),
        };
        // A client that does not read its answers has filled the socket's buffer. It is not waited for.
        self.socket.write_all(&answers).is_ok() && goes_on
    }
}

/// Takes the complete lines out of `begun`. Returns their answers.
fn lines(begun: &mut Vec<u8>, suffix: &str) -> Vec<u8> {
    let complete = begun.iter().rposition(|byte| *byte == b'\n').map_or(0, |last| last + 1);
    let requests: Vec<u8> = begun.drain(..complete).collect();
    let mut answers = Vec::new();
    for line in requests.split_inclusive(|byte| *byte == b'\n') {
        answers.extend_from_slice(line.strip_suffix(b"\n").unwrap_or(line));
        answers.extend_from_slice(suffix.as_bytes());
        answers.push(b'\n');
    }
    answers
}

/// The answer to a request of HTTP, and whether the request is not complete yet.
fn http(begun: &[u8]) -> (Vec<u8>, bool) {
    let is_complete = begun.windows(4).any(|window| window == b"\r\n\r\n");
    let answer = "HTTP/1.1 200 OK\r\nContent-Length: 3\r\nConnection: close\r\n\r\nok\n";
    if is_complete { (answer.into(), false) } else { (Vec::new(), true) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_complete_line_is_answered_once() {
        let mut begun = b"1\n2\n3".to_vec();
        assert_eq!(lines(&mut begun, " pod node"), b"1 pod node\n2 pod node\n");
        assert_eq!(begun, b"3");
        begun.extend_from_slice(b"4\n");
        assert_eq!(lines(&mut begun, " pod node"), b"34 pod node\n");
        assert!(begun.is_empty() && lines(&mut begun, " pod node").is_empty());
    }

    #[test]
    fn a_probe_is_answered_once_its_request_is_complete() {
        assert_eq!(http(b"GET /healthz HTTP/1.1\r\nHost: x\r\n"), (Vec::new(), true));
        let (answer, goes_on) = http(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n");
        assert!(answer.starts_with(b"HTTP/1.1 200 ") && !goes_on);
    }
}
