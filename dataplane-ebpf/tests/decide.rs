//! The decision, rule by rule.
use nodefence_common::{
    Action, Addr, Reason, Verdict,
    packet::{Packet, marks, protocol, tcp_flags},
};
use nodefence_ebpf::{
    decide::{Decision, Node, Rejection, Scope, Standing, decide, portless, rescuable, standing, unicast},
    limit::{SECOND, take, take_of_sender},
};

fn node() -> Node {
    Node { verdict: Verdict::Flagged as u32, action: Action::Refuse as u32, generation: 4, until: 1_000 }
}

#[test]
fn a_verdict_counts_up_to_its_deadline() {
    assert_eq!(standing(&node(), 4, 999), Standing::Subject(Action::Refuse));
    assert_eq!(standing(&node(), 4, 1_000), Standing::Counted(Reason::Lapsed));
    assert_eq!(standing(&node(), 3, 999), Standing::Counted(Reason::Stale));
    assert_eq!(standing(&Node { verdict: 0, ..node() }, 3, 5_000), Standing::Pass);
    assert_eq!(standing(&Node { action: Action::Ignore as u32, ..node() }, 4, 0), Standing::Pass);
    assert_eq!(
        standing(&Node { action: 99, ..node() }, 4, 0),
        Standing::Pass,
        "an action of another version"
    );
}

fn packet(protocol: u8, kind: u8) -> Packet {
    Packet {
        src: Addr::v4([10, 1, 0, 9]),
        dst: Addr::v4([10, 244, 1, 7]),
        seq: 100,
        ack: 777,
        payload: 10,
        protocol,
        kind,
        marks: marks::TRANSPORT,
        ..Packet::empty()
    }
}

fn refused(packet: &Packet) -> Decision {
    decide(packet, Scope::Address, Action::Refuse)
}

#[test]
fn segments_are_answered_with_the_number_the_sender_waits_for() {
    use tcp_flags::{ACK, FIN, RST, SYN};
    let answer = |flags| refused(&packet(protocol::TCP, flags));
    let reset = Decision::Answer(Rejection::Reset { seq: 777 });
    let refuse = |ack| Decision::Answer(Rejection::Refuse { ack });
    assert_eq!([ACK, ACK | SYN, ACK | FIN].map(answer), [reset; 3]);
    assert_eq!(answer(SYN), refuse(111));
    assert_eq!(answer(FIN), refuse(111));
    assert_eq!(answer(SYN | FIN), refuse(112));
    assert_eq!(answer(0), refuse(110));
    assert_eq!([RST, RST | ACK].map(answer), [Decision::Drop(Reason::Dropped); 2]);
}

#[test]
fn datagrams_get_port_unreachable_and_the_rest_nothing() {
    assert_eq!(refused(&packet(protocol::UDP, 0)), Decision::Answer(Rejection::Unreachable));
    for other in [protocol::SCTP, protocol::ICMP, protocol::ICMPV6, 50, 4] {
        assert_eq!(refused(&packet(other, 8)), Decision::Drop(Reason::Dropped), "protocol {other}");
    }
}

#[test]
fn neighbour_discovery_always_passes() {
    for action in [Action::Refuse, Action::Drop, Action::Observe] {
        for kind in 0..=255 {
            let packet =
                Packet { v6: true, src: Addr::v6([0xfd; 16]), dst: Addr::v6([0xfd; 16]), ..packet(58, kind) };
            let passed =
                decide(&packet, Scope::Address, action) == Decision::Counted(Reason::NeighbourDiscovery);
            assert_eq!(passed, (133..=137).contains(&kind), "{action:?}, type {kind}");
        }
    }
}

#[test]
fn nothing_is_answered_that_must_not_be() {
    for mark in [marks::LINK_GROUP, marks::WAYPOINT] {
        let packet = Packet { marks: marks::TRANSPORT | mark, ..packet(protocol::TCP, tcp_flags::ACK) };
        assert_eq!(refused(&packet), Decision::Drop(Reason::Dropped));
    }
    let fragment = Packet { marks: marks::FRAGMENT, ..packet(protocol::TCP, 0) };
    assert_eq!(refused(&fragment), Decision::Drop(Reason::FragmentDropped));
    let source = Packet { src: Addr::v4([224, 0, 0, 1]), ..packet(protocol::TCP, tcp_flags::ACK) };
    assert_eq!(refused(&source), Decision::Drop(Reason::Dropped));
}

