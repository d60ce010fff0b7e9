//! Events of the kernel programs, packets that the injector injects, and changes of routes.
use std::{net::UdpSocket, time::Duration};

use etherparse::PacketBuilder;
use nodefence::{
    dataplane::{Dataplane, Options, route},
    routes::Blocks,
};
use nodefence_common::{EventKind, Reason};

use super::support::{PEERS, Pair, ifindex, one_flagged, sh, up0};

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap()
}

#[test]
fn a_cut_is_told() {
    Pair::new("events").near.run(|| {
        let mut dataplane = Dataplane::open(&Options::default()).unwrap();
        one_flagged().write(&mut dataplane).unwrap();
        dataplane.devices.attach(&up0()).unwrap();
        runtime().block_on(async {
            let mut events = dataplane.devices.events().unwrap();
            let socket = UdpSocket::bind("10.77.0.1:0").unwrap();
            let _ = socket.send_to(b"hello", (PEERS[1], 9000));
            let event = tokio::time::timeout(Duration::from_secs(10), events.next()).await.unwrap().unwrap();
            assert_eq!(EventKind::from_raw(event.kind), Some(EventKind::Cut));
            assert_eq!((event.reason, event.node), (Reason::Dropped as u32, 1));
            assert_eq!(event.ifindex, ifindex("up0"));
            assert!(event.packet().ends_with(b"hello"));
        });
    });
}

#[test]
fn injected_frames_arrive_as_received() {
    Pair::new("inject").near.run(|| {
        let dataplane = Dataplane::open(&Options::default()).unwrap();
        let injector = dataplane.devices.injector().unwrap();
        let socket = UdpSocket::bind("10.77.0.1:7000").unwrap();
        socket.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
        let frames: Vec<Vec<u8>> = (0..100_u8)
            .map(|number| {
                let builder = PacketBuilder::ethernet2([2, 0x77, 0, 0, 0, 2], [2, 0x77, 0, 0, 0, 1])
                    .ipv4(PEERS[0].octets(), [10, 77, 0, 1], 64)
                    .udp(9000, 7000);
                let mut frame = Vec::new();
                builder.write(&mut frame, &[number]).unwrap();
                frame
            })
            .collect();
        let mut buffer = [0; 16];
        injector.inject(ifindex("up0"), &frames[0]).unwrap();
        assert_eq!(socket.recv_from(&mut buffer).unwrap(), (1, (PEERS[0], 9000).into()));
        for frame in &frames {
            injector.inject(ifindex("up0"), frame).unwrap();
        }
        let mut numbers: Vec<u8> = (0..100)
            .map(|_| {
                assert_eq!(socket.recv(&mut buffer).unwrap(), 1);
                buffer[0]
            })
            .collect();
        // Each processor has a backlog of its own, so packets of a thread that moves between processors may arrive in another order.
        numbers.sort_unstable();
        assert!(numbers.into_iter().eq(0..100));
        let error = injector.inject(4_000_000, &frames[0]).unwrap_err().to_string();
        assert!(error.contains("4000000"), "{error}");
        injector.inject(ifindex("up0"), &[0; 3]).unwrap_err();
    });
}

#[test]
fn route_changes_are_told() {
    Pair::new("changes").near.run(|| {
        runtime().block_on(async {
            let mut changes = route::Changes::open().unwrap();
            let mut blocks = Blocks::default();
            blocks.add([10, 80, 3, 4].into());
            // IPv6 addresses and routes of new devices come up to two seconds late, so the test waits until no more changes come.
            let quiet = Duration::from_secs(3);
            while let Ok(changed) = tokio::time::timeout(quiet, changes.next(&blocks)).await {
                changed.unwrap();
            }
            changes.take_routes();
            // A route that leads to no node and no backend is no change, as most routes of a full table are none.
            sh("ip route add 10.90.0.0/16 via 10.77.0.2");
            assert!(tokio::time::timeout(Duration::from_millis(300), changes.next(&blocks)).await.is_err());
            for change in ["ip route add 10.80.0.0/16 via 10.77.0.2", "ip link add x0 type veth peer name x1"]
            {
                sh(change);
                tokio::time::timeout(Duration::from_secs(10), changes.next(&blocks)).await.unwrap().unwrap();
                assert!(changes.take_routes(), "{change}");
            }
        });
    });
}
