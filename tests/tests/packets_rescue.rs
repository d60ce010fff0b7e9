//! Packets that the programs hand to `rescue` instead of refusing them: which packets, when, and that they arrive whole. All other packets are refused as
//! without rescue.
use std::{
    io::ErrorKind,
    net::{IpAddr, SocketAddr, TcpStream},
    time::Duration,
};

use anyhow::{Context as _, Result, ensure};
use aya::programs::TcAttachType;
use nix::time::{ClockId, clock_gettime};
use nodefence_common::{RESCUE_BYTES, RESCUE_MAX, RESCUE_SHORT, RESCUE_SHORT_FRAME, Reason, RescueHead};
use nodefence_tests::{
    Netns,
    client::wait_until,
    packet::{Programs, TC_DROP, TC_PASS, TC_REDIRECT, own_network, set_forwarding},
    packet_frame::{Frame, Transport},
    packet_wire::{Offload, Wire},
    packet_world::{
        DROP, HEALTHY, HOST, HOST_PORT, IFINDEX, LAPSED, OBSERVE, REFUSE, install, v4, v6, world,
    },
};

const SYN: u8 = 2;
const SECOND: u64 = 1_000_000_000;

fn now() -> Result<u64> {
    let time = clock_gettime(ClockId::CLOCK_MONOTONIC)?;
    Ok(time.tv_sec() as u64 * SECOND + time.tv_nsec() as u64)
}

/// Loads the programs in the thread's network namespace.
fn here() -> Result<Programs> {
    let mut programs = Programs::load()?;
    install(&mut programs, &world())?;
    Ok(programs)
}

fn loaded() -> Result<Programs> {
    own_network(false)?;
    here()
}

fn enable_rescue(programs: &mut Programs) -> Result<()> {
    programs.take_rescues_until(now()? + 600 * SECOND)
}

fn rescuing() -> Result<Programs> {
    let mut programs = loaded()?;
    enable_rescue(&mut programs)?;
    Ok(programs)
}

/// The source address. In a frame that starts with the IP header the kernel reads two bytes of this address as the ethertype.
fn client(sixth: bool) -> IpAddr {
    if sixth { "2001:db8:86dd::5" } else { "8.0.5.5" }.parse().expect("an address")
}

fn frame(sixth: bool, node: u32, transport: Transport) -> Frame {
    Frame::new(client(sixth), if sixth { v6(node) } else { v4(node) }, transport)
}

fn tcp(flags: u8) -> Transport {
    Transport::Tcp { seq: 7, ack: 9, flags }
}

/// Runs a packet that must be handed over as it is.
fn handed(programs: &mut Programs, program: &str, asked: &Frame, node: u32) -> Result<RescueHead> {
    let bytes = asked.bytes();
    let before = programs.counter(Reason::Rescue)?;
    let outcome = programs.run(program, &bytes)?;
    ensure!(outcome.verdict == TC_DROP && outcome.packet == bytes, "{outcome:?}");
    let after = programs.counter(Reason::Rescue)?;
    let counted = (after.packets - before.packets, after.bytes - before.bytes);
    ensure!(counted == (1, (bytes.len() - asked.l3()) as u64), "counted as {counted:?}");
    let mut records = programs.rescues()?;
    ensure!(records.len() == 1, "{} records", records.len());
    let (head, frame) = records.remove(0);
    ensure!(frame == bytes, "another packet was handed over: {frame:02x?}");
    ensure!(head.ifindex == IFINDEX && head.ingress_ifindex == 0 && head.node == node, "{head:?}");
    ensure!(usize::from(head.l3_offset) == asked.l3(), "{head:?}");
    ensure!(head.vlan_tci == 0 && head.vlan_proto == 0 && head.zero == 0, "{head:?}");
    ensure!(head.time_ns <= now()? && head.time_ns + 60 * SECOND > now()?, "{head:?}");
    Ok(head)
}

/// Runs a packet that must not be handed over, and must have this verdict and be counted by this reason.
fn not_handed(programs: &mut Programs, asked: &Frame, verdict: u32, reason: Reason) -> Result<()> {
    let before = programs.counter(reason)?.packets;
    let handed = programs.counter(Reason::Rescue)?.packets;
    let outcome = programs.run("nf_egress_l2", &asked.bytes())?;
    ensure!(outcome.verdict == verdict, "{asked:?}: verdict {}", outcome.verdict);
    ensure!(programs.counter(reason)?.packets == before + 1, "{asked:?} was not counted as {reason:?}");
    let more = programs.counter(Reason::Rescue)?.packets - handed;
    ensure!(more == 0 && programs.rescues()?.is_empty(), "{asked:?}");
    Ok(())
}

