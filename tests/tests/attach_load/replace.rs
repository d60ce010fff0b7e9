//! Restart and upgrade under load: no packet is lost, and no packet to a flagged node passes.
use std::{
    path::Path,
    time::{Duration, Instant},
};

use aya::programs::{
    LinkOrder, SchedClassifier, TcAttach, TcAttachType,
    links::{FdLink, PinnedLink},
};
use nodefence::dataplane::{self, Dataplane, Options, TcMode};
use nodefence_tests::load::datagrams::Numbered;

use super::support::{
    PEERS, Pair, attached, auto, ifindex, load, one_flagged, options, pin_dir, sh, up0, ways,
};

/// The destinations of the load: a healthy backend, a flagged one, and an address that is no backend.
const TO: [std::net::Ipv4Addr; 3] = [PEERS[0], PEERS[1], PEERS[2]];

/// Eight rounds. On an emulated processor, where the verifier is slow, fewer rounds, but at least three.
fn rounds() -> impl Iterator<Item = u32> {
    let begin = Instant::now();
    (0..8).take_while(move |round| *round < 3 || begin.elapsed() < Duration::from_secs(5))
}

/// What identifies nodefence's attachment to a device, and the id of the attached program. The attachment is a tcx link with an id, or a clsact filter with priority
/// and handle.
fn attachment(pin_dir: &Path, device: &str, mode: TcMode) -> (String, u32) {
    match mode {
        TcMode::Tcx => {
            let pin = pin_dir.join(format!("links/{}_egress", ifindex(device)));
            let info = FdLink::from(PinnedLink::from_pin(pin).unwrap()).info().unwrap();
            (info.id().to_string(), info.program_id())
        }
        TcMode::Clsact => {
            let filters = sh(&format!("tc filter show dev {device} egress"));
            let ours = filters.lines().find(|line| line.contains("nodefence:")).unwrap().to_owned();
            let word_after = |word: &str| {
                let mut words = ours.split(' ').skip_while(|found| *found != word);
                words.nth(1).unwrap_or_default().to_owned()
            };
            (format!("{} {}", word_after("pref"), word_after("handle")), word_after("id").parse().unwrap())
        }
    }
}

fn nothing_lost_or_passed(load: Numbered) {
    let [healthy, flagged, no_backend] = <[_; 3]>::try_from(load.finish().unwrap()).unwrap();
    assert!(healthy.sent > 200, "too little load: {}", healthy.sent);
    healthy.all("to a healthy node").unwrap();
    flagged.none("to a flagged node").unwrap();
    no_backend.all("to what is no backend").unwrap();
}

#[test]
fn a_restart_replaces_in_place() {
    for (choice, mode) in ways() {
        let pair = Pair::new("restart");
        let start = move || {
            let mut dataplane = Dataplane::open(&options(choice)).unwrap();
            let adopted = dataplane.tables.owned().unwrap();
            one_flagged().write(&mut dataplane).unwrap();
            let status = dataplane.devices.attach(&up0()).unwrap().remove(0);
            assert_eq!((status.error, status.tc), (None, Some(mode)));
            adopted.len()
        };
        assert_eq!(pair.near.run(start), 0);
        let look = move || attachment(&pin_dir(), "up0", mode);
        let before = pair.near.run(look);
        let load = load(&pair, &TO);
        for _ in rounds() {
            load.pass(50).unwrap();
            assert_eq!(pair.near.run(start), 2, "the nodes are found again");
        }
        load.pass(50).unwrap();
        nothing_lost_or_passed(load);
        let after = pair.near.run(look);
        assert_eq!(before.0, after.0, "the link, or the filter's priority and handle, stays");
        assert_ne!(before.1, after.1, "the program is a new one");
        assert_eq!(pair.near.run(|| attached("up0")).len(), 1);
    }
}

