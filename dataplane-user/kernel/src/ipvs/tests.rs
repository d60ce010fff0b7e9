use std::net::{IpAddr, SocketAddr};

use netlink_packet_core::NetlinkBuffer;
use proptest::prelude::*;

use super::{
    Destination, Error, Family, Flags, Forward, Ipvs, Name, Netmask, Protocol, Service, ServiceKey, Tunnel,
    codec::{self, Request},
    flags,
    golden::captured,
    is_loaded,
    read::tidy,
};
use crate::netlink::attributes;

/// Every answer of the capture that a parser here reads.
fn answers() -> Vec<Vec<u8>> {
    captured().into_values().flatten().flat_map(|exchange| exchange.payloads()).collect()
}

/// The attributes inside the attribute `kind` of a payload.
fn inside(payload: &[u8], kind: u16) -> Vec<(u16, Vec<u8>)> {
    let outer = attributes(&payload[4..]).find(|(this, _)| *this == kind);
    outer.map_or_else(Vec::new, |(_, value)| {
        attributes(value).map(|(kind, value)| (kind, value.to_vec())).collect()
    })
}

/// A payload with one more attribute inside its only one.
fn with_attribute(payload: &[u8], kind: u16, value: &[u8]) -> Vec<u8> {
    let mut out = payload.to_vec();
    out.extend_from_slice(&(value.len() as u16 + 4).to_ne_bytes());
    out.extend_from_slice(&kind.to_ne_bytes());
    out.extend_from_slice(value);
    out.resize(out.len().next_multiple_of(4), 0);
    let len = (out.len() - 4) as u16;
    out[4..6].copy_from_slice(&len.to_ne_bytes());
    out
}

fn payload(message: &[u8]) -> &[u8] {
    NetlinkBuffer::new(message).payload()
}

/// Asserts that the request which writes an item back has each attribute that was read, unchanged, but for read-only ones.
fn nothing_lost(read: &[u8], written: &[u8], kind: u16, read_only: &[u16]) {
    let written = inside(payload(written), kind);
    for (kind, value) in inside(read, kind) {
        if !read_only.contains(&kind) {
            assert!(written.contains(&(kind, value.clone())), "{kind}: {value:?} is not in {written:?}");
        }
    }
}

#[test]
fn what_is_read_is_written_back() {
    let mut services = 0;
    let mut destinations = 0;
    for answer in answers() {
        // Attributes of a later kernel: one in network order, one empty, one nested and of odd length.
        for (kind, value) in [(0x4000_u16 | 40, &b"\x01\x02\x03\x04"[..]), (41, b""), (0x8000 | 42, b"odd")] {
            let answer = with_attribute(&answer, kind, value);
            if let Some(service) = codec::parse_service(&answer) {
                services += 1;
                assert_eq!(codec::parse_service_key(&answer), Some(service.key));
                assert_eq!(service.unknown, [(kind, value.to_vec())]);
                let bits = service.flags.bits;
                assert!(bits & flags::HASHED != 0, "the kernel's services are in its table");
                let written = Request::SetService(&service).encode(1, 1);
                // The flags (7) differ by the bit HASHED and are compared below.
                nothing_lost(&answer, &written, 1, &[7, 10, 12]);
                let expected = [(bits & !flags::HASHED).to_ne_bytes(), [0xff; 4]].concat();
                assert!(inside(payload(&written), 1).contains(&(7, expected)));
                let raw = written.windows(4).any(|bytes| bytes[2..] == kind.to_ne_bytes());
                assert!(raw, "the attribute's flags are written too");
                let again = codec::parse_service(payload(&written)).unwrap();
                let flags = Flags { bits: bits & !flags::HASHED, mask: u32::MAX };
                assert_eq!(again, Service { flags, ..service });
            }
            if let Some(destination) = codec::parse_destination(&answer, Family::V4) {
                destinations += 1;
                assert_eq!(destination.unknown, [(kind, value.to_vec())]);
                let alone = codec::parse_destination_address(&answer, Family::of(destination.address.ip()));
                assert_eq!(alone, Some(destination.address));
                let key = ServiceKey::Mark { family: Family::V4, mark: 1 };
                let written = Request::SetDestination(&key, &destination).encode(1, 1);
                nothing_lost(&answer, &written, 2, &[7, 8, 9, 10, 12]);
                let again = codec::parse_destination(payload(&written), Family::V4).unwrap();
                assert_eq!(again, destination);
            }
        }
    }
    assert_eq!((services, destinations), (3 * 8, 3 * 13));
}

