//! Frames that BPF_PROG_TEST_RUN cannot make run through the egress program on a device: CHECKSUM_PARTIAL, GSO, headers outside
//! the linear part. Each byte of the answers is checked.
use std::{net::IpAddr, time::Duration};

use anyhow::{Context as _, Result, ensure};
use aya::programs::TcAttachType;
use nodefence_common::{EventKind, HEAD_LEN, Reason};
use nodefence_tests::{
    Netns,
    packet::{Programs, TC_DROP, set_forwarding},
    packet_check::{ExpectedAnswer, check},
    packet_frame::{Frame, Transport, VLAN},
    packet_wire::{Offload, Wire},
    packet_world::{HEALTHY, REFUSE, install, v4, v6, world},
};

const ACK: u32 = 0x8899_aabb;
const SOON: Duration = Duration::from_secs(10);
const TCPV4: u8 = 1;
const TCPV6: u8 = 4;

struct Bench {
    programs: Programs,
    near: Wire,
    far: Wire,
    ifindex: u32,
}

/// A netdev chain that counts answers with a mark and answers without one.
const MARKS: &str = "table netdev marks {
  counter marked {}
  counter clean {}
  chain arriving {
    type filter hook ingress device w0 priority 0;
    ip saddr 10.244.1.7 meta mark != 0 counter name marked
    ip saddr 10.244.1.7 meta mark 0 counter name clean
  }
}";

/// Runs in a namespace with a veth pair. The program is attached to the egress of one end, and the other end sees passing packets.
fn bench(label: &str, run: impl FnOnce(&mut Bench) -> Result<()> + Send + 'static) -> Result<()> {
    let ns = Netns::new(label)?;
    ns.ip("link add w0 mtu 9000 type veth peer name w1 mtu 9000\nlink set w0 up\nlink set w1 up")?;
    let near = ns.ifindex("w0")?;
    let far = ns.ifindex("w1")?;
    ns.run(move || {
        set_forwarding(false)?;
        let mut programs = Programs::load()?;
        install(&mut programs, &world())?;
        programs.attach("nf_egress_l2", near, TcAttachType::Egress)?;
        run(&mut Bench { programs, near: Wire::open(near)?, far: Wire::open(far)?, ifindex: near })
    })
}

fn client(sixth: bool) -> IpAddr {
    if sixth { "2001:db8::5" } else { "192.0.2.5" }.parse().expect("an address")
}

fn frame(sixth: bool, node: u32, transport: Transport, payload: usize) -> Frame {
    let mut frame = Frame::new(client(sixth), if sixth { v6(node) } else { v4(node) }, transport);
    frame.payload = (0..payload).map(|at| at as u8).collect();
    frame
}

fn segment() -> Transport {
    Transport::Tcp { seq: 7, ack: ACK, flags: 0x18 }
}

fn contains(frame: &[u8], ip: IpAddr) -> bool {
    match ip {
        IpAddr::V4(ip) => frame.windows(4).any(|window| window == ip.octets()),
        IpAddr::V6(ip) => frame.windows(16).any(|window| window == ip.octets()),
    }
}

fn sum(bytes: &[u8]) -> u16 {
    let mut total: u64 =
        bytes.chunks(2).map(|pair| u64::from(pair[0]) << 8 | u64::from(*pair.get(1).unwrap_or(&0))).sum();
    while total > 0xffff {
        total = (total & 0xffff) + (total >> 16);
    }
    total as u16
}

/// The pseudo header's sum, not complemented, which the stack leaves in the checksum field of a CHECKSUM_PARTIAL packet.
fn pseudo(frame: &Frame, protocol: u8, len: usize) -> [u8; 2] {
    let address = |ip: IpAddr| match ip {
        IpAddr::V4(ip) => ip.octets().to_vec(),
        IpAddr::V6(ip) => ip.octets().to_vec(),
    };
    let words =
        [address(frame.src), address(frame.dst), vec![0, protocol], (len as u16).to_be_bytes().to_vec()];
    sum(&words.concat()).to_be_bytes()
}