#[test]
fn what_opens_a_connection_and_datagrams_are_handed_over_whole() -> Result<()> {
    let mut programs = rescuing()?;
    for sixth in [false, true] {
        for transport in [tcp(SYN), tcp(SYN | 0xc0), Transport::Udp] {
            // Payloads below, at and above the size of a short record, and the longest one.
            let header =
                if sixth { 40 } else { 20 } + if matches!(transport, Transport::Udp) { 8 } else { 20 };
            let short = RESCUE_SHORT_FRAME - 14 - header;
            for payload in [0, 1, short, short + 1, 1_460, RESCUE_MAX as usize - header] {
                for tags in [vec![], vec![0x8100], vec![0x88a8, 0x8100]] {
                    let mut asked = frame(sixth, REFUSE, transport.clone());
                    asked.payload = (0..payload).map(|at| at as u8).collect();
                    asked.tags = tags;
                    handed(&mut programs, "nf_egress_l2", &asked, REFUSE)
                        .with_context(|| format!("{payload} bytes of {transport:?}, {:x?}", asked.tags))?;
                }
                let mut asked = frame(sixth, REFUSE, transport.clone());
                // The kernel treats the first 14 bytes as an Ethernet header, and wants an IP header behind them.
                asked.payload = vec![0x5a; payload.max(40)];
                asked.macs = None;
                handed(&mut programs, "nf_egress_l3", &asked, REFUSE).context("no link layer")?;
            }
            let mut host = frame(sixth, HOST, transport);
            host.dport = HOST_PORT;
            handed(&mut programs, "nf_egress_l2", &host, HOST).context("a host-network backend")?;
        }
    }
    Ok(())
}

#[test]
fn what_cannot_be_balanced_anew_is_treated_as_ever() -> Result<()> {
    let mut programs = rescuing()?;
    for sixth in [false, true] {
        let refuse = |transport| frame(sixth, REFUSE, transport);
        for (flags, reason) in [
            (SYN | 16, Reason::Reset),
            (16, Reason::Reset),
            (0, Reason::Refused),
            (1, Reason::Refused),
            (SYN | 1, Reason::Refused),
        ] {
            not_handed(&mut programs, &refuse(tcp(flags)), TC_REDIRECT, reason)?;
        }
        not_handed(&mut programs, &refuse(tcp(4)), TC_DROP, Reason::Dropped)?;
        not_handed(&mut programs, &refuse(Transport::Sctp), TC_DROP, Reason::Dropped)?;
        for transport in [tcp(SYN), Transport::Udp] {
            let udp = matches!(transport, Transport::Udp);
            let reason = if udp { Reason::Unreachable } else { Reason::Refused };
            let header = if sixth { 40 } else { 20 } + if udp { 8 } else { 20 };
            let mut long = refuse(transport.clone());
            long.payload = vec![1; RESCUE_MAX as usize + 1 - header];
            not_handed(&mut programs, &long, TC_REDIRECT, reason).context("one byte too long")?;

            let mut piece = refuse(transport.clone());
            let mut extended = refuse(transport.clone());
            if sixth {
                piece.extensions = vec![Frame::fragment_header(0, true)];
                extended.extensions = vec![(60, vec![0; 8])];
            } else {
                piece.fragment = Some((0, true));
                extended.options = vec![1; 8];
            }
            not_handed(&mut programs, &piece, TC_DROP, Reason::FragmentDropped)?;
            // User space answers a datagram with IP options or extension headers.
            let (verdict, reason) = if udp { (TC_DROP, Reason::Handed) } else { (TC_REDIRECT, reason) };
            not_handed(&mut programs, &extended, verdict, reason).context("behind options")?;

            for (node, verdict, reason) in [
                (DROP, TC_DROP, Reason::Dropped),
                (OBSERVE, TC_PASS, Reason::Observed),
                (LAPSED, TC_PASS, Reason::Lapsed),
            ] {
                not_handed(&mut programs, &frame(sixth, node, transport.clone()), verdict, reason)?;
            }
            let healthy = frame(sixth, HEALTHY, transport);
            ensure!(programs.run("nf_egress_l2", &healthy.bytes())?.verdict == TC_PASS);
            ensure!(programs.rescues()?.is_empty(), "a healthy node's packet was handed over");
        }
    }
    Ok(())
}