#[test]
fn an_answer_without_a_part_of_it_is_none() {
    let calls = captured();
    let service = calls["get_service"][0].payloads().remove(0);
    let destination = calls["get_service"][1].payloads().remove(0);
    for (whole, kind, needed) in
        [(service, 1_u16, &[1, 2, 3, 4, 6, 7, 8, 9][..]), (destination, 2, &[1, 2, 3, 4, 5, 6])]
    {
        for (left_out, _) in inside(&whole, kind) {
            let mut answer = whole[..4].to_vec();
            answer.extend_from_slice(&[4, 0]);
            answer.extend_from_slice(&kind.to_ne_bytes());
            for (this, value) in inside(&whole, kind).into_iter().filter(|(this, _)| *this != left_out) {
                answer = with_attribute(&answer, this, &value);
            }
            let parsed = codec::parse_service(&answer).is_some()
                || codec::parse_destination(&answer, Family::V4).is_some();
            assert_eq!(parsed, !needed.contains(&left_out), "{kind}: without {left_out}");
        }
        for len in 0..whole.len() {
            assert_eq!(codec::parse_service(&whole[..len]), None, "{len}");
            assert_eq!(codec::parse_destination(&whole[..len], Family::V4), None, "{len}");
        }
    }
}

#[test]
fn names_fit_the_kernel_s_room() {
    for good in ["rr", "none", "fifteen_letters"] {
        let name: Name = good.parse().unwrap();
        assert_eq!((name.as_str(), name.to_string().as_str()), (good, good));
    }
    for bad in ["", "sixteen_letters_", "a b", "r\0r", "\u{e9}"] {
        assert!(bad.parse::<Name>().is_err(), "{bad:?}");
    }
}

#[test]
fn of_several_readings_the_first_is_kept() {
    let tidied = |mut items: Vec<(u8, char)>| {
        tidy(&mut items, |item| item.0);
        items
    };
    // The order in which the kernel lists destinations.
    assert_eq!(tidied(vec![(3, 'a'), (2, 'b'), (1, 'c')]), [(1, 'c'), (2, 'b'), (3, 'a')]);
    assert_eq!(tidied(vec![(2, 'a'), (1, 'b'), (2, 'c'), (1, 'd')]), [(1, 'b'), (2, 'a')]);
    assert_eq!(tidied(vec![(2, 'a'), (2, 'b')]), [(2, 'a')]);
}

#[test]
fn a_kernel_without_ipvs_is_named_as_such() {
    match Ipvs::open() {
        Err(Error::NotLoaded) => assert!(!is_loaded()),
        Ok(_) | Err(Error::Permission) => assert!(is_loaded()),
        Err(other) => panic!("{other:?}"),
    }
}

fn any_address() -> impl Strategy<Value = SocketAddr> {
    let ip = prop_oneof![any::<[u8; 4]>().prop_map(IpAddr::from), any::<[u8; 16]>().prop_map(IpAddr::from)];
    (ip, any::<u16>()).prop_map(SocketAddr::from)
}

fn any_key() -> impl Strategy<Value = ServiceKey> {
    prop_oneof![
        (any_address(), any::<u16>())
            .prop_map(|(address, number)| ServiceKey::Address { address, protocol: Protocol(number) }),
        (any::<bool>(), 1..=u32::MAX).prop_map(|(four, mark)| ServiceKey::Mark {
            family: if four { Family::V4 } else { Family::V6 },
            mark,
        }),
    ]
}

/// Attributes of types that nodefence does not know.
fn unknown() -> impl Strategy<Value = Vec<(u16, Vec<u8>)>> {
    let one = (16_u16..0x3fff, 0_u16..3, prop::collection::vec(any::<u8>(), 0..20))
        .prop_map(|(kind, flags, value)| (kind | flags << 14, value));
    prop::collection::vec(one, 0..4)
}

