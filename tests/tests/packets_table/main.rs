//! A table of real packets of every protocol, header shape and verdict. They run through TC with and without an Ethernet header, and through XDP. An
//! independent library checks each field of the answers.
use anyhow::{Context as _, Result, ensure};
use nodefence_common::{Counter, Reason};
use nodefence_tests::{
    packet::{Programs, TC_DROP, TC_PASS, TC_REDIRECT, XDP, XDP_DROP, XDP_PASS, XDP_TX, own_network},
    packet_check::{ExpectedAnswer, check, check_padded},
    packet_frame::{Frame, OWN_MAC, Transport},
    packet_world::{
        ANSWER_PORT, DROP, EXEMPT, EXEMPT_PORT, HEALTHY, HOST, HOST_PORT, IGNORE, LAPSED, OBSERVE, REFUSE,
        STALE, install, world,
    },
};

mod case;
mod shapes;

use case::{
    ACK_FLAG, Case, FIN_FLAG, PAYLOAD, PSH_FLAG, RST_FLAG, SEQ, SYN_FLAG, Table, Want, client, frame, refuse,
    reset, tcp,
};
use shapes::shapes;

fn protocols(table: &mut Table, sixth: bool) {
    let to = |transport| frame(sixth, REFUSE, transport);
    table.add("a segment with data", to(tcp(ACK_FLAG | PSH_FLAG)), reset());
    table.edited("a bare ACK", to(tcp(ACK_FLAG)), |frame| frame.payload.clear(), reset());
    table.add("a segment that ends", to(tcp(ACK_FLAG | FIN_FLAG)), reset());
    table.add("SYN and ACK", to(tcp(ACK_FLAG | SYN_FLAG)), reset());
    table.edited("TCP options", to(tcp(ACK_FLAG)), |frame| frame.tcp_options = vec![1; 40], reset());
    table.edited(
        "a SYN",
        to(tcp(SYN_FLAG)),
        |frame| frame.payload.clear(),
        Want::Answer(ExpectedAnswer::Refuse(SEQ + 1)),
    );
    table.add("a SYN with data", to(tcp(SYN_FLAG)), refuse(1));
    table.add("no flags", to(tcp(0)), refuse(0));
    table.add("FIN alone", to(tcp(FIN_FLAG)), refuse(1));
    let wrapping = Transport::Tcp { seq: u32::MAX, ack: 0, flags: SYN_FLAG };
    table.add("a sequence that wraps", to(wrapping), Want::Answer(ExpectedAnswer::Refuse(PAYLOAD)));
    table.add("a RST", to(tcp(RST_FLAG)), Want::Drop(Reason::Dropped));
    table.add("RST and ACK", to(tcp(RST_FLAG | ACK_FLAG)), Want::Drop(Reason::Dropped));
    table.add("a datagram", to(Transport::Udp), Want::Answer(ExpectedAnswer::Unreachable));
    table.edited(
        "an empty datagram",
        to(Transport::Udp),
        |frame| frame.payload.clear(),
        Want::Answer(ExpectedAnswer::Unreachable),
    );
    let long = |frame: &mut Frame| frame.payload = vec![0x5a; 1_200];
    table.edited("a long datagram", to(Transport::Udp), long, Want::Answer(ExpectedAnswer::Unreachable));
    table.edited("a long segment", to(tcp(ACK_FLAG)), long, reset());
    table.add("SCTP", to(Transport::Sctp), Want::Drop(Reason::Dropped));
    table.add("ESP", to(Transport::Raw(50)), Want::Drop(Reason::Dropped));
    table.add(
        "an echo request",
        to(Transport::Icmp(if sixth { 128 } else { 8 })),
        Want::Drop(Reason::Dropped),
    );
    table.add("an ICMP error", to(Transport::Icmp(if sixth { 1 } else { 3 })), Want::Drop(Reason::Dropped));
    if sixth {
        for kind in 133..=137 {
            let want = Want::Counted(Reason::NeighbourDiscovery);
            table.add(&format!("ICMPv6 type {kind}"), to(Transport::Icmp(kind)), want);
        }
        table.add("ICMPv6 type 132", to(Transport::Icmp(132)), Want::Drop(Reason::Dropped));
        table.add("ICMPv6 type 138", to(Transport::Icmp(138)), Want::Drop(Reason::Dropped));
    } else {
        table.add("ICMP type 134 of IPv4", to(Transport::Icmp(134)), Want::Drop(Reason::Dropped));
    }
}