#[test]
fn nobody_who_takes_them_means_refused_in_the_same_packet() -> Result<()> {
    let mut programs = loaded()?;
    let asked = |transport| frame(false, REFUSE, transport);
    let refused = |programs: &mut Programs| -> Result<()> {
        not_handed(programs, &asked(tcp(SYN)), TC_REDIRECT, Reason::Refused)?;
        not_handed(programs, &asked(Transport::Udp), TC_REDIRECT, Reason::Unreachable)
    };
    refused(&mut programs).context("before the first lease of rescue")?;
    programs.take_rescues_until(now()?)?;
    refused(&mut programs).context("with a lease that is over")?;
    programs.take_rescues_until(now()? + 100_000_000)?;
    std::thread::sleep(Duration::from_millis(120));
    refused(&mut programs).context("after the lease has lapsed")?;
    programs.take_rescues_until(u64::MAX)?;
    handed(&mut programs, "nf_egress_l2", &asked(tcp(SYN)), REFUSE).context("rescue")?;
    Ok(())
}

#[test]
fn beyond_the_budget_means_refused_in_the_same_packet() -> Result<()> {
    let mut programs = rescuing()?;
    let syn = frame(false, REFUSE, tcp(SYN));
    let hand = |programs: &mut Programs| handed(programs, "nf_egress_l2", &syn, REFUSE).map(drop);
    let refuse = |programs: &mut Programs| not_handed(programs, &syn, TC_REDIRECT, Reason::Refused);
    programs.allow_rescues(2)?;
    hand(&mut programs)?;
    hand(&mut programs)?;
    refuse(&mut programs)?;
    // A packet that is not for rescue takes nothing from the budget.
    not_handed(&mut programs, &frame(false, REFUSE, tcp(16)), TC_REDIRECT, Reason::Reset)?;
    ensure!(programs.rescues_asked()? == 3, "{} rescues were asked for", programs.rescues_asked()?);
    // Three were asked for, so a budget of four leaves one more.
    programs.allow_rescues(4)?;
    hand(&mut programs)?;
    refuse(&mut programs)
}

#[test]
fn a_full_ring_means_refused_in_the_same_packet() -> Result<()> {
    let mut programs = rescuing()?;
    let mut asked = frame(false, REFUSE, tcp(SYN));
    asked.payload.clear();
    // A record has a header of 8 bytes in the ring (BPF_RINGBUF_HDR_SZ, kernel/bpf/ringbuf.c).
    let room = u64::from(RESCUE_BYTES) / (RESCUE_SHORT as u64 + 8);
    let mut handed_over = 0;
    let mut refused = 0;
    for _ in 0..room + 100 {
        match programs.run("nf_egress_l2", &asked.bytes())?.verdict {
            TC_DROP => handed_over += 1,
            TC_REDIRECT => refused += 1,
            other => anyhow::bail!("verdict {other}"),
        }
    }
    ensure!(handed_over + 1 >= room && refused >= 100, "{handed_over} of {room}, {refused} refused");
    ensure!(
        programs.counter(Reason::Rescue)?.packets == handed_over,
        "the counter differs from the packets handed over"
    );
    ensure!(
        programs.counter(Reason::Refused)?.packets == refused,
        "the counter differs from the refused packets"
    );
    ensure!(programs.rescues()?.len() as u64 == handed_over, "records are missing");
    handed(&mut programs, "nf_egress_l2", &asked, REFUSE).context("no room after the ring was read")?;
    Ok(())
}

