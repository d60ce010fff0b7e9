//! Waits until each server answers.

use std::{
    collections::BTreeSet,
    io::{BufRead as _, BufReader, Result, Write as _},
    net::{Ipv4Addr, SocketAddr, TcpStream, UdpSocket},
    time::{Duration, Instant},
};

use anyhow::{Result as Checked, bail};

use super::manifests::{TCP_PORT, UDP_PORT};
use crate::Netns;

/// A server that does not answer within this time counts as away for the moment.
const LIMIT: Duration = Duration::from_secs(2);
/// Each server is to be reached this many times in a row of requests that are all answered.
const IN_A_ROW: usize = 3;

/// Waits until all pods answer at this address over TCP and UDP, and every request is answered.
///
/// # Errors
/// Fails after `patience`. The error names the pods that did not answer.
pub(super) fn all_answer(
    clients: &Netns,
    address: Ipv4Addr,
    pods: &BTreeSet<String>,
    patience: Duration,
) -> Checked<()> {
    let pods = pods.clone();
    clients.within(move || {
        for (protocol, ask) in [("TCP", tcp as fn(Ipv4Addr) -> Result<String>), ("UDP", udp)] {
            let until = Instant::now() + patience;
            let mut seen = BTreeSet::new();
            let mut answered = 0;
            while answered < IN_A_ROW * pods.len() || !pods.is_subset(&seen) {
                match ask(address) {
                    Ok(pod) => {
                        seen.insert(pod);
                        answered += 1;
                    }
                    Err(_) => {
                        // What answered before the failure may have ended since.
                        seen.clear();
                        answered = 0;
                        std::thread::sleep(Duration::from_millis(200));
                    }
                }
                if Instant::now() > until {
                    let missing: Vec<&String> = pods.difference(&seen).collect();
                    bail!("after {patience:?} not each request to {address} over {protocol} is answered; missing: {missing:?}");
                }
            }
        }
        Ok(())
    })
}

fn tcp(address: Ipv4Addr) -> Result<String> {
    let mut stream = TcpStream::connect_timeout(&SocketAddr::from((address, TCP_PORT)), LIMIT)?;
    stream.set_read_timeout(Some(LIMIT))?;
    stream.write_all(b"0\n")?;
    let mut line = String::new();
    BufReader::new(stream).read_line(&mut line)?;
    Ok(pod(&line))
}

fn udp(address: Ipv4Addr) -> Result<String> {
    let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0))?;
    socket.set_read_timeout(Some(LIMIT))?;
    socket.connect((address, UDP_PORT))?;
    socket.send(b"0")?;
    let mut buffer = [0; 256];
    let len = socket.recv(&mut buffer)?;
    Ok(pod(&String::from_utf8_lossy(buffer.get(..len).unwrap_or_default())))
}

/// The name of the pod in an answer, which is the request, the pod and its node.
fn pod(answer: &str) -> String {
    answer.split_whitespace().nth(1).unwrap_or_default().to_owned()
}