/// The frame as the stack gives it to a device, with the checksum left to that device.
fn partial(frame: &Frame, protocol: u8, field: usize) -> (Offload, Vec<u8>) {
    let mut bytes = frame.bytes();
    let extensions: usize = frame.extensions.iter().map(|(_, bytes)| bytes.len()).sum();
    let header = if frame.src.is_ipv4() { 20 + frame.options.len() } else { 40 + extensions };
    let start = frame.l3() + header;
    let len = bytes.len() - start;
    bytes[start + field..start + field + 2].copy_from_slice(&pseudo(frame, protocol, len));
    let offload = Offload {
        checksum: Some((start as u16, field as u16)),
        linear: (start + 40).min(bytes.len()) as u16,
        ..Offload::default()
    };
    (offload, bytes)
}

impl Bench {
    /// Sends a frame, and receives the answer that comes back by the device.
    fn answered(&mut self, asked: &Frame, offload: Offload, bytes: &[u8]) -> Result<(Offload, Vec<u8>)> {
        self.near.send(offload, bytes)?;
        let from = asked.dst;
        let to = asked.src;
        let found = self.near.receive(SOON, |frame| contains(frame, from) && contains(frame, to));
        let failed =
            self.programs.counter(Reason::Failed)?.packets + self.programs.counter(Reason::Handed)?.packets;
        found.with_context(|| format!("no answer; {failed} handed over or failed"))
    }

    /// Sends a frame, and checks the event that hands the packet over.
    fn handed(&mut self, offload: Offload, bytes: &[u8]) -> Result<()> {
        let before = self.programs.counter(Reason::Handed)?.packets;
        self.near.send(offload, bytes)?;
        ensure!(
            self.programs.counter(Reason::Handed)?.packets == before + 1,
            "the packet was not handed over"
        );
        let events = self.programs.events()?;
        let [event] = events.as_slice() else { anyhow::bail!("{} events", events.len()) };
        ensure!(event.kind == EventKind::Answer as u32 && event.ifindex == self.ifindex, "{event:?}");
        ensure!(event.packet_len as usize == bytes.len(), "{event:?}");
        let head = &bytes[..bytes.len().min(HEAD_LEN)];
        ensure!(event.packet() == head, "the packet was changed before it was handed over: {event:?}");
        Ok(())
    }
}

#[test]
fn full_checksums() -> Result<()> {
    bench("full", |bench| {
        for sixth in [false, true] {
            for (transport, answer) in
                [(segment(), ExpectedAnswer::Reset(ACK)), (Transport::Udp, ExpectedAnswer::Unreachable)]
            {
                for payload in [0, 1, 700, 3_000] {
                    let asked = frame(sixth, REFUSE, transport.clone(), payload);
                    let (offload, answered) = bench.answered(&asked, Offload::default(), &asked.bytes())?;
                    ensure!(
                        offload.checksum.is_none(),
                        "the answer's checksum is left to the device: {offload:?}"
                    );
                    check(&asked, answer, &answered)
                        .with_context(|| format!("{transport:?}, {payload} bytes"))?;
                }
            }
        }
        Ok(())
    })
}

#[test]
fn checksums_left_to_the_device() -> Result<()> {
    bench("partial", |bench| {
        for sixth in [false, true] {
            for payload in [0, 1, 700, 8_000] {
                let asked = frame(sixth, REFUSE, segment(), payload);
                let (mut offload, bytes) = partial(&asked, 6, 16);
                if payload == 8_000 {
                    offload.gso = Some((if sixth { TCPV6 } else { TCPV4 }, 1_400));
                }
                let (left, mut answered) = bench.answered(&asked, offload, &bytes)?;
                let start = if sixth { 54 } else { 34 };
                ensure!(
                    left.checksum == Some((start, 16)),
                    "the checksum is no longer left to the device: {left:?}"
                );
                ensure!(left.gso.is_none(), "the RST is a GSO packet: {left:?}");
                // Completes the checksum as a device does: it sums from `start` on, with the field, and stores the complement.
                let start = usize::from(start);
                ensure!(
                    answered[start + 16..start + 18] == pseudo(&asked, 6, 20),
                    "not the pseudo header's sum"
                );
                let full = !sum(&answered[start..]);
                answered[start + 16..start + 18].copy_from_slice(&full.to_be_bytes());
                check(&asked, ExpectedAnswer::Reset(ACK), &answered)
                    .with_context(|| format!("{payload} bytes"))?;
            }
        }
        Ok(())
    })
}

