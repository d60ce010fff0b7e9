//! The clients of the TCP Service.

use std::{
    io::{Error, ErrorKind, Result},
    net::{SocketAddrV4, TcpStream as Blocking},
    rc::Rc,
    time::Duration,
};

use rustix::{
    io::Errno,
    net::{AddressFamily, SocketFlags, SocketType, connect, socket_with},
};
use tokio::{
    io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader},
    net::TcpStream,
    time::{Instant, sleep, sleep_until, timeout, timeout_at},
};

use super::recorder::Recorder;
use crate::{
    incident::{
        limits::NEW_LIMIT,
        record::{End, Kind},
    },
    tcp_info,
};

/// The pause after a refused attempt.
const RETRY: Duration = Duration::from_millis(100);
/// An attempt to make an established connection is repeated after this time.
const ATTEMPT: Duration = Duration::from_secs(10);
/// A SYN without an answer is sent again after 1 s (`TCP_TIMEOUT_INIT`, include/net/tcp.h). Before that a SYN is sent again only because it was answered: a
/// server that kept a connection which its client lost answers that client's next SYN from the same port with a bare ACK, and gets a reset and another SYN at
/// once (`tcp_rcv_synsent_state_process`, net/ipv4/tcp_input.c). Pods of a node that was cut have such connections.
const UNANSWERED: Duration = Duration::from_millis(900);

/// A connection whose server has answered once.
pub(super) struct Established {
    stream: BufReader<TcpStream>,
    node: String,
}

/// Sends requests on one connection, each `think` after the beginning of the last one. A request has no time limit. When the connection ends, the client makes
/// the next one at once.
pub(super) async fn keep(
    recorder: Rc<Recorder>,
    to: SocketAddrV4,
    client: u32,
    established: Established,
    think: Duration,
) {
    let mut connection = 0;
    let mut node = Some(established.node);
    let mut stream = Some(established.stream);
    let mut number = 0;
    loop {
        number += 1;
        let begun = Instant::now();
        let ticket = recorder.begin(Kind::Keep, client, connection, node.clone());
        let is_first = stream.is_none();
        let asked = match stream.take() {
            Some(mut old) => ask(&mut old, number).await.map(|node| (old, node)),
            None => match dial(to, None).await {
                (Some(new), Ok(())) => {
                    let mut new = BufReader::new(new);
                    ask(&mut new, number).await.map(|node| (new, node))
                }
                (_, failed) => Err(failed.err().unwrap_or_else(|| ErrorKind::Other.into())),
            },
        };
        match asked {
            Ok((answered, by)) => {
                recorder.change(ticket, |record| record.node = Some(by.clone()));
                recorder.end(ticket, End::Answered);
                stream = Some(answered);
                node = Some(by);
                sleep_until(begun + think).await;
            }
            Err(error) => {
                recorder.end(ticket, end(&error));
                node = None;
                connection += 1;
                if is_first {
                    sleep(RETRY).await;
                }
            }
        }
    }
}

/// Waits until the connection ends, and sends nothing.
pub(super) async fn idle(recorder: Rc<Recorder>, client: u32, mut established: Established) {
    let ticket = recorder.begin(Kind::Idle, client, 0, Some(established.node));
    let ended = match established.stream.read_u8().await {
        Ok(_) => End::Other,
        Err(error) => end(&error),
    };
    recorder.end(ticket, ended);
}

/// Makes a connection for one request.
pub(super) async fn new(recorder: Rc<Recorder>, to: SocketAddrV4, client: u32) {
    let begun = Instant::now();
    let until = begun + NEW_LIMIT;
    let ticket = recorder.begin(Kind::New, client, 0, None);
    let (stream, connected) = dial(to, Some(until)).await;
    // The counter is valid for a failed connection too, until the socket is closed.
    let sent_again = stream.as_ref().and_then(|stream| tcp_info::retransmitted(stream).ok());
    let syns_again = if begun.elapsed() < UNANSWERED { 0 } else { sent_again.unwrap_or_default() };
    recorder.change(ticket, |record| record.syns_again = syns_again);
    let asked = match (stream, connected) {
        (Some(stream), Ok(())) => {
            let mut stream = BufReader::new(stream);
            let asked = timeout_at(until, ask(&mut stream, client.into())).await;
            asked.unwrap_or_else(|_| Err(ErrorKind::TimedOut.into()))
        }
        (_, failed) => Err(failed.err().unwrap_or_else(|| ErrorKind::Other.into())),
    };
    match asked {
        Ok(node) => {
            recorder.change(ticket, |record| record.node = Some(node));
            recorder.end(ticket, End::Answered);
        }
        Err(error) => recorder.end(ticket, end(&error)),
    }
}

/// A connection whose server has answered. Tries until then.
pub(super) async fn established(to: SocketAddrV4) -> Option<Established> {
    loop {
        let attempt = async {
            let (stream, connected) = dial(to, None).await;
            connected.ok()?;
            let mut stream = BufReader::new(stream?);
            let node = ask(&mut stream, 0).await.ok()?;
            Some(Established { stream, node })
        };
        if let Ok(Some(established)) = timeout(ATTEMPT, attempt).await {
            return Some(established);
        }
        sleep(RETRY).await;
    }
}

/// Connects. Returns the socket of a failed attempt too, where there is one, since the kernel counts its SYNs.
async fn dial(to: SocketAddrV4, until: Option<Instant>) -> (Option<TcpStream>, Result<()>) {
    let stream = match begin(to) {
        Ok(stream) => stream,
        Err(error) => return (None, Err(error)),
    };
    let connected = async {
        loop {
            stream.writable().await?;
            if let Some(error) = stream.take_error()? {
                return Err(error);
            }
            match stream.peer_addr() {
                Ok(_) => return stream.set_nodelay(true),
                // Not connected yet.
                Err(error) if error.kind() == ErrorKind::NotConnected => {}
                Err(error) => return Err(error),
            }
        }
    };
    let connected = match until {
        Some(until) => timeout_at(until, connected).await.unwrap_or_else(|_| Err(ErrorKind::TimedOut.into())),
        None => connected.await,
    };
    (Some(stream), connected)
}

/// Sends the SYN.
fn begin(to: SocketAddrV4) -> Result<TcpStream> {
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    let socket = socket_with(AddressFamily::INET, SocketType::STREAM, flags, None)?;
    match connect(&socket, &to) {
        Ok(()) | Err(Errno::INPROGRESS) => TcpStream::from_std(Blocking::from(socket)),
        Err(error) => Err(error.into()),
    }
}

/// Sends a request and waits for its answer. Returns the name of the node.
async fn ask(stream: &mut BufReader<TcpStream>, number: u64) -> Result<String> {
    stream.get_mut().write_all(format!("{number}\n").as_bytes()).await?;
    let mut line = String::new();
    if stream.read_line(&mut line).await? == 0 {
        return Err(ErrorKind::UnexpectedEof.into());
    }
    let mut words = line.split_whitespace();
    match (words.next().map(|word| word.parse() == Ok(number)), words.next_back()) {
        (Some(true), Some(node)) => Ok(node.to_owned()),
        _ => Err(ErrorKind::InvalidData.into()),
    }
}

fn end(error: &Error) -> End {
    match error.kind() {
        ErrorKind::ConnectionRefused => End::Refused,
        ErrorKind::ConnectionReset | ErrorKind::BrokenPipe => End::Reset,
        ErrorKind::UnexpectedEof => End::Closed,
        ErrorKind::TimedOut => End::TimedOut,
        _ => End::Other,
    }
}