#[test]
fn a_changed_map_size_is_switched_under_load() {
    for (choice, mode) in ways() {
        let pair = Pair::new("switch");
        let start = move |max_backends| {
            let options = Options { max_backends, ..options(choice) };
            let mut dataplane = Dataplane::open(&options).unwrap();
            let report = one_flagged().write(&mut dataplane).unwrap();
            let status = dataplane.devices.attach(&up0()).unwrap().remove(0);
            assert_eq!((status.error, status.tc), (None, Some(mode)));
            report
        };
        let size = || {
            assert!(!pin_dir().join("staging").exists(), "the new maps are in place");
            let map = aya::maps::MapData::from_pin(pin_dir().join("backends")).unwrap();
            map.info().unwrap().max_entries()
        };
        pair.near.run(move || start(64));
        let load = load(&pair, &TO);
        for round in rounds() {
            load.pass(50).unwrap();
            let max_backends = 64 + (round + 1) % 2 * 64;
            let report = pair.near.run(move || start(max_backends));
            assert_eq!((report.inserted, report.updated, report.deleted), (0, 0, 0), "it was filled before");
            assert_eq!(pair.near.run(size), max_backends);
        }
        load.pass(50).unwrap();
        nothing_lost_or_passed(load);
    }
}

#[test]
fn devices_are_switched_to_one_set_of_maps() {
    let pair = Pair::new("switchtwo");
    pair.near.ip("link add second0 type veth peer name second1").unwrap();
    pair.near.run(|| {
        let devices = ["up0".to_owned(), "second0".to_owned()];
        for max_backends in [64, 128] {
            let mut dataplane = Dataplane::open(&Options { max_backends, ..Options::default() }).unwrap();
            one_flagged().write(&mut dataplane).unwrap();
            for status in dataplane.devices.attach(&devices).unwrap() {
                assert_eq!((status.error, status.tc), (None, Some(auto())));
            }
            let pinned =
                aya::maps::MapData::from_pin(pin_dir().join("backends")).unwrap().info().unwrap().id();
            for device in &devices {
                let (_, program) = attachment(&pin_dir(), device, auto());
                let maps = aya::programs::loaded_programs()
                    .filter_map(Result::ok)
                    .find(|loaded| loaded.id() == program)
                    .and_then(|loaded| loaded.map_ids().ok().flatten())
                    .unwrap();
                assert!(maps.contains(&pinned), "{device} runs over the pinned map");
            }
        }
    });
}

/// The maps of another version have another layout, so none of its verdicts is adopted. Its programs are detached once ours are attached. Meanwhile no packet to a
/// healthy node is lost.
#[test]
fn another_version_is_detached_under_load() {
    for (choice, mode) in ways() {
        let pair = Pair::new("version");
        let version = |number: u32| pin_dir().with_file_name(format!("v{number}"));
        let open = move |number| Options { pin_dir: version(number), ..options(choice) };
        pair.near.run(move || {
            let mut dataplane = Dataplane::open(&open(100)).unwrap();
            one_flagged().write(&mut dataplane).unwrap();
            assert_eq!(dataplane.devices.attach(&up0()).unwrap()[0].error, None);
        });
        let load = load(&pair, &TO);
        let mut newest = 100;
        for number in rounds().map(|round| 101 + round) {
            newest = number;
            load.pass(50).unwrap();
            pair.near.run(move || {
                let mut dataplane = Dataplane::open(&open(number)).unwrap();
                assert_eq!(dataplane.tables.owned().unwrap().len(), 0, "none is adopted");
                // The old version's programs stay until ours are attached.
                assert!(version(number - 1).exists());
                assert_eq!(attached("up0").len(), 1);
                let status = dataplane.devices.attach(&up0()).unwrap().remove(0);
                assert_eq!((status.error, status.tc), (None, Some(mode)));
                assert!(status.programs_ahead.is_empty(), "{:?}", status.programs_ahead);
                assert!(!version(number - 1).exists());
                assert_eq!(attached("up0").len(), 1);
                one_flagged().write(&mut dataplane).unwrap();
            });
        }
        load.pass(50).unwrap();
        // At each change some packets to the flagged node may pass.
        let [healthy, _, no_backend] = <[_; 3]>::try_from(load.finish().unwrap()).unwrap();
        healthy.all("to a healthy node").unwrap();
        no_backend.all("to what is no backend").unwrap();
        let after = self::load(&pair, &TO);
        after.pass(250).unwrap();
        nothing_lost_or_passed(after);
        pair.near.run(move || {
            assert!(version(newest).exists());
            // A detach removes the pins of every version, and the qdisc that the first version made.
            dataplane::detach(&pin_dir()).unwrap();
            assert_eq!(attached("up0"), [""; 0]);
            assert!(!sh("tc qdisc show dev up0").contains("clsact"));
            assert!(!pin_dir().parent().unwrap().exists());
        });
    }
}