fn verdicts(table: &mut Table, sixth: bool) {
    let ack = || tcp(ACK_FLAG);
    table.add("a healthy node", frame(sixth, HEALTHY, ack()), Want::Pass);
    table.add("no backend", frame(sixth, 99, ack()), Want::Pass);
    table.add("the own node", frame(sixth, IGNORE, ack()), Want::Pass);
    table.add("a lapsed verdict", frame(sixth, LAPSED, ack()), Want::Counted(Reason::Lapsed));
    table.add("an index with a new owner", frame(sixth, STALE, ack()), Want::Counted(Reason::Stale));
    for transport in [ack(), tcp(SYN_FLAG), Transport::Udp, Transport::Sctp] {
        let name = format!("{transport:?}");
        table.add(
            &format!("{name} to drop"),
            frame(sixth, DROP, transport.clone()),
            Want::Drop(Reason::Dropped),
        );
        table.add(
            &format!("{name} to observe"),
            frame(sixth, OBSERVE, transport),
            Want::Counted(Reason::Observed),
        );
    }
    if sixth {
        for node in [DROP, OBSERVE] {
            let want = Want::Counted(Reason::NeighbourDiscovery);
            table.add("neighbour solicitation", frame(true, node, Transport::Icmp(135)), want);
        }
    }
    // Of a host-network backend only the packets to its port are cut.
    let host = |transport, port| {
        let mut frame = frame(sixth, HOST, transport);
        frame.dport = port;
        frame
    };
    table.add("a host-network port", host(ack(), HOST_PORT), reset());
    table.add(
        "a host-network datagram",
        host(Transport::Udp, HOST_PORT),
        Want::Answer(ExpectedAnswer::Unreachable),
    );
    table.add("host-network SCTP", host(Transport::Sctp, HOST_PORT), Want::Drop(Reason::Dropped));
    table.add("another port of the host", host(ack(), 10_250), Want::Pass);
    table.add("another datagram to the host", host(Transport::Udp, 10_250), Want::Pass);
    table.add(
        "a ping of the host",
        host(Transport::Icmp(if sixth { 128 } else { 8 }), HOST_PORT),
        Want::Pass,
    );
    table.add("a tunnel to the host", host(Transport::Raw(4), HOST_PORT), Want::Pass);
    let mut back = host(ack(), 10_250);
    back.sport = HOST_PORT;
    table.add("the port as source", back, Want::Pass);
    exempt(table, sixth);
}

