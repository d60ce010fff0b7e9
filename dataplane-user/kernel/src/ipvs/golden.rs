//! Compares the codec with the requests that `ipvsadm` sends and the answers that it receives (`ipvsadm.hex`).
use std::collections::BTreeMap;

use netlink_packet_core::NetlinkBuffer;

use super::{
    Destination, Family, Flags, Forward, Netmask, Protocol, Service, ServiceKey, Tunnel,
    codec::{self, Request},
    flags,
};
use crate::netlink::{attributes, messages};

/// The number that the kernel of the capture gave to the IPVS family.
const FAMILY: u16 = 0x24;

// IP_VS_SVC_F_* that only the captured calls of ipvsadm use.
const ONE_PACKET: u32 = 1 << 2;
const SCHEDULER_2: u32 = 1 << 4;

/// One request with its answer's datagrams.
pub(super) struct Exchange {
    pub(super) request: Vec<u8>,
    pub(super) answers: Vec<Vec<u8>>,
}

impl Exchange {
    /// Payloads of the answer's messages that belong to the IPVS family.
    pub(super) fn payloads(&self) -> Vec<Vec<u8>> {
        self.answers
            .iter()
            .flat_map(|datagram| messages(datagram))
            .filter(|message| message.message_type() == FAMILY)
            .map(|message| message.payload().to_vec())
            .collect()
    }
}

/// The captured exchanges, by the name of their call of `ipvsadm`.
pub(super) fn captured() -> BTreeMap<&'static str, Vec<Exchange>> {
    let mut calls: BTreeMap<_, Vec<Exchange>> = BTreeMap::new();
    let mut name = "";
    let mut lines = include_str!("ipvsadm.hex").lines().peekable();
    while let Some(line) = lines.next() {
        let Some((mark, text)) = line.split_once(' ') else { continue };
        let mut hex = text.to_owned();
        while let Some(more) = lines.next_if(|line| line.starts_with("  ")) {
            hex.push_str(more.trim());
        }
        let exchanges = calls.entry(name).or_default();
        match mark {
            "=" => name = text.split(':').next().unwrap(),
            ">" => exchanges.push(Exchange { request: unhex(&hex), answers: Vec::new() }),
            "<" => exchanges.last_mut().unwrap().answers.push(unhex(&hex)),
            _ => assert_eq!(mark, "#"),
        }
    }
    calls.retain(|_, exchanges| !exchanges.is_empty());
    calls
}

fn unhex(text: &str) -> Vec<u8> {
    (0..text.len()).step_by(2).map(|at| u8::from_str_radix(&text[at..at + 2], 16).unwrap()).collect()
}

fn at(address: &str, protocol: Protocol) -> ServiceKey {
    ServiceKey::Address { address: address.parse().unwrap(), protocol }
}

fn service(key: ServiceKey, scheduler: &str) -> Service {
    Service::new(key, scheduler.parse().unwrap())
}

fn persistent(service: Service, timeout: u32) -> Service {
    let bits = service.flags.bits | flags::PERSISTENT;
    Service { flags: Flags { bits, ..service.flags }, timeout, ..service }
}

fn flagged(service: Service, more: u32) -> Service {
    let bits = service.flags.bits | more;
    Service { flags: Flags { bits, ..service.flags }, ..service }
}

fn destination(address: &str, forward: Forward, weight: u32) -> Destination {
    Destination { forward, ..Destination::new(address.parse().unwrap(), weight) }
}

/// The part of a request that the kernel reads. Where the kernel reads only the key of a service or destination, `ipvsadm`
/// sends the other attributes too (`need_full_svc`, `need_full_dest` in `ip_vs_genl_set_cmd`).
fn read_by_the_kernel(payload: &[u8]) -> Vec<u8> {
    let command = payload[0];
    let mut out = payload[..4].to_vec();
    for (kind, value) in attributes(&payload[4..]) {
        let keys: &[u16] = match (kind, command) {
            (1, 3..) => &[1, 2, 3, 4, 5],
            (2, 7) => &[11, 1, 2],
            (1 | 2, _) => &[1, 2, 3, 4, 5, 6, 7, 8, 9, 11, 13, 14, 15],
            _ => {
                put(&mut out, kind, value);
                continue;
            }
        };
        let mut inside = Vec::new();
        // `ipvsadm` sends a mark of 0 beside an address: that is no mark.
        for (kind, value) in attributes(value).filter(|(kind, value)| {
            keys.contains(kind) && !(keys.len() == 5 && *kind == 5 && *value == [0; 4])
        }) {
            put(&mut inside, kind, value);
        }
        put(&mut out, kind | 0x8000, &inside);
    }
    out
}

fn put(out: &mut Vec<u8>, kind: u16, value: &[u8]) {
    out.extend_from_slice(&(value.len() as u16 + 4).to_ne_bytes());
    out.extend_from_slice(&kind.to_ne_bytes());
    out.extend_from_slice(value);
    out.resize(out.len().next_multiple_of(4), 0);
}

