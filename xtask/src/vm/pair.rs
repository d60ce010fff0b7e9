//! Runs two guests on one wire. The tests find their guest's role in `NODEFENCE_ROLE`.

use std::net::UdpSocket;
use std::thread;
use std::time::Instant;

use anyhow::{Context as _, Result, anyhow};

use super::matrix::{Boot, Guest, Matrix, Ran};
use super::plan;
use crate::test::tally::Stage;

const ROLES: [&str; 2] = ["node", "client"];
/// The cards. virtio-net without a virtual-network header on the wire leaves all checksums to the guest. vmxnet3 computes the checksums, and cuts the
/// segments, that the guest's kernel leaves to it, as hardware does.
const CARDS: [&str; 2] = ["virtio-net-pci", "vmxnet3"];

impl Matrix<'_> {
    /// Runs the tests in two guests of the same kernel at the same time. Each test counts once for each role.
    pub(super) fn pair(&self, guest: &Guest) -> Result<Stage> {
        let started = Instant::now();
        let prepared = guest.kernel.prepare()?;
        let mut stage = Stage::new(guest.name());
        stage.note.clone_from(&prepared.release);
        let wires = wires()?;
        let ran: Vec<Result<Ran>> = thread::scope(|scope| {
            let guests: Vec<_> = ROLES
                .iter()
                .zip(&wires)
                .map(|(role, network)| {
                    let label = format!("{}-{role}", guest.label());
                    let parameters = format!("nodefence.role={role} {}={}", plan::PARAMETER, guest.label());
                    let prepared = &prepared;
                    scope.spawn(move || {
                        let boot = Boot { network, ..Boot::new(guest, &parameters) };
                        self.run(prepared, &label, &boot)
                    })
                })
                .collect();
            guests
                .into_iter()
                .map(|guest| guest.join().unwrap_or_else(|_| Err(anyhow!("a guest's thread panicked"))))
                .collect()
        });
        for (role, ran) in ROLES.iter().zip(ran) {
            let before = stage.failures.len();
            self.judge(&ran?, &guest.jobs, &mut stage)?;
            for failure in &mut stage.failures[before..] {
                *failure = format!("{role}: {failure}");
            }
        }
        stage.took = started.elapsed();
        Ok(stage)
    }
}

/// QEMU's options for both ends. The frames of each card go as datagrams over this machine's loopback, so that either guest may start first.
fn wires() -> Result<[Vec<String>; 2]> {
    let mut ends = [Vec::new(), Vec::new()];
    for (at, card) in CARDS.iter().enumerate() {
        let ports = free_ports()?;
        for (side, end) in ends.iter_mut().enumerate() {
            let own = ports[side];
            let other = ports[1 - side];
            end.extend([
                "-netdev".to_owned(),
                format!("socket,id=wire{at},udp=127.0.0.1:{other},localaddr=127.0.0.1:{own}"),
            ]);
            end.extend([
                "-device".to_owned(),
                format!("{card},netdev=wire{at},mac=52:54:00:00:{at:02x}:{side:02x}"),
            ]);
        }
    }
    Ok(ends)
}

/// Two ports that were free a moment ago.
fn free_ports() -> Result<[u16; 2]> {
    let bind = || UdpSocket::bind("127.0.0.1:0").context("no free UDP port");
    let one = bind()?;
    let two = bind()?;
    Ok([one.local_addr()?.port(), two.local_addr()?.port()])
}