#[test]
fn what_cannot_be_answered_in_place_is_handed_over_as_it_was() -> Result<()> {
    bench("handed", |bench| {
        for sixth in [false, true] {
            for payload in [0, 1, 100, 3_000] {
                let asked = frame(sixth, REFUSE, Transport::Udp, payload);
                let (offload, bytes) = partial(&asked, 17, 6);
                bench.handed(offload, &bytes).with_context(|| format!("a datagram of {payload} bytes"))?;
                let mut asked = frame(sixth, REFUSE, segment(), payload);
                if sixth {
                    asked.extensions = vec![(60, vec![0; 8])];
                } else {
                    asked.options = vec![1; 8];
                }
                let (offload, bytes) = partial(&asked, 6, 16);
                bench
                    .handed(offload, &bytes)
                    .with_context(|| format!("a segment of {payload} bytes with options"))?;
            }
        }
        Ok(())
    })
}

/// A segment whose checksum, which is left to the device, begins far behind the headers. The kernel refuses to trim such a packet (`__bpf_skb_min_len` in
/// net/core/filter.c, EINVAL), so it cannot become an answer.
fn untrimmable(sixth: bool) -> (Frame, Offload, Vec<u8>) {
    let asked = frame(sixth, REFUSE, segment(), 200);
    let (_, bytes) = partial(&asked, 6, 16);
    let end = bytes.len() as u16;
    let offload = Offload { checksum: Some((end - 20, 4)), linear: end, ..Offload::default() };
    (asked, offload, bytes)
}

#[test]
fn what_a_helper_refuses_to_trim_is_handed_over_or_counted_as_failed() -> Result<()> {
    bench("untrimmed", |bench| {
        for sixth in [false, true] {
            let (asked, offload, bytes) = untrimmable(sixth);
            bench.handed(offload, &bytes).context("while the ring buffer has room")?;
            // If the ring buffer is full the packet cannot be handed over either.
            let mut plain = asked.clone();
            plain.extensions = if sixth { vec![(60, vec![0; 8])] } else { Vec::new() };
            plain.options = if sixth { Vec::new() } else { vec![1; 8] };
            plain.transport = Transport::Udp;
            let before = bench.programs.counter(Reason::Failed)?.packets;
            while bench.programs.counter(Reason::Failed)?.packets == before {
                let verdict = bench.programs.run("nf_egress_l2", &plain.bytes())?.verdict;
                ensure!(verdict == TC_DROP, "verdict {verdict} of a datagram that fills the ring buffer");
            }
            let counts = |bench: &Bench| -> Result<Vec<u64>> {
                Reason::ALL.iter().map(|reason| Ok(bench.programs.counter(*reason)?.packets)).collect()
            };
            let mut expected = counts(bench)?;
            bench.near.send(offload, &bytes)?;
            expected[Reason::Failed as usize] += 1;
            let found = counts(bench)?;
            ensure!(found == expected, "counters: expected {expected:?}, found {found:?}");
            // The packet neither passed nor was answered: the next packets of its client arrive first.
            let mut healthy = frame(sixth, HEALTHY, segment(), 100);
            healthy.sport = 40_002;
            bench.near.send(Offload::default(), &healthy.bytes())?;
            let client = asked.src;
            let (_, passed) = bench.far.receive(SOON, |frame| contains(frame, client))?;
            ensure!(passed == healthy.bytes(), "another packet passed: {passed:02x?}");
            let mut next = frame(sixth, REFUSE, segment(), 100);
            next.sport = 40_003;
            let (_, answered) = bench.answered(&next, Offload::default(), &next.bytes())?;
            check(&next, ExpectedAnswer::Reset(ACK), &answered).context("the next segment")?;
            bench.programs.events()?;
        }
        Ok(())
    })
}