#[test]
fn drop_and_observe_do_what_they_say() {
    for protocol in [protocol::TCP, protocol::UDP, 50] {
        let packet = packet(protocol, tcp_flags::ACK);
        assert_eq!(decide(&packet, Scope::Address, Action::Drop), Decision::Drop(Reason::Dropped));
        assert_eq!(decide(&packet, Scope::Address, Action::Observe), Decision::Counted(Reason::Observed));
        assert_eq!(decide(&packet, Scope::Address, Action::Ignore), Decision::Pass);
    }
}

#[test]
fn what_has_no_port_passes_a_host() {
    let fragment = Packet { marks: marks::FRAGMENT | marks::TRANSPORT, ..packet(protocol::TCP, 0) };
    assert_eq!(portless(&fragment), Some(Decision::Counted(Reason::FragmentPassed)));
    for other in [protocol::ICMP, protocol::ICMPV6, 4, 50] {
        assert_eq!(portless(&packet(other, 0)), Some(Decision::Pass), "protocol {other}");
    }
    for ported in [protocol::TCP, protocol::UDP, protocol::SCTP] {
        assert_eq!(portless(&packet(ported, 0)), None, "protocol {ported}");
    }
}

#[test]
fn unicast_addresses() {
    for (text, expected) in [
        ("10.0.0.1", true),
        ("223.255.255.255", true),
        ("0.0.0.0", false),
        ("0.1.2.3", false),
        ("127.0.0.1", false),
        ("127.255.0.1", false),
        ("224.0.0.1", false),
        ("240.0.0.1", false),
        ("255.255.255.255", false),
        ("2001:db8::1", true),
        ("fe80::1", true),
        ("::2", true),
        ("0:0:1::", true),
        ("::", false),
        ("::1", false),
        ("ff02::1", false),
    ] {
        let ip: core::net::IpAddr = text.parse().expect("an address");
        assert_eq!(unicast(&Addr::from(ip), ip.is_ipv6()), expected, "{text}");
    }
}

#[test]
fn a_budget_is_renewed_each_second() {
    let (mut second, mut spent) = (0, 0);
    let mut granted = |now| take(&mut second, &mut spent, now, 2);
    let at = 5_000_000_000;
    assert_eq!([granted(at), granted(at + 1), granted(at + 999_999_999)], [true, true, false]);
    assert_eq!([granted(at + 1_000_000_000), granted(at + 1_000_000_001)], [true, true]);
    assert!(!take(&mut 0, &mut 0, at, 0), "a budget of zero");
}

#[test]
fn a_sender_has_six_answers_in_a_row_and_then_one_a_second() {
    let at = 5 * SECOND;
    let mut full_at = 0;
    let mut had = |now| {
        let taken = take_of_sender(full_at, now);
        full_at = taken.unwrap_or(full_at);
        taken.is_some()
    };
    let mut in_a_row = |now| (0..20).filter(|_| had(now)).count();
    assert_eq!(in_a_row(at), 6);
    assert_eq!(in_a_row(at + SECOND - 1), 0);
    assert_eq!([in_a_row(at + SECOND), in_a_row(at + SECOND)], [1, 0]);
    assert_eq!(in_a_row(at + 3 * SECOND + SECOND / 2), 2);
    // A second more, and five are there; however long it waits, no more than six.
    assert_eq!([in_a_row(at + 8 * SECOND), in_a_row(at + 900 * SECOND)], [5, 6]);
}

#[test]
fn what_opens_a_connection_and_datagrams_can_be_balanced_anew() {
    use tcp_flags::{ACK, FIN, RST, SYN};
    // Congestion flags and the rest of the byte do not matter.
    for flags in [SYN, SYN | 0xc0, SYN | 0x28] {
        assert!(rescuable(&packet(protocol::TCP, flags)), "{flags:#x}");
    }
    for flags in [0, ACK, FIN, RST, SYN | ACK, SYN | FIN, SYN | RST, 0xe8] {
        assert!(!rescuable(&packet(protocol::TCP, flags)), "{flags:#x}");
    }
    assert!(rescuable(&packet(protocol::UDP, 0)));
    for protocol in [protocol::SCTP, protocol::ICMP, 50] {
        assert!(!rescuable(&packet(protocol, SYN)));
    }
    for (protocol, kind) in [(protocol::TCP, SYN), (protocol::UDP, 0)] {
        for mark in [marks::FRAGMENT, marks::EXTENDED] {
            let mut odd = packet(protocol, kind);
            odd.marks |= mark;
            assert!(!rescuable(&odd), "{protocol}, mark {mark}");
        }
    }
}
