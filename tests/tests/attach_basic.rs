//! Opening, attaching, detaching: what is there afterwards and what is not.
use std::{path::Path, process::Command};

use aya::programs::{SchedClassifier, TcAttachType};
use nodefence::dataplane::{self, Dataplane, LinkLayer, Options, TcChoice, TcMode};
use nodefence_tests::netns::Netns;

fn options(tc: TcChoice) -> Options {
    Options { max_backends: 1024, tc, ..Options::default() }
}

fn output(line: &str) -> String {
    let mut words = line.split(' ');
    let out = Command::new(words.next().unwrap()).args(words).output().unwrap();
    String::from_utf8_lossy(&out.stdout).into_owned() + &String::from_utf8_lossy(&out.stderr)
}

/// Our programs on a device, however they are attached.
fn attached(device: &str) -> Vec<String> {
    let ifindex = nix::net::if_::if_nametoindex(device).unwrap();
    let mut names: Vec<String> = [TcAttachType::Egress, TcAttachType::Ingress]
        .into_iter()
        .flat_map(|hook| SchedClassifier::query_tcx(ifindex, hook).unwrap().1)
        .map(|program| program.name_as_str().unwrap_or_default().to_owned())
        .collect();
    for hook in ["egress", "ingress"] {
        let filters = output(&format!("tc filter show dev {device} {hook}"));
        names.extend(filters.split(' ').filter_map(|w| w.strip_prefix("nodefence:")).map(str::to_owned));
    }
    names.sort();
    names
}

/// A namespace with a veth pair `up0`/`peer0`.
fn namespace(label: &str) -> Netns {
    let netns = Netns::new(label).unwrap();
    netns.ip("link add up0 type veth peer name peer0\nlink set up0 up\nlink set peer0 up").unwrap();
    netns
}

#[test]
fn a_dataplane_stays_until_it_is_detached() {
    for (choice, mode) in [(TcChoice::Auto, TcMode::Tcx), (TcChoice::Clsact, TcMode::Clsact)] {
        namespace("stays").run(move || {
            let options = options(choice);
            let mut dataplane = Dataplane::open(&options).unwrap();
            let status = dataplane.attach(&["up0".into()]);
            assert_eq!(status.len(), 1);
            assert_eq!(status[0].error, None);
            assert_eq!((status[0].tc, status[0].link_layer), (Some(mode), Some(LinkLayer::L2)));
            assert_eq!(status[0].programs_ahead, []);
            drop(dataplane);
            assert_eq!(attached("up0"), ["nf_egress_l2", "nf_ingress_l2"]);
            let report = dataplane::detach(&options.pin_dir).unwrap();
            let (links, filters, qdiscs) = if mode == TcMode::Tcx { (2, 0, 0) } else { (0, 2, 1) };
            assert_eq!(
                (report.links, report.filters, report.qdiscs, report.maps),
                (links, filters, qdiscs, 9)
            );
            assert_eq!(attached("up0"), [""; 0]);
            assert!(!output("tc qdisc show dev up0").contains("clsact"));
            assert!(!Path::new("/sys/fs/bpf/nodefence").exists());
            assert_eq!(dataplane::detach(&options.pin_dir).unwrap(), dataplane::DetachReport::default());
        });
    }
}