/// Agents that pinned `v1` attached a program to ingress too. A later version detaches it.
#[test]
fn what_another_version_attached_to_ingress_goes() {
    for (choice, mode) in ways() {
        Pair::new("ingress").near.run(move || {
            let other = pin_dir().with_file_name("v100");
            let pinned = Options { pin_dir: other.clone(), ..options(choice) };
            let mut dataplane = Dataplane::open(&pinned).unwrap();
            assert_eq!(dataplane.devices.attach(&up0()).unwrap()[0].error, None);
            drop(dataplane);
            let (_, egress) = attachment(&other, "up0", mode);
            let program = "/sys/fs/bpf/nodefence:old";
            sh(&format!("bpftool prog pin id {egress} {program}"));
            match mode {
                TcMode::Tcx => {
                    let mut program = SchedClassifier::from_pin(program).unwrap();
                    let way =
                        TcAttach::Tcx { attach_type: TcAttachType::Ingress, order: LinkOrder::default() };
                    let link = program.attach(ifindex("up0"), way).unwrap();
                    let link = FdLink::try_from(program.take_link(link).unwrap()).unwrap();
                    link.pin(other.join(format!("links/{}_ingress", ifindex("up0")))).unwrap();
                }
                TcMode::Clsact => drop(sh(&format!(
                    "tc filter add dev up0 ingress protocol all prio 1 handle 0x6e66 bpf da object-pinned {program}"
                ))),
            }
            assert_eq!(attached("up0").len(), 2);
            let mut dataplane = Dataplane::open(&options(choice)).unwrap();
            assert_eq!(dataplane.devices.attach(&up0()).unwrap()[0].error, None);
            assert_eq!(attached("up0"), ["nf_egress_l2"]);
        });
    }
}

/// `attach` may find none of its devices, and the next look may fail to remove a pin. Later looks attach the same devices and remove the rest.
#[test]
fn another_version_is_detached_by_a_later_look() {
    for (choice, mode) in ways() {
        Pair::new("later").near.run(move || {
            let other = pin_dir().with_file_name("v100");
            let pinned = Options { pin_dir: other.clone(), ..options(choice) };
            let mut dataplane = Dataplane::open(&pinned).unwrap();
            assert_eq!(dataplane.devices.attach(&up0()).unwrap()[0].error, None);
            drop(dataplane);
            let mut dataplane = Dataplane::open(&options(choice)).unwrap();
            assert!(dataplane.devices.attach(&["late0".to_owned()]).unwrap()[0].error.is_some());
            assert!(other.exists(), "the other version was detached before ours is attached");
            sh("ip link add late0 type veth peer name late1");
            // A mount point cannot be removed.
            let links = other.join("links").display().to_string();
            sh(&format!("mount --bind {links} {links}"));
            assert_eq!(dataplane.devices.interfaces().unwrap()[0].tc, Some(mode));
            assert_eq!(attached("up0"), [""; 0]);
            assert!(other.exists());
            sh(&format!("umount {links}"));
            assert_eq!(dataplane.devices.interfaces().unwrap()[0].error, None);
            assert!(!other.exists());
            assert_eq!(attached("late0").len(), 1);
        });
    }
}
