//! Opening, attaching and detaching: which programs, qdiscs and pins are there afterwards.
use std::{
    fs,
    os::unix::fs::PermissionsExt as _,
    path::Path,
    process::Command,
    time::{Duration, Instant},
};

use aya::maps::MapData;
use nix::sys::statfs::{BPF_FS_MAGIC, statfs};
use nodefence::dataplane::{self, Dataplane, DetachReport, Error, LinkLayer, Options, TcChoice, TcMode};
use nodefence_tests::netns::Netns;

use super::{
    owner::own_folder,
    support::{Pair, attached, auto, ifindex, options, pin_dir, sh, up0, ways},
};

const OURS: [&str; 1] = ["nf_egress_l2"];

#[test]
fn a_dataplane_stays_until_it_is_detached() {
    for (choice, mode) in ways() {
        Pair::new("stays").near.run(move || {
            let mut dataplane = Dataplane::open(&options(choice)).unwrap();
            let status = dataplane.devices.attach(&up0()).unwrap();
            assert_eq!(status.len(), 1);
            assert_eq!(status[0].error, None);
            assert_eq!((status[0].tc, status[0].link_layer), (Some(mode), Some(LinkLayer::L2)));
            assert_eq!(status[0].programs_ahead, []);
            drop(dataplane);
            assert_eq!(attached("up0"), OURS);
            let report = dataplane::detach(&pin_dir()).unwrap();
            let (links, filters, qdiscs) = if mode == TcMode::Tcx { (1, 0, 0) } else { (0, 1, 1) };
            assert_eq!(
                (report.links, report.filters, report.qdiscs, report.maps),
                (links, filters, qdiscs, 14)
            );
            nothing_left();
            assert_eq!(dataplane::detach(&pin_dir()).unwrap(), DetachReport::default());
        });
    }
}

fn nothing_left() {
    assert_eq!(attached("up0"), [""; 0]);
    assert!(!sh("tc qdisc show dev up0").contains("clsact"));
    assert!(!Path::new("/sys/fs/bpf/nodefence").exists());
}

#[test]
fn a_detach_works_on_what_a_crash_left() {
    for (choice, _) in ways() {
        Pair::new("crash").near.run(move || {
            sh("ip link add gone0 type veth peer name gone1");
            let mut dataplane = Dataplane::open(&options(choice)).unwrap();
            dataplane.devices.attach(&["up0".into(), "gone0".into()]).unwrap();
            drop(dataplane);
            sh("ip link del gone0");
            fs::remove_file(pin_dir().join("nodes")).unwrap();
            let _ = fs::remove_file(pin_dir().join(format!("links/{}_egress", ifindex("up0"))));
            let _ = sh("tc filter del dev up0 egress 2>&1; true");
            own_folder(&pin_dir().join("staging"));
            dataplane::detach(&pin_dir()).unwrap();
            // The kernel's worker deletes a link some time after its pin was removed by hand.
            let patience = Instant::now() + Duration::from_secs(20);
            while !attached("up0").is_empty() && Instant::now() < patience {
                std::thread::sleep(Duration::from_millis(20));
            }
            nothing_left();
        });
    }
}

#[test]
fn a_detach_without_a_bpf_filesystem_still_removes_filters() {
    Pair::new("nobpffs").near.run(|| {
        let mut dataplane = Dataplane::open(&options(TcChoice::Clsact)).unwrap();
        dataplane.devices.attach(&up0()).unwrap();
        drop(dataplane);
        sh("umount /sys/fs/bpf");
        assert_eq!(dataplane::detach(&pin_dir()).unwrap().filters, 1);
        assert_eq!(attached("up0"), [""; 0]);
    });
}

#[test]
fn an_interface_that_does_not_exist_stops_no_other() {
    Pair::new("missing").near.run(|| {
        let mut dataplane = Dataplane::open(&options(TcChoice::Auto)).unwrap();
        let status = dataplane.devices.attach(&["nope0".into(), "up0".into()]).unwrap();
        assert_eq!((status[0].ifindex, status[0].tc), (0, None));
        let error = status[0].error.clone().unwrap();
        assert!(error.contains("nope0"), "{error}");
        assert_eq!((status[1].error.clone(), status[1].tc), (None, Some(auto())));
    });
}