/// Packets that BPF_PROG_TEST_RUN cannot make: a checksum left to the device, headers outside the linear part, a datagram that a later step segments (GSO).
#[test]
fn skbs_of_the_stack_are_handed_over_too() -> Result<()> {
    let ns = Netns::new("rescue-wire")?;
    ns.ip("link add w0 mtu 9000 type veth peer name w1 mtu 9000\nlink set w0 up\nlink set w1 up")?;
    let near = ns.ifindex("w0")?;
    ns.run(move || -> Result<()> {
        set_forwarding(false)?;
        let mut programs = here()?;
        enable_rescue(&mut programs)?;
        programs.attach("nf_egress_l2", near, TcAttachType::Egress)?;
        let wire = Wire::open(near)?;
        for sixth in [false, true] {
            let start = if sixth { 54 } else { 34 };
            for (transport, field) in [(tcp(SYN), 16), (Transport::Udp, 6)] {
                let mut asked = frame(sixth, REFUSE, transport);
                asked.payload = vec![3; 300];
                for offload in [
                    Offload::default(),
                    Offload { linear: 14, ..Offload::default() },
                    Offload { checksum: Some((start, field)), linear: start + 20, ..Offload::default() },
                ] {
                    wire.send(offload, &asked.bytes())?;
                    let records = programs.rescues()?;
                    let [(head, frame)] = records.as_slice() else {
                        anyhow::bail!("{} records of {offload:?}", records.len());
                    };
                    ensure!(head.ifindex == near && *frame == asked.bytes(), "{offload:?}: {head:?}");
                }
            }
            let mut many = frame(sixth, REFUSE, Transport::Udp);
            many.payload = vec![3; 1_200];
            // VIRTIO_NET_HDR_GSO_UDP_L4 (Linux 6.2 takes it from packet sockets).
            let gso = Offload { checksum: Some((start, 6)), linear: start + 8, gso: Some((5, 400)) };
            if wire.send(gso, &many.bytes()).is_ok() {
                ensure!(programs.rescues()?.is_empty(), "a GSO datagram was handed over");
            }
        }
        Ok(())
    })
}

/// Rules by which SYNPROXY sends a SYN that belongs to no socket: it opens the connection to the server by itself, once the client has answered its SYN|ACK.
const SYNPROXY: &str = "table ip guard {
    chain tracked {
        type filter hook prerouting priority raw;
        iifname c1 tcp flags & (fin | syn | rst | ack) == syn notrack
    }
    chain proxied {
        type filter hook forward priority filter;
        iifname c1 ct state invalid,untracked synproxy mss 1460 wscale 7 timestamp sack-perm
    }
}
";

/// A packet that came in by no device is not always a local socket's. A SYN of SYNPROXY must be refused: if the agent sent it again by a socket, SYNPROXY would
/// not know it.
#[test]
fn what_no_socket_sent_is_refused() -> Result<()> {
    let client = Netns::new("proxied")?;
    let ns = Netns::new("synproxy")?;
    client.veth("c0", &ns, "c1")?;
    client.ip("addr add 192.0.2.2/24 dev c0\nlink set c0 up")?;
    let backend = v4(REFUSE);
    ns.ip(&format!(
        "addr add 192.0.2.1/24 dev c1
         link set c1 up
         link add w0 type veth peer name w1
         link set w0 up
         link set w1 up
         addr add 198.51.100.1/24 dev w0
         route add {backend} dev w0
         neigh add {backend} lladdr 02:00:00:00:00:01 dev w0 nud permanent"
    ))?;
    client.ip("route add default via 192.0.2.1")?;
    ns.sysctl("ipv4/ip_forward", "1")?;
    ns.nft(SYNPROXY)?;
    // With 1 conntrack would accept the client's ACK, whose SYN it did not see, as a connection.
    ns.sysctl("netfilter/nf_conntrack_tcp_loose", "0")?;
    let near = ns.ifindex("w0")?;
    let backend = SocketAddr::new(backend, 80);
    ns.run(move || -> Result<()> {
        let mut programs = here()?;
        enable_rescue(&mut programs)?;
        programs.attach("nf_egress_l2", near, TcAttachType::Egress)?;
        // The SYN of a local socket gets no answer here.
        let _none = TcpStream::connect_timeout(&backend, Duration::from_millis(200));
        let own = programs.rescues()?;
        ensure!(
            !own.is_empty() && own.iter().all(|(head, _)| head.ingress_ifindex == 0),
            "of a local socket: {own:?}"
        );
        let proxied = client.run(move || TcpStream::connect_timeout(&backend, Duration::from_secs(5)));
        // SYNPROXY has answered the client. The RST to its own SYN may come to the client at once.
        let told = proxied.as_ref().map_or_else(|error| error.kind() == ErrorKind::ConnectionReset, |_| true);
        ensure!(told, "{proxied:?}");
        let counted = |reason| programs.counter(reason).map_or(0, |counter| counter.packets);
        let met = || counted(Reason::Refused) + counted(Reason::Rescue) > own.len() as u64;
        wait_until("SYNPROXY's own SYN", Duration::from_secs(5), met)?;
        let refused = counted(Reason::Refused);
        let handed = programs.rescues()?;
        ensure!(
            handed.is_empty() && refused > 0,
            "{refused} refused; handed over as a local socket's: {handed:?}"
        );
        Ok(())
    })
}
