//! XDP is attached in the way that was chosen, or is off with a reason.
use std::{
    net::{Ipv4Addr, UdpSocket},
    time::{Duration, Instant},
};

use aya::maps::{HashMap, Map, MapData};
use nodefence::dataplane::{Dataplane, Options, XdpChoice, XdpState, XdpStatus};
use nodefence_common::{Action, Device, NodeEntry, Reason};

use super::{
    others::{self, ATTACH_XDP, GENERIC, XDP_PASS},
    support::{Held, Pair, auto, ifindex, node, pin_dir, sh, up0, wanted},
};

fn with(xdp: XdpChoice) -> Options {
    Options { max_backends: 64, xdp, ..Options::default() }
}

/// Attaches. TC must be attached whether or not XDP is.
fn start(xdp: XdpChoice) -> XdpStatus {
    let status = Dataplane::open(&with(xdp)).unwrap().devices.attach(&up0()).unwrap().remove(0);
    assert_eq!((status.error, status.tc), (None, Some(auto())));
    status.xdp
}

fn shown() -> String {
    sh("ip -d link show up0")
}

fn device() -> Option<[u8; 6]> {
    let map = Map::from_map_data(MapData::from_pin(pin_dir().join("devices")).unwrap()).unwrap();
    let map: HashMap<_, u32, Device> = HashMap::try_from(map).unwrap();
    map.get(&ifindex("up0"), 0).ok().map(|device| device.mac)
}

#[test]
fn each_choice_is_what_is_attached() {
    Pair::new("xdp").near.run(|| {
        for choice in
            [XdpChoice::Native, XdpChoice::Generic, XdpChoice::Native, XdpChoice::Native, XdpChoice::Off]
        {
            let status = start(choice);
            let lost = status.reason.is_some_and(|reason| reason.contains("veth"));
            assert_eq!(lost, choice == XdpChoice::Native, "answers at a veth device");
            let shown = shown();
            let (state, word) = match choice {
                XdpChoice::Native => (XdpState::Native, " xdp "),
                XdpChoice::Generic => (XdpState::Generic, " xdpgeneric "),
                XdpChoice::Off => (XdpState::Off, "prog/xdp"),
            };
            assert_eq!(status.state, state);
            assert_eq!(shown.contains(word), choice != XdpChoice::Off, "{shown}");
            assert_eq!(device(), (choice != XdpChoice::Off).then_some([2, 0x77, 0, 0, 0, 1]));
        }
    });
}

#[test]
fn a_restart_replaces_the_program() {
    Pair::new("xdpagain").near.run(|| {
        let id = || {
            let shown = shown();
            let mut words = shown.split_whitespace().skip_while(|word| *word != "prog/xdp");
            words.nth(2).unwrap().parse::<u32>().unwrap()
        };
        start(XdpChoice::Native);
        let before = id();
        assert_eq!(start(XdpChoice::Native).state, XdpState::Native);
        assert_ne!(id(), before);
    });
}

#[test]
fn an_occupied_hook_is_left_alone() {
    Pair::new("xdpbusy").near.run(|| {
        let program = others::program(others::XDP, "theirs", XDP_PASS);
        let theirs = others::attach(&program, ifindex("up0"), ATTACH_XDP, GENERIC);
        for choice in [XdpChoice::Native, XdpChoice::Generic] {
            let status = start(choice);
            assert_eq!(status.state, XdpState::Off);
            let reason = status.reason.unwrap();
            assert!(reason.contains("occupied") && reason.contains("theirs"), "{reason}");
            assert!(shown().contains("xdpgeneric"));
            assert_eq!(device(), None);
        }
        drop(theirs);
    });
}

#[test]
fn nobody_takes_the_hook_from_us() {
    Pair::new("xdpheld").near.run(|| {
        let mut dataplane = Dataplane::open(&with(XdpChoice::Generic)).unwrap();
        assert_eq!(dataplane.devices.attach(&up0()).unwrap()[0].xdp.state, XdpState::Generic);
        let program = others::program(others::XDP, "theirs", XDP_PASS);
        let refused = others::try_attach(&program, ifindex("up0"), ATTACH_XDP, GENERIC).unwrap_err();
        assert_eq!(refused.raw_os_error(), Some(libc::EBUSY), "{refused}");
        assert_eq!(
            dataplane.devices.interfaces().unwrap()[0].xdp,
            XdpStatus { state: XdpState::Generic, reason: None }
        );
        assert!(shown().contains("xdpgeneric"));
    });
}

#[test]
fn an_mtu_that_is_too_large_is_the_reason() {
    let pair = Pair::new("xdpmtu");
    pair.near.ip("link set up0 mtu 9000").unwrap();
    pair.far.ip("link set up1 mtu 9000").unwrap();
    pair.near.run(|| {
        let status = start(XdpChoice::Native);
        assert_eq!(status.state, XdpState::Off);
        let reason = status.reason.unwrap();
        assert!(reason.contains("MTU") && reason.contains("9000"), "{reason}");
        assert_eq!(start(XdpChoice::Generic).state, XdpState::Generic, "generic has no such limit");
    });
}

#[test]
fn a_device_without_ethernet_header_has_no_xdp() {
    Pair::new("xdptun").near.run(|| {
        sh("ip tuntap add dev tun0 mode tun");
        let mut dataplane = Dataplane::open(&with(XdpChoice::Generic)).unwrap();
        let status = dataplane.devices.attach(&["tun0".into()]).unwrap().remove(0);
        assert_eq!((status.error, status.xdp.state), (None, XdpState::Off));
        assert!(status.xdp.reason.unwrap().contains("Ethernet"));
    });
}

/// A packet in transit passes XDP and then TC egress. It is counted once.
#[test]
fn an_observed_packet_is_counted_once() {
    let pair = Pair::new("xdponce");
    let backend = Ipv4Addr::new(10, 78, 0, 1);
    pair.near.ip("route add 10.78.0.1/32 via 10.77.0.5").unwrap();
    pair.far.ip("route add 10.78.0.1/32 via 10.77.0.1").unwrap();
    pair.near.sysctl("ipv4/ip_forward", "1").unwrap();
    let mut held = Held::open(&pair, with(XdpChoice::Generic));
    held.with(move |dataplane| {
        let entry = NodeEntry { action: Action::Observe as u32, ..node("hung", 1, true) };
        wanted(&[(entry, &[backend])]).write(dataplane).unwrap();
        assert_eq!(dataplane.devices.attach(&up0()).unwrap()[0].xdp.state, XdpState::Generic);
    });
    pair.far.run(move || {
        let socket = UdpSocket::bind("10.77.0.2:0").unwrap();
        for _ in 0..10 {
            socket.send_to(b"hello", (backend, 9000)).unwrap();
        }
    });
    let mut observed = || {
        let counters = held.with(|dataplane| dataplane.counters.read().unwrap());
        counters.iter().find(|(reason, _)| *reason == Reason::Observed).unwrap().1.packets
    };
    let patience = Instant::now() + Duration::from_secs(10);
    while observed() < 10 && Instant::now() < patience {
        std::thread::sleep(Duration::from_millis(20));
    }
    assert_eq!(observed(), 10);
}

#[test]
fn a_changed_mac_address_is_followed() {
    Pair::new("xdpmac").near.run(|| {
        let mut dataplane = Dataplane::open(&with(XdpChoice::Native)).unwrap();
        dataplane.devices.attach(&up0()).unwrap();
        sh("ip link set up0 address 02:77:00:00:00:99");
        dataplane.devices.interfaces().unwrap();
        assert_eq!(device(), Some([2, 0x77, 0, 0, 0, 0x99]));
    });
}