/// Packets to a flagged node that pass because a Service has no other endpoint, for a pod and for the host network.
fn exempt(table: &mut Table, sixth: bool) {
    let to = |node, transport, port| {
        let mut frame = frame(sixth, node, transport);
        frame.dport = port;
        frame
    };
    for node in [EXEMPT, HOST] {
        for transport in [tcp(ACK_FLAG), tcp(SYN_FLAG), tcp(RST_FLAG), Transport::Udp, Transport::Sctp] {
            let name = format!("{transport:?} to an exempt port of node {node}");
            table.add(&name, to(node, transport, EXEMPT_PORT), Want::Counted(Reason::Exempt));
        }
        let mut back = to(node, tcp(ACK_FLAG), HOST_PORT);
        back.sport = EXEMPT_PORT;
        table.add("the exempt port as source", back, reset());
    }
    table.add("a port of an exempt address that is not", to(EXEMPT, tcp(SYN_FLAG), HOST_PORT), refuse(1));
    let datagram = to(EXEMPT, Transport::Udp, HOST_PORT);
    table.add("a datagram to a port that is not exempt", datagram, Want::Answer(ExpectedAnswer::Unreachable));
    let sctp = to(EXEMPT, Transport::Sctp, HOST_PORT);
    table.add("SCTP to a port that is not exempt", sctp, Want::Drop(Reason::Dropped));
    // Answers to the own requests of an exempt backend may have any destination port.
    for transport in [tcp(SYN_FLAG | ACK_FLAG), tcp(ACK_FLAG), tcp(RST_FLAG), Transport::Udp, Transport::Sctp]
    {
        let name = format!("{transport:?} in answer to an exempt address");
        table.add(&name, to(EXEMPT, transport.clone(), ANSWER_PORT), Want::Counted(Reason::Exempt));
        let mut from_cut = to(EXEMPT, transport, ANSWER_PORT);
        from_cut.sport = HOST_PORT;
        table.add(&format!("{name}, from a port that is cut there"), from_cut, Want::Counted(Reason::Exempt));
    }
    table.add("an answer to the host", to(HOST, tcp(SYN_FLAG | ACK_FLAG), ANSWER_PORT), Want::Pass);
    // An exempt flow needs its ICMP errors. A ping passes too.
    let icmp: &[u8] = if sixth { &[1, 2, 128, 135] } else { &[3, 8] };
    for kind in icmp {
        let frame = to(EXEMPT, Transport::Icmp(*kind), 0);
        table.add(&format!("ICMP type {kind} to an exempt address"), frame, Want::Counted(Reason::Exempt));
    }
    table.add("ESP to an exempt address", to(EXEMPT, Transport::Raw(50), 0), Want::Counted(Reason::Exempt));
    for fragment in [(0, true), (185, true), (370, false)] {
        let mut frame = to(EXEMPT, Transport::Udp, HOST_PORT);
        if sixth {
            frame.extensions = vec![Frame::fragment_header(fragment.0, fragment.1)];
        } else {
            frame.fragment = Some(fragment);
        }
        let name = format!("a fragment at {} to an exempt address", fragment.0);
        table.add(&name, frame, Want::Counted(Reason::FragmentPassed));
    }
}

fn table() -> Vec<Case> {
    let mut table = Table::default();
    for sixth in [false, true] {
        protocols(&mut table, sixth);
        verdicts(&mut table, sixth);
        shapes(&mut table, sixth);
    }
    table.0
}

fn counters(programs: &Programs) -> Result<Vec<Counter>> {
    Reason::ALL.iter().map(|reason| programs.counter(*reason)).collect()
}

fn reason(want: Want) -> Option<Reason> {
    match want {
        Want::Pass => None,
        Want::Counted(reason) | Want::Drop(reason) => Some(reason),
        Want::Answer(ExpectedAnswer::Reset(_)) => Some(Reason::Reset),
        Want::Answer(ExpectedAnswer::Refuse(_)) => Some(Reason::Refused),
        Want::Answer(ExpectedAnswer::Unreachable) => Some(Reason::Unreachable),
    }
}