#[test]
fn headers_outside_the_linear_part() -> Result<()> {
    bench("pages", |bench| {
        let pages = Offload { linear: 14, ..Offload::default() };
        for sixth in [false, true] {
            for tags in [vec![], vec![0x8100], vec![0x88a8, 0x8100]] {
                for (transport, answer) in
                    [(segment(), ExpectedAnswer::Reset(ACK)), (Transport::Udp, ExpectedAnswer::Unreachable)]
                {
                    let mut asked = frame(sixth, REFUSE, transport.clone(), 5_000);
                    asked.tags = tags.clone();
                    let (_, answered) = bench.answered(&asked, pages, &asked.bytes())?;
                    // The kernel takes the first tag out of the frame before a packet socket sees it.
                    let mut seen = asked.clone();
                    if !tags.is_empty() {
                        seen.tags.remove(0);
                    }
                    check_inner(&seen, &tags, answer, &answered)
                        .with_context(|| format!("{transport:?}, tags {tags:x?}"))?;
                }
            }
            let asked = frame(sixth, HEALTHY, segment(), 5_000);
            bench.near.send(pages, &asked.bytes())?;
            let to = asked.dst;
            let (_, passed) = bench.far.receive(SOON, |frame| contains(frame, to))?;
            ensure!(passed == asked.bytes(), "a packet to a healthy node was changed");
        }
        ensure!(bench.programs.counter(Reason::Unparsed)?.packets == 0, "a packet was not parsed");
        Ok(())
    })
}

fn check_inner(seen: &Frame, tags: &[u16], answer: ExpectedAnswer, answered: &[u8]) -> Result<()> {
    if tags.len() < 2 {
        return check(seen, answer, answered);
    }
    // The two tags have different VLAN ids.
    let mut renumbered = answered.to_vec();
    renumbered[14..16].copy_from_slice(&seen.bytes()[14..16]);
    ensure!(answered[14..16] == (0x6000 | (VLAN + 1)).to_be_bytes(), "the inner tag was changed");
    check(seen, answer, &renumbered)
}

#[test]
fn an_answer_does_not_carry_the_mark_of_what_it_answers() -> Result<()> {
    let counters = |ns: &Netns| ns.exec("nft list counters");
    let ns = Netns::new("mark")?;
    ns.ip("link add w0 type veth peer name w1\nlink set w0 up\nlink set w1 up")?;
    ns.nft(MARKS)?;
    let near = ns.ifindex("w0")?;
    ns.run(move || -> Result<()> {
        set_forwarding(false)?;
        let mut programs = Programs::load()?;
        install(&mut programs, &world())?;
        programs.attach("nf_egress_l2", near, TcAttachType::Egress)?;
        let wire = Wire::open(near)?;
        wire.mark(0x4000)?;
        for transport in [segment(), Transport::Udp] {
            let asked = frame(false, REFUSE, transport, 100);
            wire.send(Offload::default(), &asked.bytes())?;
            wire.receive(SOON, |frame| contains(frame, asked.dst) && contains(frame, asked.src))?;
        }
        Ok(())
    })?;
    let found = counters(&ns)?;
    let packets = |name: &str| {
        found
            .split(name)
            .nth(1)
            .and_then(|rest| rest.split("packets ").nth(1)?.split(' ').next()?.parse::<u64>().ok())
    };
    ensure!(packets("counter marked") == Some(0) && packets("counter clean") == Some(2), "{found}");
    Ok(())
}