prop_compose! {
    fn any_service()(
        key in any_key(),
        scheduler in "[!-~]{1,15}",
        persistence_engine in prop::option::of("[!-~]{1,15}"),
        (bits, mask, timeout, netmask) in any::<(u32, u32, u32, u32)>(),
        unknown in unknown(),
    ) -> Service {
        Service {
            scheduler: scheduler.parse().unwrap(),
            persistence_engine: persistence_engine.map(|name| name.parse().unwrap()),
            flags: Flags { bits: bits & !flags::HASHED, mask },
            timeout,
            netmask: match key.family() {
                Family::V4 => Netmask::V4(netmask.into()),
                Family::V6 => Netmask::V6(netmask),
            },
            unknown,
            ..Service::new(key, "rr".parse().unwrap())
        }
    }
}

prop_compose! {
    fn any_destination()(
        address in any_address(),
        forward in any::<u32>(),
        (weight, upper_threshold, lower_threshold) in any::<(u32, u32, u32)>(),
        (kind, port, flags) in any::<(u8, u16, u16)>(),
        unknown in unknown(),
    ) -> Destination {
        Destination {
            forward: Forward::from_raw(forward),
            upper_threshold,
            lower_threshold,
            tunnel: Tunnel { kind, port, flags },
            unknown,
            ..Destination::new(address, weight)
        }
    }
}

fn parse_all(payload: &[u8]) {
    let _ = codec::parse_service(payload);
    let _ = codec::parse_service_key(payload);
    for family in [Family::V4, Family::V6] {
        let _ = codec::parse_destination(payload, family);
        let _ = codec::parse_destination_address(payload, family);
    }
    let _ = codec::parse_family_number(payload);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(5_000))]

    #[test]
    fn values_come_back_as_written(service in any_service(), destination in any_destination()) {
        let written = Request::NewService(&service).encode(1, 1);
        prop_assert_eq!(codec::parse_service(payload(&written)), Some(service.clone()));
        prop_assert_eq!(codec::parse_service_key(payload(&written)), Some(service.key));
        let written = Request::NewDestination(&service.key, &destination).encode(1, 1);
        prop_assert_eq!(codec::parse_destination(payload(&written), Family::V4), Some(destination.clone()));
        let alone = codec::parse_destination_address(payload(&written), Family::V4);
        // In the kernel only a tunnel's end is of another family than its service.
        if destination.forward == Forward::Tunnel || destination.address.is_ipv4() {
            prop_assert_eq!(alone, Some(destination.address));
        }
    }

    #[test]
    fn noise_never_panics(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        parse_all(&bytes);
        let _ = crate::netlink::messages(&bytes).count();
    }

    #[test]
    fn a_mutated_answer_never_panics_and_loses_nothing_that_was_read(
        which in any::<prop::sample::Index>(),
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..6),
        cut in any::<prop::sample::Index>(),
    ) {
        thread_local!(static ANSWERS: Vec<Vec<u8>> = answers());
        let mut answer = ANSWERS.with(|answers| which.get(answers).clone());
        for (at, byte) in changes {
            let at = at.index(answer.len());
            answer[at] = byte;
        }
        parse_all(&answer[..cut.index(answer.len())]);
        parse_all(&answer);
        if let Some(service) = codec::parse_service(&answer) {
            let written = Request::SetService(&service).encode(1, 1);
            let flags = Flags { bits: service.flags.bits & !flags::HASHED, ..service.flags };
            let again = codec::parse_service(payload(&written)).unwrap();
            prop_assert_eq!(again, Service { flags, ..service });
        }
        if let Some(destination) = codec::parse_destination(&answer, Family::V6) {
            let key = ServiceKey::Mark { family: Family::V6, mark: 1 };
            let written = Request::SetDestination(&key, &destination).encode(1, 1);
            let again = codec::parse_destination(payload(&written), Family::V6).unwrap();
            let Destination { active, inactive, persistent, .. } = destination;
            prop_assert_eq!(Destination { active, inactive, persistent, ..again }, destination);
        }
    }
}