fn hold(programs: &mut Programs, program: &str, case: &Case, want: Want) -> Result<()> {
    let bytes = case.frame.bytes();
    let before = counters(programs)?;
    let outcome = programs.run(program, &bytes)?;
    let xdp = program == XDP;
    let (pass, drop, answer) =
        if xdp { (XDP_PASS, XDP_DROP, XDP_TX) } else { (TC_PASS, TC_DROP, TC_REDIRECT) };
    let verdict = match want {
        Want::Pass | Want::Counted(_) => pass,
        Want::Drop(_) => drop,
        Want::Answer(_) => answer,
    };
    ensure!(outcome.verdict == verdict, "expected verdict {verdict}, found {}", outcome.verdict);
    match want {
        // The shortest Ethernet frame, without its check sequence (RFC 894, `ETH_ZLEN`).
        Want::Answer(answer) if xdp => check_padded(&case.frame, answer, &outcome.packet, 60)?,
        Want::Answer(answer) => check(&case.frame, answer, &outcome.packet)?,
        _ => ensure!(outcome.packet == bytes, "the packet was changed: {:02x?}", outcome.packet),
    }
    for ((before, after), counted) in before.iter().zip(counters(programs)?).zip(Reason::ALL) {
        let hit = reason(want) == Some(*counted);
        // All bytes of a frame count if its IP header was not found.
        let header = if case.frame.tags.len() > 2 { 0 } else { case.frame.l3() };
        let expected = if hit { (1, (bytes.len() - header) as u64) } else { (0, 0) };
        let found = (after.packets - before.packets, after.bytes - before.bytes);
        ensure!(
            found == expected,
            "{}: expected {expected:?} more packets and bytes, found {found:?}",
            counted.name()
        );
    }
    let handed = programs.events()?.len();
    ensure!(handed == usize::from(matches!(want, Want::Drop(Reason::Handed))), "{handed} events");
    Ok(())
}

fn run(program: &str, adapt: impl Fn(&mut Case) -> bool) -> Result<()> {
    own_network(false)?;
    let mut programs = Programs::load()?;
    install(&mut programs, &world())?;
    let mut done = 0;
    for mut case in table() {
        if adapt(&mut case) {
            let want = case.want;
            hold(&mut programs, program, &case, want).with_context(|| format!("{program}: {}", case.name))?;
            done += 1;
        }
    }
    println!("{program}: {done} packets");
    ensure!(done > 100, "only {done} packets of the table fit {program}");
    Ok(())
}

#[test]
fn egress_with_an_ethernet_header() -> Result<()> {
    run("nf_egress_l2", |_| true)
}

#[test]
fn egress_without_a_link_layer_header() -> Result<()> {
    run("nf_egress_l3", |case| {
        let plain = case.frame.tags.is_empty() && case.frame.macs.is_some_and(|(to, _)| to[0] & 1 == 0);
        case.frame.macs = None;
        let sixth = case.frame.src.is_ipv6();
        // The kernel treats the frame as an Ethernet frame: it reads the ethertype from the source address, and wants 14 bytes more than
        // the IP header (bpf_prog_test_run_skb, Linux 6.18).
        let long = case.frame.bytes().len() >= if sixth { 54 } else { 34 };
        // Without an Ethernet header there is no source MAC address, so no packet is foreign.
        let foreign = matches!(case.want, Want::Counted(Reason::Foreign));
        plain && long && !foreign && case.frame.src == client(sixth)
    })
}

#[test]
fn xdp() -> Result<()> {
    run(XDP, |case| {
        // XDP answers TCP only.
        if matches!(case.want, Want::Answer(ExpectedAnswer::Unreachable) | Want::Drop(Reason::Handed)) {
            case.want = Want::Drop(Reason::Dropped);
        }
        // XDP does not look at the sender, so no packet is foreign.
        if matches!(case.want, Want::Counted(Reason::Foreign)) {
            return false;
        }
        // A group address is never the device's own, and XDP passes such frames.
        let group = case.frame.macs.is_some_and(|(to, _)| to[0] & 1 == 1);
        // TC egress counts passing packets, so XDP does not. Only XDP counts a frame in which no IP header was found.
        if group || matches!(case.want, Want::Counted(_)) && case.frame.tags.len() <= 2 {
            case.want = Want::Pass;
        }
        true
    })
}

#[test]
fn xdp_leaves_frames_to_other_stations_alone() -> Result<()> {
    run(XDP, |case| {
        case.frame.macs = Some(([2, 0, 0, 0, 0, 0x33], OWN_MAC));
        case.want = Want::Pass;
        true
    })
}
