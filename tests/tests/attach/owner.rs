//! Each pin folder has one dataplane at a time. What happens if folders are removed, after a crash between two steps, and if others could change the folder.
use std::{
    fs::{self, DirBuilder},
    os::unix::fs::{DirBuilderExt as _, PermissionsExt as _},
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use nodefence::dataplane::{self, Dataplane, Error, NodeWriter, Options, TcChoice};
use nodefence_tests::netns::Netns;

use super::support::{Pair, attached, ifindex, node, one_flagged, options, pin_dir, sh, up0, ways};

/// Makes a folder that only its owner may use, as all of ours in the BPF filesystem are.
pub(crate) fn own_folder(path: &Path) {
    DirBuilder::new().mode(0o700).create(path).unwrap();
}

#[test]
fn a_second_dataplane_and_a_detach_are_refused_while_one_is_open() {
    Pair::new("owner").near.run(|| {
        let mut dataplane = Dataplane::open(&options(TcChoice::Auto)).unwrap();
        one_flagged().write(&mut dataplane).unwrap();
        assert_eq!(dataplane.devices.attach(&up0()).unwrap()[0].error, None);
        let before = attached("up0");
        for refused in [
            Dataplane::open(&options(TcChoice::Auto)).err().unwrap(),
            dataplane::detach(&pin_dir()).unwrap_err(),
            dataplane::detach(&pin_dir().with_file_name("v4")).unwrap_err(),
        ] {
            assert!(matches!(refused, Error::Busy { .. }), "{refused}");
            let text = refused.to_string();
            assert!(text.contains(pin_dir().parent().unwrap().to_str().unwrap()), "{text}");
            assert!(text.contains(&format!("(process {})", std::process::id())), "{text}");
        }
        assert_eq!(attached("up0"), before, "nothing was removed");
        // Whoever only renews the pinned verdicts needs no lock.
        let (mut writer, entries) = NodeWriter::pinned(&pin_dir()).unwrap();
        assert_eq!(entries.len(), 2);
        writer.write_node(1, &node("hung", 1, true)).unwrap();
        drop(dataplane);
        drop(Dataplane::open(&options(TcChoice::Auto)).unwrap());
        assert_eq!(dataplane::detach(&pin_dir()).unwrap().maps, 14);
        assert!(!pin_dir().parent().unwrap().exists());
    });
}

/// An agent that takes over waits a moment for the lock, since its predecessor is still ending.
#[test]
fn the_next_dataplane_waits_for_the_one_before_it() {
    Pair::new("next").near.run(|| {
        let dataplane = Dataplane::open(&options(TcChoice::Auto)).unwrap();
        let ends = std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(300));
            drop(dataplane);
        });
        Dataplane::open(&options(TcChoice::Auto)).unwrap();
        ends.join().unwrap();
    });
}

#[test]
fn folders_that_were_removed_below_us_are_made_again() {
    for (choice, _) in ways() {
        Pair::new("folders").near.run(move || {
            let mut dataplane = Dataplane::open(&options(choice)).unwrap();
            assert_eq!(dataplane.devices.attach(&up0()).unwrap()[0].error, None);
            for folder in ["links", "qdiscs"].map(|name| pin_dir().join(name)) {
                for entry in fs::read_dir(&folder).unwrap() {
                    let path = entry.unwrap().path();
                    fs::remove_file(&path).or_else(|_| fs::remove_dir(&path)).unwrap();
                }
                fs::remove_dir(folder).unwrap();
            }
            // The kernel's worker deletes a link some time after its pin was removed. Before that no other link of the same program can be attached.
            let patience = Instant::now() + Duration::from_secs(20);
            while dataplane.devices.interfaces().unwrap()[0].error.is_some() && Instant::now() < patience {
                std::thread::sleep(Duration::from_millis(20));
            }
            assert_eq!(dataplane.devices.interfaces().unwrap()[0].error, None);
            assert_eq!(attached("up0"), ["nf_egress_l2"]);
            for folder in ["links", "qdiscs"] {
                assert!(pin_dir().join(folder).exists(), "{folder}");
            }
        });
    }
}

/// A crash may come after a link is pinned and before the filters that it replaces are removed. These filters would go on with old maps.
#[test]
fn filters_beside_a_link_are_removed_at_the_next_start() {
    Pair::new("beside").near.run(|| {
        let attach = |options: Options| {
            let mut dataplane = Dataplane::open(&options).unwrap();
            assert_eq!(dataplane.devices.attach(&up0()).unwrap()[0].error, None);
        };
        attach(options(TcChoice::Auto));
        // A dataplane of another pin folder does not know the links of this one.
        let elsewhere = pin_dir().parent().unwrap().with_file_name("elsewhere").join("nodefence/v3");
        attach(Options { pin_dir: elsewhere, ..options(TcChoice::Clsact) });
        attach(options(TcChoice::Auto));
        assert_eq!(attached("up0"), ["nf_egress_l2"]);
    });
}