#[test]
fn a_tunnel_gets_the_programs_without_link_layer() {
    for (choice, _) in ways() {
        let netns = Netns::new("layer").unwrap();
        netns.ip("tuntap add dev up0 mode tun\nlink set up0 up").unwrap();
        netns.run(move || {
            let mut dataplane = Dataplane::open(&options(choice)).unwrap();
            let status = dataplane.devices.attach(&up0()).unwrap();
            assert_eq!((status[0].error.clone(), status[0].link_layer), (None, Some(LinkLayer::L3)));
            assert_eq!(attached("up0"), ["nf_egress_l3"]);
        });
    }
}

/// A restart with the same object and the same sizes goes on with every map, also with the ring buffer.
#[test]
fn a_second_start_stages_nothing() {
    Pair::new("same").near.run(|| {
        const MAPS: [&str; 13] = [
            "backends",
            "ports",
            "nodes",
            "counters",
            "events",
            "config",
            "limits",
            "icmp_budget",
            "answer_budget",
            "icmp_senders",
            "devices",
            "macs",
            "route_vlans",
        ];
        let ids = || MAPS.map(|name| MapData::from_pin(pin_dir().join(name)).unwrap().info().unwrap().id());
        let staging = || pin_dir().join("staging").exists();
        let mut dataplane = Dataplane::open(&options(TcChoice::Auto)).unwrap();
        dataplane.devices.attach(&up0()).unwrap();
        let first = ids();
        drop(dataplane);
        let dataplane = Dataplane::open(&options(TcChoice::Auto)).unwrap();
        assert!(!staging(), "maps are staged although nothing differs");
        drop(dataplane);
        assert_eq!(ids(), first);
        // Only the map whose size differs is replaced.
        let larger = Options { max_backends: 2048, ..options(TcChoice::Auto) };
        let mut dataplane = Dataplane::open(&larger).unwrap();
        assert!(staging());
        dataplane.devices.attach(&up0()).unwrap();
        let differing: Vec<&str> = MAPS
            .into_iter()
            .zip(ids().iter().zip(first))
            .filter(|(_, (now, before))| **now != *before)
            .map(|(name, _)| name)
            .collect();
        assert_eq!(differing, ["backends"]);
    });
}

#[test]
fn interfaces_no_longer_wanted_are_left() {
    for (choice, mode) in ways() {
        Pair::new("left").near.run(move || {
            sh("ip link add other0 type veth peer name other1");
            let mut dataplane = Dataplane::open(&options(choice)).unwrap();
            dataplane.devices.attach(&up0()).unwrap();
            dataplane.devices.attach(&["other0".into()]).unwrap();
            assert_eq!((attached("up0").len(), attached("other0").len()), (0, 1));
            // A later process detaches from it too.
            drop(dataplane);
            let mut dataplane = Dataplane::open(&options(choice)).unwrap();
            dataplane.devices.attach(&up0()).unwrap();
            assert_eq!((attached("up0").len(), attached("other0").len()), (1, 0));
            // Packets are lost while a qdisc is removed. So the qdisc stays, marked as ours, until a detach.
            let qdiscs = if mode == TcMode::Clsact { 2 } else { 0 };
            assert_eq!(sh("tc qdisc show").matches("clsact").count(), qdiscs);
            drop(dataplane);
            assert_eq!(dataplane::detach(&pin_dir()).unwrap().qdiscs as usize, qdiscs);
            assert_eq!(sh("tc qdisc show").matches("clsact").count(), 0);
        });
    }
}

#[test]
fn a_device_that_is_made_again_is_attached_to_again() {
    for (choice, mode) in ways() {
        Pair::new("again").near.run(move || {
            sh("ip link add it0 type veth peer name it1");
            let mut dataplane = Dataplane::open(&options(choice)).unwrap();
            let before = dataplane.devices.attach(&["it0".into()]).unwrap();
            sh("ip link del it0");
            assert!(dataplane.devices.interfaces().unwrap()[0].error.is_some());
            sh("ip link add it0 type veth peer name it1");
            let after = dataplane.devices.interfaces().unwrap();
            assert_ne!(after[0].ifindex, before[0].ifindex);
            assert_eq!((after[0].error.clone(), after[0].tc), (None, Some(mode)));
            assert_eq!(attached("it0"), OURS);
            let pins: Vec<_> =
                fs::read_dir(pin_dir().join("links")).unwrap().map(|entry| entry.unwrap().path()).collect();
            assert_eq!(pins.len(), usize::from(mode == TcMode::Tcx), "{pins:?}");
        });
    }
}

