//! The clients of the UDP Service.

use std::{
    collections::BTreeMap,
    io::{ErrorKind, Result},
    net::{Ipv4Addr, SocketAddrV4},
    rc::Rc,
    time::Duration,
};

use tokio::{
    net::UdpSocket,
    time::{Instant, sleep_until, timeout},
};

use super::recorder::{Recorder, Ticket};
use crate::incident::{
    limits::UDP_LIMIT,
    record::{End, Kind},
};

/// Sends a datagram from a port of its own.
pub(super) async fn fresh(recorder: Rc<Recorder>, to: SocketAddrV4, client: u32) {
    let ticket = recorder.begin(Kind::Fresh, client, 0, None);
    let asked = async {
        let socket = open(to).await?;
        socket.send(client.to_string().as_bytes()).await?;
        let mut buffer = [0; 256];
        let len = socket.recv(&mut buffer).await?;
        Result::Ok(answer(buffer.get(..len).unwrap_or_default()))
    };
    let ended = match timeout(UDP_LIMIT, asked).await {
        Ok(Ok(Some((number, node)))) if number == client => {
            recorder.change(ticket, |record| record.node = Some(node));
            End::Answered
        }
        Ok(Ok(_)) => End::Other,
        Ok(Err(error)) if error.kind() == ErrorKind::ConnectionRefused => End::Refused,
        Ok(Err(_)) => End::Other,
        Err(_) => End::TimedOut,
    };
    recorder.end(ticket, ended);
}

/// Sends a datagram each `every`, all from one port, which connection tracking and IPVS take for one flow.
pub(super) async fn fixed(recorder: Rc<Recorder>, to: SocketAddrV4, every: Duration) {
    let Ok(socket) = open(to).await else { return };
    let mut flow = Flow { recorder, waiting: BTreeMap::new() };
    let mut buffer = [0; 256];
    let mut next = Instant::now();
    let mut number = 0;
    loop {
        tokio::select! {
            () = sleep_until(next) => {
                flow.give_up();
                flow.begin(number);
                // The error of an earlier datagram is told once, and this datagram is not sent.
                if socket.send(number.to_string().as_bytes()).await.is_err() {
                    flow.refused(number);
                    let _lost = socket.send(number.to_string().as_bytes()).await;
                }
                number += 1;
                next = (next + every).max(Instant::now());
            }
            received = socket.recv(&mut buffer) => match received {
                Ok(len) => flow.answered(buffer.get(..len).unwrap_or_default()),
                Err(_) => flow.refused(number),
            }
        }
    }
}

/// The datagrams of one port that have no end yet.
struct Flow {
    recorder: Rc<Recorder>,
    waiting: BTreeMap<u32, (Ticket, Instant)>,
}

impl Flow {
    fn begin(&mut self, number: u32) {
        let ticket = self.recorder.begin(Kind::Udp, number, 0, None);
        self.waiting.insert(number, (ticket, Instant::now() + UDP_LIMIT));
    }

    fn answered(&mut self, datagram: &[u8]) {
        // An answer that comes after its datagram was given up counts no more.
        if let Some((number, node)) = answer(datagram)
            && let Some((ticket, _)) = self.waiting.remove(&number)
        {
            self.recorder.change(ticket, |record| record.node = Some(node));
            self.recorder.end(ticket, End::Answered);
        }
    }

    /// The kernel does not tell which datagram was refused. It is told within a fraction of the interval, so it was the last one before `number`.
    fn refused(&mut self, number: u32) {
        let last = self.waiting.range(..number).next_back().map(|(number, _)| *number);
        if let Some((ticket, _)) = last.and_then(|last| self.waiting.remove(&last)) {
            self.recorder.end(ticket, End::Refused);
        }
    }

    fn give_up(&mut self) {
        let now = Instant::now();
        while let Some(first) = self.waiting.first_entry()
            && first.get().1 <= now
        {
            self.recorder.end(first.remove().0, End::TimedOut);
        }
    }
}

async fn open(to: SocketAddrV4) -> Result<UdpSocket> {
    let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0)).await?;
    socket.connect(to).await?;
    Ok(socket)
}

/// The number and the node of an answer.
fn answer(datagram: &[u8]) -> Option<(u32, String)> {
    let text = std::str::from_utf8(datagram).ok()?;
    let mut words = text.split(' ');
    let number = words.next()?.parse().ok()?;
    Some((number, words.next_back()?.to_owned()))
}