/// A crash may come after a qdisc is marked as ours and before it is made. A qdisc of others is never marked.
#[test]
fn a_qdisc_is_ours_only_if_we_made_it() {
    for others in [false, true] {
        Pair::new("mark").near.run(move || {
            let mut dataplane = Dataplane::open(&options(TcChoice::Clsact)).unwrap();
            let mark = pin_dir().join(format!("qdiscs/{}", ifindex("up0")));
            if others {
                sh("tc qdisc add dev up0 clsact");
            } else {
                own_folder(&mark);
            }
            assert_eq!(dataplane.devices.attach(&up0()).unwrap()[0].error, None);
            assert_eq!(mark.exists(), !others);
            drop(dataplane);
            assert_eq!(dataplane::detach(&pin_dir()).unwrap().qdiscs, u32::from(!others));
            assert_eq!(sh("tc qdisc show dev up0").contains("clsact"), others);
        });
    }
    Pair::new("markingress").near.run(|| {
        sh("tc qdisc add dev up0 ingress");
        let mut dataplane = Dataplane::open(&options(TcChoice::Clsact)).unwrap();
        assert!(dataplane.devices.attach(&up0()).unwrap()[0].error.is_some());
        assert!(!pin_dir().join(format!("qdiscs/{}", ifindex("up0"))).exists());
    });
}

/// Whoever can replace a pinned map can write verdicts. The error names the folder that others could change, and its remedy makes the folder safe.
#[test]
fn a_pin_folder_that_others_could_change_is_refused() {
    let ours = |path: &str| (path.to_owned(), pin_dir());
    let shared = "/sys/fs/bpf/shared/nodefence/v3";
    let linked = "/sys/fs/bpf/linked/nodefence/v3";
    for (done, (wrong, pins), remedy) in [
        ("mkdir -m 700 $B/nodefence; chown 65534 $B/nodefence", ours("/sys/fs/bpf/nodefence"), "rm -r"),
        ("mkdir -m 750 $B/nodefence", ours("/sys/fs/bpf/nodefence"), "chmod go="),
        ("chown 65534 $B", ours("/sys/fs/bpf"), "chown root"),
        ("mkdir -m 777 $B/shared", ("/sys/fs/bpf/shared".into(), shared.into()), "chmod go-w"),
        (
            "mkdir -m 700 $B/shared; chown 65534 $B/shared",
            ("/sys/fs/bpf/shared".into(), shared.into()),
            "chown root",
        ),
        ("mkdir -m 755 $B/real; ln -s real $B/linked", ("/sys/fs/bpf/linked".into(), linked.into()), "rm"),
        (
            "mkdir -m 777 $B/shared; ln -sfn $B/shared /run/outside",
            ("/sys/fs/bpf/shared".into(), "/run/outside/nodefence/v3".into()),
            "chmod go-w",
        ),
    ] {
        let netns = Netns::new("exposed").unwrap();
        netns.run(move || {
            let options = Options { pin_dir: pins.clone(), ..options(TcChoice::Auto) };
            sh("mount -t tmpfs run /run");
            sh(&done.replace("$B", "/sys/fs/bpf"));
            for refused in [
                dataplane::check(&options).unwrap_err(),
                Dataplane::open(&options).err().unwrap(),
                dataplane::detach(&pins).unwrap_err(),
            ] {
                let Error::Exposed { remedy: told, .. } = &refused else { panic!("{done}: {refused}") };
                assert_eq!(*told, format!("{remedy} {wrong}"), "{done}");
                assert!(refused.to_string().starts_with(&format!("{wrong}: ")), "{done}: {refused}");
            }
            assert!(!pins.exists(), "{done}: the pin folder was made all the same");
            sh(&format!("{remedy} {wrong}"));
            dataplane::check(&options).unwrap();
        });
    }
}

/// The permissions of a folder and of all that lies in it.
fn modes(folder: &Path) -> Vec<(PathBuf, u32)> {
    let metadata = fs::symlink_metadata(folder).unwrap();
    let mut all = vec![(folder.to_owned(), metadata.permissions().mode() & 0o7777)];
    if metadata.is_dir() {
        all.extend(fs::read_dir(folder).unwrap().flat_map(|entry| modes(&entry.unwrap().path())));
    }
    all
}

/// A map in our folder belongs to another user.
#[test]
fn a_pin_of_others_in_our_folder_is_refused() {
    Pair::new("theirs").near.run(|| {
        let open = || Dataplane::open(&options(TcChoice::Auto));
        drop(open().unwrap());
        sh("chown 65534 /sys/fs/bpf/nodefence/*/nodes");
        let refused = open().err().unwrap();
        let Error::Exposed { remedy, .. } = &refused else { panic!("{refused}") };
        assert!(
            refused.to_string().starts_with(&format!("{}: ", pin_dir().join("nodes").display())),
            "{refused}"
        );
        assert_eq!(remedy, "rm -r /sys/fs/bpf/nodefence");
        sh(remedy);
        drop(open().unwrap());
        // The root of a BPF filesystem that the agent did not mount is open to all and sticky. No folder and no pin of ours is open to others.
        let root = Path::new("/sys/fs/bpf");
        assert_eq!(fs::metadata(root).unwrap().permissions().mode() & 0o7777, 0o1777);
        let ours = modes(&root.join("nodefence"));
        assert!(ours.len() > 10 && ours.iter().all(|(_, mode)| mode & 0o077 == 0), "{ours:?}");
    });
}