/// Each network namespace numbers its devices itself. A link that is pinned under an index may be on a device that has moved away: it is not adopted for the
/// device that has this index now.
#[test]
fn a_device_of_the_same_index_elsewhere_is_another() {
    let pair = Pair::new("sameindex");
    let elsewhere = pair.far.path();
    pair.near.run(move || {
        for (choice, mode) in ways() {
            let make = || sh("ip link add same0 index 50 type veth peer name same1");
            let start = || {
                let mut dataplane = Dataplane::open(&options(choice)).unwrap();
                let status = dataplane.devices.attach(&["same0".into()]).unwrap().remove(0);
                assert_eq!((status.error, status.tc), (None, Some(mode)));
            };
            make();
            start();
            sh(&format!("ip link set same0 netns {}", elsewhere.display()));
            sh("ip link del same1");
            make();
            start();
            assert_eq!(attached("same0"), OURS);
            sh("ip link del same0");
        }
    });
}

#[test]
fn programs_that_were_taken_away_come_back() {
    Pair::new("taken").near.run(|| {
        let mut dataplane = Dataplane::open(&options(TcChoice::Clsact)).unwrap();
        dataplane.devices.attach(&up0()).unwrap();
        sh("tc qdisc del dev up0 clsact");
        assert_eq!(attached("up0"), [""; 0]);
        assert_eq!(dataplane.devices.interfaces().unwrap()[0].error, None);
        assert_eq!(attached("up0"), OURS);
    });
}

#[test]
fn the_way_of_attaching_can_change() {
    Pair::new("ways").near.run(|| {
        let mut clsact = false;
        for (choice, mode) in ways().into_iter().chain(ways()) {
            let mut dataplane = Dataplane::open(&options(choice)).unwrap();
            let status = dataplane.devices.attach(&up0()).unwrap();
            assert_eq!((status[0].error.clone(), status[0].tc), (None, Some(mode)));
            assert_eq!(attached("up0"), OURS);
            // A qdisc of ours stays once it was made (see `interfaces_no_longer_wanted_are_left`).
            clsact |= mode == TcMode::Clsact;
            assert_eq!(sh("tc qdisc show dev up0").contains("clsact"), clsact);
        }
        assert_eq!(dataplane::detach(&pin_dir()).unwrap().qdiscs, 1);
        nothing_left();
    });
}

#[test]
fn a_pin_folder_outside_a_bpf_filesystem_is_named() {
    let netns = Netns::new("bpffs").unwrap();
    netns.run(|| {
        let folder = tempfile::tempdir().unwrap();
        let pin_dir = folder.path().join("nodefence/v3");
        let error =
            Dataplane::open(&Options { pin_dir: pin_dir.clone(), ..Options::default() }).err().unwrap();
        assert!(matches!(error, Error::NoBpfFs { .. }), "{error}");
        let text = error.to_string();
        assert!(text.contains(pin_dir.to_str().unwrap()) && text.contains("mount -t bpf"), "{text}");
        assert!(!pin_dir.exists());
    });
}

#[test]
fn the_usual_bpf_filesystem_is_mounted_where_none_is() {
    let netns = Netns::new("mount").unwrap();
    netns.run(|| {
        sh("umount /sys/fs/bpf");
        let is_bpf = || statfs("/sys/fs/bpf").unwrap().filesystem_type() == BPF_FS_MAGIC;
        assert!(!is_bpf());
        Dataplane::open(&options(TcChoice::Auto)).unwrap();
        assert!(is_bpf());
        let mode = fs::metadata("/sys/fs/bpf").unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o700, "others than root can open the BPF filesystem: {mode:o}");
        assert!(pin_dir().join("nodes").exists());
    });
}

/// The test starts itself again in a user namespace, where root may not use BPF.
#[test]
fn without_privilege_the_message_says_what_is_missing() {
    const INSIDE: &str = "NODEFENCE_TEST_WITHOUT_PRIVILEGE";
    if std::env::var_os(INSIDE).is_some() {
        let error = Dataplane::open(&options(TcChoice::Auto)).err().unwrap().to_string();
        // Kernels before 5.11 refuse because of the limit on locked memory first.
        assert!(error.contains("CAP_BPF") || error.contains("RLIMIT_MEMLOCK"), "{error}");
        return;
    }
    Pair::new("weak").near.run(|| {
        let name = "basic::without_privilege_the_message_says_what_is_missing";
        let test = std::env::current_exe().unwrap();
        let output = Command::new("unshare")
            .args(["--user", "--map-root-user"])
            .arg(test)
            .args(["--exact", name, "--nocapture"])
            .env(INSIDE, "1")
            .output()
            .unwrap();
        let text = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success() && text.contains("1 passed"), "{text}");
    });
}