#[test]
fn requests_are_the_bytes_of_ipvsadm() {
    let mut calls = captured();
    let web = at("10.96.0.1:80", Protocol::TCP);
    let gone = at("10.96.0.2:80", Protocol::TCP);
    let dns6 = at("[2001:db8::1]:53", Protocol::UDP);
    let diameter = at("10.96.0.1:3868", Protocol::SCTP);
    let mark4 = ServiceKey::Mark { family: Family::V4, mark: 9 };
    let mark6 = ServiceKey::Mark { family: Family::V6, mark: 7 };
    let new_web = service(web, "rr");
    let new_diameter = Service {
        netmask: Netmask::V4([255, 255, 255, 0].into()),
        ..persistent(flagged(service(diameter, "sh"), flags::SCHEDULER_1 | SCHEDULER_2), 600)
    };
    let sip = Service {
        persistence_engine: Some("sip".parse().unwrap()),
        ..persistent(service(at("10.96.0.9:5060", Protocol::UDP), "rr"), 60)
    };
    let one_packet = flagged(service(at("10.96.0.8:53", Protocol::UDP), "rr"), ONE_PACKET);
    let marked6 = Service { netmask: Netmask::V6(64), ..persistent(service(mark6, "lc"), 300) };
    let masquerade = destination("10.244.1.5:8080", Forward::Masquerade, 1);
    let thresholds = Destination {
        upper_threshold: 100,
        lower_threshold: 50,
        ..destination("10.244.1.7:80", Forward::Route, 5)
    };
    let gue = Destination {
        tunnel: Tunnel { kind: 1, port: 5555, flags: 2 },
        ..destination("10.244.1.6:80", Forward::Tunnel, 3)
    };
    let gre = Destination {
        tunnel: Tunnel { kind: 2, port: 0, flags: 1 },
        ..destination("10.244.1.8:80", Forward::Tunnel, 4)
    };
    let mixed = destination("[2001:db8::5]:80", Forward::Tunnel, 2);
    let udp6 = service(dns6, "wrr");
    let marked4 = flagged(service(mark4, "mh"), SCHEDULER_2);
    let set_web = persistent(service(web, "wlc"), 120);
    let masquerade6 = destination("[2001:db8:1::5]:5353", Forward::Masquerade, 1);
    let sctp = destination("10.244.1.5:3868", Forward::Masquerade, 1);
    let marked = destination("10.244.1.9:0", Forward::Route, 1);
    let drained = destination("10.244.1.5:8080", Forward::Masquerade, 0);
    let other = destination("10.244.9.9:8080", Forward::Masquerade, 0);
    let expected: &[(&str, &[Request<'_>])] = &[
        ("new_service_tcp4", &[Request::NewService(&new_web)]),
        ("new_service_udp6", &[Request::NewService(&udp6)]),
        ("new_service_sctp4_persistent", &[Request::NewService(&new_diameter)]),
        ("new_service_fwmark4", &[Request::NewService(&marked4)]),
        ("new_service_fwmark6", &[Request::NewService(&marked6)]),
        ("new_service_sip", &[Request::NewService(&sip)]),
        ("new_service_one_packet", &[Request::NewService(&one_packet)]),
        ("new_service_exists", &[Request::NewService(&new_web)]),
        ("set_service", &[Request::SetService(&set_web)]),
        ("new_dest_masquerade4", &[Request::NewDestination(&web, &masquerade)]),
        ("new_dest_thresholds", &[Request::NewDestination(&web, &thresholds)]),
        ("new_dest_gue", &[Request::NewDestination(&web, &gue)]),
        ("new_dest_gre", &[Request::NewDestination(&web, &gre)]),
        ("new_dest_mixed", &[Request::NewDestination(&web, &mixed)]),
        ("new_dest_masquerade6", &[Request::NewDestination(&dns6, &masquerade6)]),
        ("new_dest_sctp", &[Request::NewDestination(&diameter, &sctp)]),
        ("new_dest_fwmark", &[Request::NewDestination(&mark4, &marked)]),
        ("new_dest_exists", &[Request::NewDestination(&web, &masquerade)]),
        ("new_dest_no_service", &[Request::NewDestination(&gone, &masquerade)]),
        ("set_dest_weight0", &[Request::SetDestination(&web, &drained)]),
        ("set_dest_gone", &[Request::SetDestination(&web, &other)]),
        ("get_service", &[Request::GetService(&web), Request::Destinations(&web)]),
        ("get_service_gone", &[Request::GetService(&gone)]),
        (
            "get_all",
            &[
                Request::Services,
                Request::Destinations(&web),
                Request::Destinations(&one_packet.key),
                Request::Destinations(&sip.key),
                Request::Destinations(&diameter),
                Request::Destinations(&dns6),
                Request::Destinations(&mark6),
                Request::Destinations(&mark4),
            ],
        ),
        ("get_info", &[Request::GetInfo]),
        ("del_dest", &[Request::DeleteDestination(&web, masquerade.address)]),
        ("del_dest_gone", &[Request::DeleteDestination(&web, masquerade.address)]),
        ("del_dest_mixed", &[Request::DeleteDestination(&web, mixed.address)]),
        ("del_service", &[Request::DeleteService(&web)]),
        ("del_service_gone", &[Request::DeleteService(&web)]),
    ];
    for (name, requests) in expected {
        let exchanges = calls.remove(name).unwrap_or_else(|| panic!("{name} was not captured"));
        assert_eq!(exchanges.len(), requests.len(), "{name}");
        for (exchange, request) in exchanges.iter().zip(*requests) {
            let bytes = request.encode(FAMILY, 77);
            let ours = NetlinkBuffer::new(&bytes[..]);
            let theirs = NetlinkBuffer::new(&exchange.request[..]);
            assert_eq!(ours.length() as usize, bytes.len(), "{name}");
            assert_eq!(ours.sequence_number(), 77);
            assert_eq!(ours.message_type(), theirs.message_type(), "{name}");
            // A dump ends by itself: it needs no acknowledgement.
            let dump = theirs.flags() & 0x300 != 0;
            assert_eq!(ours.flags(), if dump { theirs.flags() & !4 } else { theirs.flags() }, "{name}");
            assert_eq!(ours.payload(), read_by_the_kernel(theirs.payload()), "{name}: {request:?}");
        }
    }
    let family = calls.remove("get_family").unwrap().remove(0);
    let ours = codec::family_request(0);
    assert_eq!(ours[..4], family.request[..4]);
    assert_eq!(NetlinkBuffer::new(&ours[..]).message_type(), 0x10);
    assert_eq!(ours[16..], family.request[16..]);
    // nodefence uses neither the timeouts nor the counters of IPVS.
    calls.retain(|name, _| !["get_config", "set_config", "zero_service", "zero"].contains(name));
    assert!(calls.is_empty(), "captured, and not compared: {:?}", calls.keys());
}

#[test]
fn answers_are_what_ipvsadm_prints_of_them() {
    let calls = captured();
    let payloads = |name, place: usize| calls[name][place].payloads();
    let family = &calls["get_family"][0].answers[0];
    assert_eq!(codec::parse_family_number(messages(family).next().unwrap().payload()), Some(FAMILY));

    let web = codec::parse_service(&payloads("get_service", 0)[0]).unwrap();
    let hashed = |service: Service| flagged(service, flags::HASHED);
    assert_eq!(web, hashed(persistent(service(at("10.96.0.1:80", Protocol::TCP), "wlc"), 120)));

    let services: Vec<Service> =
        payloads("get_all", 0).iter().map(|payload| codec::parse_service(payload).unwrap()).collect();
    assert_eq!(services.len(), 7);
    let find = |key| services.iter().find(|service| service.key == key).unwrap().clone();
    assert_eq!(find(web.key), web);
    let diameter = Service {
        netmask: Netmask::V4([255, 255, 255, 0].into()),
        ..persistent(
            flagged(service(at("10.96.0.1:3868", Protocol::SCTP), "sh"), flags::SCHEDULER_1 | SCHEDULER_2),
            600,
        )
    };
    assert_eq!(find(diameter.key), hashed(diameter));
    let marked = ServiceKey::Mark { family: Family::V6, mark: 7 };
    let marked6 = Service { netmask: Netmask::V6(64), ..persistent(service(marked, "lc"), 300) };
    assert_eq!(find(marked), hashed(marked6));
    let sip = find(at("10.96.0.9:5060", Protocol::UDP));
    assert_eq!(sip.persistence_engine, Some("sip".parse().unwrap()));
    let one_packet = find(at("10.96.0.8:53", Protocol::UDP));
    assert_eq!(one_packet.flags, Flags { bits: ONE_PACKET | flags::HASHED, mask: u32::MAX });

    let mut destinations: Vec<Destination> = payloads("get_all", 1)
        .iter()
        .map(|payload| codec::parse_destination(payload, Family::V4).unwrap())
        .collect();
    destinations.sort_by_key(|destination| destination.address);
    assert_eq!(
        destinations,
        [
            destination("10.244.1.5:8080", Forward::Masquerade, 0),
            Destination {
                tunnel: Tunnel { kind: 1, port: 5555, flags: 2 },
                ..destination("10.244.1.6:80", Forward::Tunnel, 3)
            },
            Destination {
                upper_threshold: 100,
                lower_threshold: 50,
                ..destination("10.244.1.7:80", Forward::Route, 5)
            },
            Destination {
                tunnel: Tunnel { kind: 2, port: 0, flags: 1 },
                ..destination("10.244.1.8:80", Forward::Tunnel, 4)
            },
            destination("[2001:db8::5]:80", Forward::Tunnel, 2),
        ]
    );
    let six = codec::parse_destination(&payloads("get_all", 5)[0], Family::V6).unwrap();
    assert_eq!(six, destination("[2001:db8:1::5]:5353", Forward::Masquerade, 1));
}
